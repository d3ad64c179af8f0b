"""Sources that take new columns by themselves: the types of the fields that a schema lacks.

An ingester computes the rows of a binding before it records the binding. If the rows have fields
that the schema lacks, it looks at their values, adds columns of fitting types to the source, and
binds the rows with these columns. The binding names the schema, so all ingesters decode it alike.
Source: decision 31.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelog.collection.catalog.catalog import RenditionInfo, SourceInfo
from tidelog.collection.formats.casts import Formats
from tidelog.collection.formats.csv.decode import decode_csv
from tidelog.collection.formats.csv.types import types_of
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT, array_lines
from tidelog.collection.formats.json.texts import check_json_name
from tidelog.collection.formats.parquet import read_footer
from tidelog.collection.formats.types import plain_type, without_maps
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.collection.source.decode import ReadData, record_lines
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
        is_within = any(name.startswith(f"{column}.") for column in schema.names)
        is_usable = _is_usable(pa.field(name, pa.string()))
        if is_usable and not is_within and name.casefold() not in ever:
            found.setdefault(name.casefold(), name)
    return list(found.values())[: max(0, COLUMNS_MAX - len(schema.names))]


async def new_columns(
    source: RawSource, info: SourceInfo, ranges: Sequence[AddressRange], names: Sequence[str]
) -> pa.Schema:
    """Return the columns for some fields of the ranges, in types that fit the first values.

    Shape: a field without a value in the first megabytes is left out.

    Raises:
        SourceRewritten, GoneError: the data were changed, or no longer exist.
        LocationError: the source's store failed.
    """
    found: dict[str, pa.Field[Any]] = {}
    samples: list[bytes] = []
    for one in ranges:
        if {*names} <= {*found} or sum(map(len, samples)) > SAMPLE_BYTES:
            break
        share, data = await source.read(one, anew=True)
        if info.format in ("json", ARRAY_FORMAT):
            samples.append(_lines_with(_text_of(data, share, info), names))
            continue
        with suppress(CorruptionError):  # The file is a bad row.
            for field in _columns_in(data, share, info, names):
                found.setdefault(field.name, field)
    if sample := b"".join(samples):
        with suppress(UsageError):  # The names look like data.
            found.update((field.name, field) for field in sample_schema(sample))
    fields = (field for field in found.values() if field.name in names)
    return pa.schema([field for field in fields if _is_usable(field)])


def _is_usable(field: pa.Field[Any]) -> bool:
    """Return True if a shard can have a column of the field's name and type."""
    try:
        check_json_name(shard_schema(pa.schema([field])).data.field(0))
    except UsageError:
        return False
    return not pa.types.is_null(field.type)


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


def _lines_with(text: bytes, names: Sequence[str]) -> bytes:
    """Return the lines that have values of some fields, with these fields alone."""
    wanted, lines, size = {*names}, [], 0
    for line in text.split(b"\n"):
        try:
            fields = _FIELDS.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            continue
        kept = {n: v for n, v in fields.items() if n in wanted and bytes(v).strip() != b"null"}
        if kept:
            lines.append(msgspec.json.encode(kept) + b"\n")
            size += len(lines[-1])
        if size > SAMPLE_BYTES:
            break
    return b"".join(lines)


def _columns_in(
    data: ReadData, found: AddressRange, info: SourceInfo, names: Sequence[str]
) -> list[pa.Field[Any]]:
    """Return the columns of csv, of parquet, or of a kind with columns of its own.

    Raises:
        CorruptionError: the data are not of the format.
    """
    if info.format == "csv":
        return _csv_columns(data, found, info, names)
    schema: pa.Schema = pa.schema([])
    if isinstance(data, bytes):
        length = int.from_bytes(data[:8], "little")
        schema = read_footer(data[8 : 8 + length]).schema.to_arrow_schema()
    elif info.format == ROWS and isinstance(data, pa.Table):
        schema = data.schema
    return [pa.field(f.name, without_maps(plain_type(f.type))) for f in schema]


def _csv_columns(
    data: ReadData, found: AddressRange, info: SourceInfo, names: Sequence[str]
) -> list[pa.Field[Any]]:
    dialect, header = info.csv, found.header if isinstance(found, FileRange) else b""
    texts = pa.schema([pa.field(name, pa.string()) for name in names])
    records = decode_csv(
        _text_of(data, found, info), texts, base=found.start, header=header, dialect=dialect
    )
    formats = Formats(dialect.date_format, dialect.timestamp_format, dialect.is_inferred)
    columns = [records.table.column(name) for name in names]
    kinds = types_of([one.combine_chunks() for one in columns], formats)
    typed = zip(names, kinds, columns, strict=True)
    return [pa.field(name, kind) for name, kind, one in typed if one.null_count < len(one)]


def with_columns(added: pa.Schema, rendition: RenditionInfo, source: SourceInfo) -> RenditionInfo:
    """Return the rendition with those of the columns that no other ingester has added since."""
    names = candidates(added.names, rendition.data_schema)
    if not names:
        return rendition
    change = Alteration.of(pa.schema([added.field(name) for name in names]), ())
    return change.next_of(rendition, f"source {source.name!r}", {})
