"""Decoding what was read of a range, whatever kind of source it is of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.collection.source.decode import Decoded, decode_range
from tidelog.collection.source.decode_rows import decode_rows
from tidelog.collection.source.kind import ROWS
from tidelog.errors import InvariantError
from tidelog.persist.format.schema import ShardSchema

OWN: Final = ("generator", "log")  # Kinds whose columns are fixed: to leave one out was chosen.
ReadData: TypeAlias = "bytes | pa.Table | Decoded"  # What a source reads of a range.


def required_columns(source: SourceInfo, schema: ShardSchema) -> list[str]:
    """Return the columns without which a row is a bad one."""
    key = schema.key if source.envelope == "upsert" else []
    time = [] if source.time_column is None else [source.time_column]
    return list(dict.fromkeys([*key, *time]))


def decode_messages(
    data: ReadData,
    found: AddressRange,
    wanted: pa.Schema,
    *,
    source: SourceInfo,
    required: Sequence[str] = (),
    counted: bool = True,
) -> Decoded:
    """Decode what was read of a range: bytes of a file, rows of another source, or decoded ones."""
    if isinstance(data, Decoded):
        return data
    if isinstance(data, pa.Table):
        return decode_rows(
            data,
            found,
            wanted,
            format=source.format,
            dialect=source.csv,
            required=required,
            counted=counted and not (source.kind in OWN and source.format == ROWS),
        )
    if not isinstance(found, FileRange):
        raise InvariantError("bytes were read of what is no file", path=found.path)
    return decode_range(
        data,
        found,
        wanted,
        format=source.format,
        dialect=source.csv,
        required=required,
        counted=counted,
    )
