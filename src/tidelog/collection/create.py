"""Creation of a source: from a user's spec to the items that the catalog records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from tidelog.collection.catalog.catalog import FILES, CollectionInfo, RenditionInfo, SourceInfo
from tidelog.collection.catalog.retention import parse_retention_ms
from tidelog.collection.formats.csv.guess import CsvOptions, check_csv, guess_csv
from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT
from tidelog.collection.formats.json.texts import UNNAMEABLE
from tidelog.collection.formats.names import spelled_once
from tidelog.collection.formats.times import UNITS, check_time_type, parse_duration_ms
from tidelog.collection.formats.types import is_json, parse_schema
from tidelog.collection.infer import (
    are_arrays,
    infer_csv,
    infer_schema,
    no_files,
    sample_schema,
)
from tidelog.collection.source.decode_rows import csv_line, one_line
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.kind import BODY, ROWS, SourceKind, told
from tidelog.collection.source.kinds import open_kind
from tidelog.collection.source.own_location import refuse_own_location
from tidelog.collection.spec_types import check_types
from tidelog.core.clock import Clock
from tidelog.core.ids import check_name, new_rendition_id, new_shard_id, new_source_id
from tidelog.errors import UsageError
from tidelog.persist.format.schema import ShardSchema, differ_by_case, encode_schema, shard_schema
from tidelog.store.port import Store
from tidelog.store.urls import open_store, real_root, secrets_in, split_globs
from tidelog.store.wrapping import split_wrapping

FORMATS = ("json", ARRAY_FORMAT, "csv", "parquet")
FORMATS_OF_KINDS = (ROWS, "json", "csv")
ENVELOPES = ("none", "upsert")
SHARDS_MAX = 256
_GUESSED = CsvOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The spec of a new source, as a user gives it.

    Shape: ``files`` is a directory, prefix or glob, local or in a store, or several of these in one
        store. A source of another ``kind`` has ``settings`` instead. ``schema`` lists columns with
        SQL types; None means to infer it. The default ``format`` is json for files. Sources of
        other kinds keep their own columns by default.
    """

    name: str
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
    kind: str = FILES
    settings: Mapping[str, str] = field(default_factory=dict)
    format: str | None = None
    envelope: str = "none"
    key: Sequence[str] = ()
    time_column: str | None = None
    time_unit: str = "ms"
    max_ahead: str = "1d"
    lateness: str = "0s"
    retain: str = "forever"
    delete_when: str | None = None
    schema: str | None = None
    shards: int = 1
    csv: CsvOptions = _GUESSED
    ignore_case: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """Return the places of its files; a source of another kind has none."""
        if self.files is None or isinstance(self.files, str | os.PathLike):
            return () if self.files is None else (os.fspath(self.files),)
        return tuple(os.fspath(one) for one in self.files)

    @property
    def read_as(self) -> str:
        """Return the format, or the default for its kind."""
        return self.format or ("json" if self.kind == FILES else ROWS)

    @property
    def keeps_deletions(self) -> bool:
        """Return True if the ingester must remember deletions: older rows may arrive later."""
        return self.time_column is not None and self.delete_when is not None

    @property
    def max_ahead_ms(self) -> int | None:
        """Return how far after the clock a row's time may be; None means without limit.

        Raises:
            UsageError: the setting is not a duration.
        """
        if self.max_ahead == "any":
            return None
        return parse_duration_ms(self.max_ahead, what="--max-ahead")

    @property
    def lateness_ms(self) -> int:
        """Return how far the upper stays behind the greatest time of the data.

        Raises:
            UsageError: the setting is not a duration, or times are from the clock.
        """
        found = parse_duration_ms(self.lateness, what="--lateness")
        if found and self.time_column is None:
            raise UsageError("--lateness needs --time-column: rows without times are never late")
        return found

    @property
    def retain_ms(self) -> int | None:
        """Return how long past times stay readable; None means always.

        Raises:
            UsageError: the setting is not a duration.
        """
        return parse_retention_ms(self.retain, what="--retain")

    def check(self) -> None:
        """Check all options that can be checked without I/O.

        Raises:
            UsageError: an option is wrong, or needs another option that is missing.
        """
        check_types(self)
        check_name(self.name, of="name of a source")
        self._check_secrets()
        self._check_kind()
        _one_of("--envelope", self.envelope, ENVELOPES)
        _one_of("--time-unit", self.time_unit, tuple(UNITS))
        _ = self.max_ahead_ms, self.lateness_ms, self.retain_ms
        if self.envelope == "upsert" and not self.key:
            raise UsageError("--envelope upsert needs --key: the columns that identify a row")
        if self.envelope == "none" and self.key:
            raise UsageError("--key needs --envelope upsert: add it, or remove --key")
        if self.envelope == "none" and self.delete_when is not None:
            raise UsageError("--delete-when needs --envelope upsert, which can delete rows")
        if self.read_as == "csv":
            check_csv(self.csv)
        elif self.csv != _GUESSED:
            raise UsageError(
                "--delimiter, --quote, --null, --date-format, --timestamp-format, --no-header "
                "and --multiline need --format csv: add it, or remove them"
            )
        if not 1 <= self.shards <= SHARDS_MAX:
            raise UsageError(f"--shards must be from 1 to {SHARDS_MAX}", given=self.shards)

    def _check_secrets(self) -> None:
        """Check that no URL has credentials: the catalog stores it, and readers would see them."""
        for place in (*self.places, *self.settings.values()):
            found = secrets_in(place)
            if found:
                raise UsageError(
                    "a source's URL is stored, so it must not have credentials: remove "
                    f"{' and '.join(found)}, and give them in the environment (AWS_ACCESS_KEY_ID, "
                    "AWS_SECRET_ACCESS_KEY), as a profile (?profile=NAME in the URL), or by the "
                    "machine's role"
                )

    def _check_kind(self) -> None:
        if self.kind != FILES:
            _one_of("--format of a source that reads no files", self.read_as, FORMATS_OF_KINDS)
            if self.places:
                raise UsageError(
                    "a source reads files or another kind of data: give only one of them"
                )
            if self.csv.header or self.csv.multiline:
                raise UsageError(
                    "csv records of such a source have no header and one line each: remove "
                    "--header and --multiline"
                )
            return
        _one_of("--format", self.read_as, FORMATS)
        if not self.places:
            raise UsageError(
                "give the data that the source reads: --files, --log, --generator or --kind"
            )
        if self.settings:
            raise UsageError("--set is not an option of a source of files: remove it")


def _one_of(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise UsageError(f"{option} must be one of {', '.join(known)}, not {given!r}")


async def resolve_spec(
    spec: SourceSpec, *, location_url: str, clock: Clock, store: Store | None = None
) -> tuple[CollectionInfo, RenditionInfo, SourceInfo]:
    """Check a spec against its data, infer the format and schema if not given, and choose ids.

    ``store`` is the location's, if it is open already.

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
    else:
        store = open_store(location_url, clock=clock) if store is None else store
        kind = open_kind(info, store=store, clock=clock)
        with told(kind):
            dialect, found = await _columns_of(kind, spec, given)
            settled = dict(await kind.settle())
        info = msgspec.structs.replace(info, settings=settled, csv=dialect)
    if spec.ignore_case:
        found = _spelled_once(found)
        info = msgspec.structs.replace(
            info, csv=msgspec.structs.replace(info.csv, ignore_case=True)
        )
    schema = source_schema(spec, found)
    rendition = RenditionInfo(
        id=info.rendition,
        collection=spec.name,
        schema=encode_schema(schema),
        shards=tuple(new_shard_id(clock) for _ in range(spec.shards)),
        errors=new_shard_id(clock),
        remap=new_shard_id(clock),
        deletions=tuple(new_shard_id(clock) for _ in range(spec.shards * spec.keeps_deletions)),
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
    )


async def _columns_of(
    kind: SourceKind, spec: SourceSpec, given: pa.Schema | None
) -> tuple[CsvDialect, pa.Schema]:
    """Return the csv dialect and the columns of a source of another kind than files.

    Raises:
        UsageError: the source lacks a column, or has no data to infer columns from.
    """
    own = await kind.columns()
    if kind.opening.info.format == ROWS:
        unknown = [] if given is None else [n for n in given.names if n not in own.names]
        if unknown:
            raise UsageError(
                f"--schema has {unknown[0]!r}, which is not a column of this source: its columns "
                f"are {', '.join(own.names)}"
            )
        return CsvDialect(), own if given is None else given
    if BODY not in own.names:
        raise UsageError(
            f"a source of the kind {kind.name!r} has no text to decode: remove --format"
        )
    is_csv = spec.read_as == "csv"
    if given is not None and not is_csv:
        return CsvDialect(), given
    line_of = csv_line if is_csv else one_line
    sample = b"".join(line + b"\n" for body in await kind.sample() if (line := line_of(body)))
    if is_csv and sample:
        said = msgspec.structs.replace(spec.csv, header=False, multiline=False)
        try:
            dialect, found = guess_csv(sample, said, given, cut=False)
        except ValueError as error:
            raise UsageError(f"the first records cannot be read as csv: {error}") from error
        return dialect, found if given is None else given
    if given is None and not sample:
        raise UsageError(
            "the source has no data yet to infer a schema from: give --schema 'name type, ...'"
        )
    if given is None:
        return CsvDialect(), sample_schema(sample)
    return msgspec.structs.replace(spec.csv.dialect(), names=tuple(given.names)), given


async def _inferred(
    info: SourceInfo, spec: SourceSpec, given: pa.Schema | None, *, clock: Clock, own: str
) -> tuple[SourceInfo, pa.Schema]:
    """Return the source with its inferred csv dialect or json format, and the schema."""
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
    known = ", ".join(given.names)
    for option, columns in (("--key", spec.key), ("--time-column", (spec.time_column,))):
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
        _check_json_name(one)
    if spec.time_column is not None:
        check_time_type(spec.time_column, given.field(spec.time_column).type)
    # Rows that are only appended have no key: the hash of the whole row selects the shard, and
    # parts need no sorting.
    schema = shard_schema(given, key=list(spec.key))
    if spec.delete_when is not None:
        from tidelog.predicate.expression import check_predicate  # Loads DuckDB.

        check_predicate(spec.delete_when, schema.data, definite=True, what="--delete-when")
    return schema


def _check_json_name(field: pa.Field[Any]) -> None:
    """Check that the parser of json lines can find a column of json text by its name.

    Raises:
        UsageError: the name has a character that the parser cannot handle.
    """
    if is_json(field) and UNNAMEABLE.search(field.name):
        raise UsageError(
            f"the column {field.name!r} cannot have the type JSON, because its name has a quote, "
            "a backslash or a control character: give it another type with --schema"
        )
