"""Creation of a source: from a user's spec to the items that the catalog records."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from tidelog.collection.catalog.catalog import (
    COLLECTION,
    FILES,
    CollectionInfo,
    RenditionInfo,
    SourceInfo,
)
from tidelog.collection.collections import Collections
from tidelog.collection.formats.avro.container import AVRO_FORMAT
from tidelog.collection.formats.avro.schema import require_fastavro
from tidelog.collection.formats.csv.guess import guess_csv
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT
from tidelog.collection.formats.json.texts import check_json_name
from tidelog.collection.formats.lines import CsvDialect
from tidelog.collection.formats.names import spelled_once
from tidelog.collection.formats.text import ONE_COLUMN, check_one_column
from tidelog.collection.formats.times import check_time_type
from tidelog.collection.formats.types import parse_schema
from tidelog.collection.ingest.program import program_of
from tidelog.collection.source.decode_messages import record_lines
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.files_head import refuse_own_location
from tidelog.collection.source.infer import (
    are_arrays,
    columns_of_messages,
    infer_csv,
    infer_schema,
    no_files,
    sample_schema,
)
from tidelog.collection.source.kind import ROWS, told
from tidelog.collection.source.kinds import open_kind
from tidelog.collection.spec_types import SourceSpec
from tidelog.collection.upstream import NewFollowed
from tidelog.core.arguments import joined_names
from tidelog.core.clock import Clock
from tidelog.core.ids import new_group_id, new_rendition_id, new_shard_id, new_source_id
from tidelog.errors import InvariantError, UsageError
from tidelog.persist.format.schema import ShardSchema, differ_by_case, shard_schema
from tidelog.store.port import Store
from tidelog.store.urls import open_store, real_root, split_globs
from tidelog.store.wrapping import split_wrapping


class Described(Protocol):
    """The input of a new source of another kind than files."""

    @property
    def name(self) -> str:
        """Return the name of its kind."""
        ...

    async def columns(self) -> pa.Schema:
        """Return the columns of its rows."""
        ...

    @property
    def body(self) -> str:
        """Return the name of the column with the text to decode."""
        ...

    async def sample(self) -> pa.Table:
        """Return some of its first rows."""
        ...


async def resolve_spec(
    spec: SourceSpec,
    *,
    location_url: str,
    clock: Clock,
    store: Store | None = None,
    collections: Collections | None = None,
) -> tuple[CollectionInfo, RenditionInfo, SourceInfo]:
    """Check a spec against its data, infer the format and schema if not given, and choose ids.

    ``store`` is the location's, if it is open already, and ``collections`` are its collections.

    Raises:
        UsageError: no file matches and no schema is given. Or a column is missing, or has the wrong
            type.
        LocationError: the files' store failed.
        GoneError: the data to read do not exist.
    """
    spec.check()
    given = None if spec.schema is None else parse_schema(spec.schema)
    location_url, _ = split_wrapping(location_url)
    info = _info_of(spec, location_url=location_url, clock=clock)
    if info.kind == FILES:
        own = real_root(location_url)
        info, found = await _inferred(info, spec, given, clock=clock, own=own)
    elif info.kind == COLLECTION:
        if collections is None:
            raise InvariantError("the location of a source of a collection must be open")
        upstream = NewFollowed(collections=collections, info=info)
        await upstream.open()
        dialect, found = await _columns_of(upstream, spec, given)
        info = msgspec.structs.replace(info, settings=dict(await upstream.settle()), csv=dialect)
    else:
        store = open_store(location_url, clock=clock) if store is None else store
        kind = open_kind(info, store=store, clock=clock)
        with told(kind):
            dialect, found = await _columns_of(kind, spec, given)
            settled = dict(await kind.settle())
        info = msgspec.structs.replace(info, settings=settled, csv=dialect)
    if spec.evolve and info.format == "csv" and not info.csv.has_header:
        raise UsageError(
            "evolve= needs csv with a header, because columns have no names without it: remove "
            "evolve="
        )
    if spec.ignore_case:
        found = _spelled_once(found)
        info = msgspec.structs.replace(
            info, csv=msgspec.structs.replace(info.csv, ignore_case=True)
        )
    schema = source_schema(spec, found)
    program = await clock.offload(partial(program_of, info))
    info, group = msgspec.structs.replace(info, program=program), new_group_id(clock)
    rendition = RenditionInfo(
        id=info.rendition,
        collection=spec.name,
        schema=schema.encoded,
        shards=tuple(new_shard_id(clock, group) for _ in range(spec.shards)),
        errors=new_shard_id(clock, group),
        remap=new_shard_id(clock, group),
        deletions=tuple(
            new_shard_id(clock, group) for _ in range(spec.shards * spec.keeps_deletions)
        ),
    )
    collection = CollectionInfo(
        name=spec.name,
        active=rendition.id,
        renditions=(rendition.id,),
        created_us=info.created_us,
    )
    return collection, rendition, info


def _info_of(spec: SourceSpec, *, location_url: str, clock: Clock) -> SourceInfo:
    url, patterns = split_globs(spec.places) if spec.places else ("", ())
    for pattern in patterns:
        refuse_own_location(url, pattern, location_url)
    keeps = spec.kind == FILES if spec.keep_bindings is None else spec.keep_bindings
    return SourceInfo(
        id=new_source_id(clock),
        name=spec.name,
        rendition=new_rendition_id(clock),
        url=url,
        patterns=patterns,
        format=spec.read_as,
        kind=spec.kind,
        settings=dict(spec.settings),
        envelope=spec.envelope,
        key=tuple(spec.key),
        time_column=spec.time_column,
        time_unit=spec.time_unit,
        max_ahead_ms=spec.max_ahead_ms,
        lateness_ms=spec.lateness_ms,
        retain_ms=spec.retain_ms,
        delete_when=spec.delete_when,
        created_us=clock.now_us(),
        evolve=spec.evolve or msgspec.UNSET,
        keeps_bindings=keeps or msgspec.UNSET,
        include=spec.includes or msgspec.UNSET,
        avro_schema=spec.avro_schema or msgspec.UNSET,
    )


async def _columns_of(
    kind: Described, spec: SourceSpec, given: pa.Schema | None
) -> tuple[CsvDialect, pa.Schema]:
    """Return the csv dialect and the columns of a source of another kind than files.

    Raises:
        UsageError: the source lacks a column, or has no data to infer columns from.
    """
    own = await kind.columns()
    if spec.read_as == ROWS:
        unknown = [] if given is None else [n for n in given.names if n not in own.names]
        if unknown:
            raise UsageError(
                f"schema= has {unknown[0]!r}, which is not a column of this source: its columns "
                f"are {', '.join(own.names)}"
            )
        return CsvDialect(), own if given is None else given
    if kind.body not in own.names:
        raise UsageError(
            f"a source of the kind {kind.name!r} has no text to decode: remove format="
        )
    lacks = [n for n in spec.includes.values() if n not in own.names or n == kind.body]
    if lacks:
        others = ", ".join(name for name in own.names if name != kind.body)
        raise UsageError(
            f"include= has {lacks[0]!r}, which is not a column next to the text of this source: "
            f"those columns are {others}"
        )
    # Without a sample, all columns must be given, and csv is guessed from one.
    needs_sample = given is None or spec.read_as == "csv" or spec.includes.keys() - {*given.names}
    sample = await kind.sample() if needs_sample else None
    said = None if given is None else pa.schema([f for f in given if f.name not in spec.includes])
    dialect, found = _body_columns(spec, said, [] if sample is None else _bodies(sample, kind.body))
    if sample is None:
        return dialect, found if given is None else given
    return dialect, _with_included(found, given, sample, spec)


def _bodies(sample: pa.Table, body: str) -> list[bytes]:
    return [one for one in sample.column(body).cast(pa.binary()).to_pylist() if one]


def _body_columns(
    spec: SourceSpec, given: pa.Schema | None, bodies: Iterable[bytes]
) -> tuple[CsvDialect, pa.Schema]:
    """Return the csv dialect and the columns of decoded bodies, given or inferred.

    Raises:
        UsageError: no columns are given, and there are no bodies to infer them from.
    """
    if given is not None and not given.names:
        raise UsageError("schema= has no field of the text: add one, or use format='rows'")
    if spec.read_as in ONE_COLUMN:
        return CsvDialect(), ONE_COLUMN[spec.read_as] if given is None else given
    if spec.read_as == AVRO_FORMAT:
        found = columns_of_messages(spec.avro_schema or "")
        return CsvDialect(), found if given is None else given
    is_csv = spec.read_as == "csv"
    if given is not None and not is_csv:
        return CsvDialect(), given
    lines = record_lines(bodies, spec.read_as)
    sample = b"".join(line + b"\n" for line in lines if line)
    if is_csv and sample:
        said = msgspec.structs.replace(spec.csv, header=False, multiline=False)
        try:
            dialect, found = guess_csv(sample, said, given, cut=False)
        except ValueError as error:
            raise UsageError(f"the first records cannot be read as csv: {error}") from error
        return dialect, found if given is None else given
    if given is None and not sample:
        raise UsageError(
            "the source has no data yet to infer a schema from: pass schema='name type, ...'"
        )
    if given is None:
        return CsvDialect(), sample_schema(sample)
    return msgspec.structs.replace(spec.csv.dialect(), names=tuple(given.names)), given


def _with_included(
    found: pa.Schema, given: pa.Schema | None, sample: pa.Table, spec: SourceSpec
) -> pa.Schema:
    """Return the columns of the text with the included ones; bytes that are all text become text.

    Raises:
        UsageError: the text has a field with the name of an included column.
    """
    twins = [name for name in spec.includes if name in found.names]
    if twins:
        column = spec.includes[twins[0]]
        raise UsageError(
            f"the text has a field {twins[0]!r}, too: give the included column another name, as "
            f"include='{column}=message_{column}'"
        )
    own = [
        pa.field(name, _type_of(sample.column(column))) for name, column in spec.includes.items()
    ]
    if given is None:
        return pa.schema([*found, *own])
    return pa.schema([*given, *(one for one in own if one.name not in given.names)])


def _type_of(column: pa.ChunkedArray[Any]) -> pa.DataType:
    """Return the type of an included column: text for bytes that are text in each row so far."""
    dtype: pa.DataType = column.type
    if not pa.types.is_binary(dtype):
        return dtype
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return dtype
    return pa.string()


async def _inferred(
    info: SourceInfo, spec: SourceSpec, given: pa.Schema | None, *, clock: Clock, own: str
) -> tuple[SourceInfo, pa.Schema]:
    """Return the source with its inferred csv dialect or json format, and the schema."""
    if given is None and info.format in ONE_COLUMN:
        return info, ONE_COLUMN[info.format]
    if info.format == AVRO_FORMAT:
        require_fastavro()
    if given is not None and info.format != "csv":
        return info, given
    store = open_store(info.url, clock=clock)
    nothing = shard_schema(pa.schema([("x", pa.string())]))
    source = FilesSource(store=store, clock=clock, info=info, schema=nothing, own=own)
    entries = (await source.head()).entries
    if info.format == "json" and await are_arrays(entries, store):
        info = msgspec.structs.replace(info, format=ARRAY_FORMAT)
    if info.format != "csv":
        return info, await infer_schema(
            entries,
            format=info.format,
            store=store,
            places=spec.places,
            ignore_case=spec.ignore_case,
        )
    dialect, found = await infer_csv(entries, spec.csv, given, store=store)
    schema = given if given is not None else found
    if schema is None:
        raise no_files(spec.places)
    return msgspec.structs.replace(info, csv=dialect), schema


def _spelled_once(schema: pa.Schema) -> pa.Schema:
    """Return the schema with only the first of the columns whose names differ only by case."""
    return pa.schema([schema.field(name) for name in spelled_once(schema.names)])


def source_schema(spec: SourceSpec, given: pa.Schema) -> ShardSchema:
    """Return the schema of a source's output, its key first.

    Raises:
        UsageError: a column that the spec names is missing, or has an unsuitable type.
    """
    if spec.read_as in ONE_COLUMN:
        own = pa.schema([one for one in given if one.name not in spec.includes])
        check_one_column(own, spec.read_as)
    known = joined_names(given.names)
    for option, columns in (("key=", spec.key), ("time_column=", (spec.time_column,))):
        for column in columns:
            if column is not None and column not in given.names:
                raise UsageError(
                    f"{option} names {column!r}, which is not a column: the columns are {known}"
                )
    folded: dict[str, str] = {}
    for name in given.names:
        twin = folded.setdefault(name.casefold(), name)
        if twin != name:
            raise differ_by_case(twin, name)
    for one in given:
        check_json_name(one)
    if spec.time_column is not None:
        check_time_type(spec.time_column, given.field(spec.time_column).type)
    # Rows that are only appended have no key: the hash of the whole row selects the shard, and
    # parts need no sorting.
    schema = shard_schema(given, key=list(spec.key))
    if spec.delete_when is not None:
        from tidelog.predicate.expression import check_predicate  # Loads DuckDB.

        check_predicate(spec.delete_when, schema.data, definite=True, what="delete_when=")
    return schema
