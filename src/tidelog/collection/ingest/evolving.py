"""Sources that take new columns by themselves: the types of the fields that a schema lacks.

An ingester computes the rows of a binding before it records the binding. If the rows have fields
that the schema lacks, it looks at their values, adds columns of fitting types to the source, and
binds the rows with these columns. The binding names the schema, so all ingesters decode it alike.
Source: decision 31.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from tidelog.collection.catalog.catalog import RenditionInfo, SourceInfo
from tidelog.collection.formats.avro.container import AVRO_FORMAT, unpack_blocks
from tidelog.collection.formats.avro.schema import parse_avro_schema
from tidelog.collection.formats.casts import Formats
from tidelog.collection.formats.csv.decode import decode_csv
from tidelog.collection.formats.csv.types import types_of
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT, array_lines
from tidelog.collection.formats.json.texts import check_json_name
from tidelog.collection.formats.parquet import read_footer
from tidelog.collection.formats.types import is_json, json_field, plain_type, without_maps
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.collection.source.decode import ReadData
from tidelog.collection.source.decode_messages import record_lines
from tidelog.collection.source.infer import sample_schema
from tidelog.collection.source.kind import BODY, ROWS
from tidelog.collection.source.port import RawSource
from tidelog.collection.table.alteration import Alteration
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.format.schema import ShardSchema, shard_schema

COLUMNS_MAX: Final = 1_000  # Data with names in place of values would add columns without end.
SAMPLE_BYTES: Final = 8 * 1024 * 1024
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def candidates(names: Sequence[str], schema: ShardSchema) -> list[str]:
    """Return the fields that can become columns, among those that a schema lacks.

    These cannot: a field within a column, a name that SQL cannot express or that differs from a
    column's only by case, a name of a dropped column, and fields past `COLUMNS_MAX`.
    """
    ever = {name.casefold() for one in (*schema.known, schema.data) for name in one.names}
    found: dict[str, str] = {}
    for name in names:
        is_within = column_around(name, schema) is not None
        if name.casefold() not in ever and not is_within and is_name_of_column(name):
            found.setdefault(name.casefold(), name)
    return list(found.values())[: max(0, COLUMNS_MAX - len(schema.names))]


def column_around(name: str, schema: ShardSchema) -> str | None:
    """Return the column that has the field ``name``, a path with dots, within it, or None."""
    nested = (one.name for one in schema.data if pa.types.is_nested(one.type))
    return next((one for one in nested if name.startswith(f"{one}.")), None)


def is_name_of_column(name: str) -> bool:
    """Return True if a column can have a name."""
    return _is_usable(pa.field(name, pa.string()))


def not_given_up(
    counts: Mapping[str, int], schema: ShardSchema, *, ignore_case: bool
) -> dict[str, int]:
    """Return the counts of the unknown fields that lose values which the user may want.

    Fields without a value lose none. An alteration has dropped the others that are left out.
    """

    def folded(name: str) -> str:
        return name.casefold() if ignore_case else name

    present = {folded(name) for name in schema.names}
    given_up = {folded(name) for one in schema.known for name in one.names} - present
    lost = ((name, count) for name, count in counts.items() if count)
    return {name: count for name, count in lost if folded(name) not in given_up}


async def new_columns(
    source: RawSource, info: SourceInfo, ranges: Sequence[AddressRange], names: Sequence[str]
) -> pa.Schema:
    """Return the columns for some fields of the ranges, in types that fit the first values.

    Shape: a field without a value in the first megabytes is left out.

    Raises:
        SourceRewritten, GoneError: the data were changed, or no longer exist.
        LocationError: the source's store failed.
    """
    sample = _sample_of(info, names)
    for one in ranges:
        if sample.is_full:
            break
        share, data = await source.read(one, anew=True)
        with suppress(CorruptionError):  # The file is a bad row.
            sample.add(data, share)
    wanted = (one for one in sample.columns() if one.name in names)
    return pa.schema([one for one in wanted if _is_usable(one)])


class _Sample(Protocol):
    """The first values of some fields, from which their types are inferred."""

    @property
    def is_full(self) -> bool:
        """Return True if more data would not change the columns."""
        ...

    def add(self, data: ReadData, found: AddressRange) -> None:
        """Add the data of a range.

        Raises:
            CorruptionError: the data are not of the format.
        """
        ...

    def columns(self) -> Iterable[pa.Field[Any]]: ...


def _sample_of(info: SourceInfo, names: Sequence[str]) -> _Sample:
    if info.format in ("json", ARRAY_FORMAT):
        return _JsonSample(info, frozenset(names))
    return _CsvSample(info, names) if info.format == "csv" else _TypedSample(info, frozenset(names))


@dataclass(slots=True)
class _JsonSample:
    """The values of fields of json, as their texts, in the order in which the fields appear."""

    info: SourceInfo
    names: frozenset[str]
    size_bytes: int = 0
    values: dict[str, list[msgspec.Raw]] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.size_bytes > SAMPLE_BYTES

    def add(self, data: ReadData, found: AddressRange) -> None:
        for line in _text_of(data, found, self.info).split(b"\n"):
            try:
                fields = _FIELDS.decode(line)
            except (msgspec.MsgspecError, RecursionError):
                continue
            for name, value in fields.items():
                text = bytes(value).strip()
                if name in self.names and text != b"null":
                    self.values.setdefault(name, []).append(msgspec.Raw(text))
                    self.size_bytes += len(text)
            if self.is_full:
                break

    def columns(self) -> Iterable[pa.Field[Any]]:
        # In a sample of fields that few rows have, the names look like data. So each sample has
        # fields with about equally many values, and its lines have almost all of them.
        alike: dict[int, list[str]] = {}
        for name, one in self.values.items():
            alike.setdefault(len(one).bit_length(), []).append(name)
        found = {one.name: one for names in alike.values() for one in self._inferred(names)}
        return [found[name] for name in self.values if name in found]

    def _inferred(self, names: Sequence[str]) -> list[pa.Field[Any]]:
        """Return the columns of some fields, without the fields for which there is no type."""
        rows = zip_longest(*(self.values[name] for name in names))
        lines = (
            msgspec.json.encode({n: v for n, v in zip(names, row, strict=True) if v is not None})
            for row in rows
        )
        try:
            return list(sample_schema(b"".join(line + b"\n" for line in lines)))
        except UsageError:
            half = len(names) // 2  # One odd field must not cost the others their columns.
            return [*self._inferred(names[:half]), *self._inferred(names[half:])] if half else []


@dataclass(slots=True)
class _CsvSample:
    """The values of columns of csv, as texts."""

    info: SourceInfo
    names: Sequence[str]
    size_bytes: int = 0
    values: list[pa.Table] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.size_bytes > SAMPLE_BYTES

    def add(self, data: ReadData, found: AddressRange) -> None:
        texts = pa.schema([pa.field(name, pa.string()) for name in self.names])
        records = decode_csv(
            _text_of(data, found, self.info),
            texts,
            base=found.start,
            header=found.header if isinstance(found, FileRange) else b"",
            dialect=self.info.csv,
        )
        self.values.append(records.table.select(self.names))
        self.size_bytes += self.values[-1].nbytes

    def columns(self) -> Iterable[pa.Field[Any]]:
        if not self.values:
            return []
        dialect, values = self.info.csv, pa.concat_tables(self.values)
        formats = Formats(dialect.date_format, dialect.timestamp_format, dialect.is_inferred)
        texts = [values.column(name).combine_chunks() for name in self.names]
        typed = zip(self.names, types_of(texts, formats), texts, strict=True)
        return [pa.field(name, kind) for name, kind, one in typed if one.null_count < len(one)]


@dataclass(slots=True)
class _TypedSample:
    """The columns of parquet, of avro, or of a kind with columns: the first type of each."""

    info: SourceInfo
    names: frozenset[str]
    found: dict[str, pa.Field[Any]] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.names <= self.found.keys()

    def add(self, data: ReadData, found: AddressRange) -> None:
        schema: pa.Schema = pa.schema([])
        if isinstance(data, bytes):
            if self.info.format == AVRO_FORMAT:
                schema = unpack_blocks(data)[0].schema.columns
            else:
                length = int.from_bytes(data[:8], "little")
                schema = read_footer(data[8 : 8 + length]).schema.to_arrow_schema()
        elif self.info.format == ROWS and isinstance(data, pa.Table):
            schema = data.schema
        elif self.info.avro_schema:
            schema = parse_avro_schema(self.info.avro_schema).columns
        for one in schema:
            # A column of the source is nullable, also if the file's column is not.
            column = pa.field(one.name, without_maps(plain_type(one.type)))
            column = json_field(one.name) if is_json(one) else column
            self.found.setdefault(one.name, column)

    def columns(self) -> Iterable[pa.Field[Any]]:
        return self.found.values()


def _is_usable(column: pa.Field[Any]) -> bool:
    """Return True if a shard can have a column of the field's name and type."""
    try:
        check_json_name(shard_schema(pa.schema([column])).data.field(0))
    except UsageError:
        return False
    return not pa.types.is_null(column.type)


def _text_of(data: ReadData, found: AddressRange, info: SourceInfo) -> bytes:
    """Return the records of a range as lines of text."""
    if isinstance(data, pa.Table):
        bodies = data.column(BODY).cast(pa.binary()).to_pylist()
        return b"".join(line + b"\n" for line in record_lines(bodies, info.format) if line)
    if not isinstance(data, bytes):
        return b""
    if info.format == ARRAY_FORMAT and isinstance(found, FileRange) and found.header:
        return array_lines(data, inside=found.start > 0)
    return data


def with_columns(added: pa.Schema, rendition: RenditionInfo, source: SourceInfo) -> RenditionInfo:
    """Return the rendition with those of the columns that no other ingester has added since."""
    names = candidates(added.names, rendition.data_schema)
    if not names:
        return rendition
    change = Alteration.of(pa.schema([added.field(name) for name in names]), ())
    return change.next_of(rendition, f"source {source.name!r}", {})
