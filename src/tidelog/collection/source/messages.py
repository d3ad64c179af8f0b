"""Decoding of a range's data, for every kind of source. Pure."""

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

# The columns of these kinds are fixed and known. If a source lacks one, the user left it out on
# purpose, so its values are not counted as dropped.
OWN: Final = ("generator", "log")
ReadData: TypeAlias = "bytes | pa.Table | Decoded"  # The data of a range, as a source reads them.


def required_columns(source: SourceInfo, schema: ShardSchema) -> list[str]:
    """Return the columns in which a null makes a row bad: the key, and the time."""
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
    """Return the rows of a range, from bytes of a file or rows of another kind of source.

    Data that are decoded already are returned unchanged.
    """
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
        raise InvariantError("bytes were read for a range that is not of a file", path=found.path)
    return decode_range(
        data,
        found,
        wanted,
        format=source.format,
        dialect=source.csv,
        required=required,
        counted=counted,
    )
