"""Records of files, decoded as an ingester decodes a range."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.parquet import pack_range
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import DecodedRows, decode_range


def range_of(data: bytes, *, base: int = 0, header: bytes = b"") -> FileRange:
    """Return the range of ``data``, which starts at the offset ``base`` of the file ``p``."""
    return FileRange(path="p", start=base, limit=base + len(data), header=header)


def decoded(
    data: bytes,
    wanted: pa.Schema,
    *,
    format: str = "json",
    base: int = 0,
    header: bytes = b"",
    **more: Any,
) -> DecodedRows:
    """Decode the text of a range; ``more`` is for `decode_range`."""
    found = range_of(data, base=base, header=header)
    return decode_range(data, found, wanted, format=format, **more)


def parquet(table: pa.Table, **more: Any) -> tuple[bytes, bytes]:
    """Return a Parquet file and its footer."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **more)
    file = sink.getvalue()
    return file, file[-int.from_bytes(file[-8:-4], "little") - 8 :]


def decoded_parquet(
    table: pa.Table, wanted: pa.Schema, *, required: tuple[str, ...] = (), **more: Any
) -> DecodedRows:
    """Write a Parquet file and decode all of it; ``more`` is for `parquet`."""
    file, footer = parquet(table, **more)
    data = pack_range(footer, file[4 : -len(footer)])
    return decode_range(data, range_of(file), wanted, format="parquet", required=required)


def info_of(**more: Any) -> SourceInfo:
    """Return the catalog's facts of a source of json files."""
    given = {"id": "s", "name": "s", "rendition": "r", "url": "memory://u", "patterns": ("**",)}
    return SourceInfo(**{"format": "json", **given, **more})
