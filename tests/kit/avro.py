"""Avro files, written by the specification alone, so that a test can choose each byte."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

MARKER = bytes(range(100, 116))


def record(**fields: Any) -> dict[str, Any]:
    """Return the schema of a record with these fields."""
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "row", "fields": listed}


def long(number: int) -> bytes:
    """Return a number as a varint in zigzag form."""
    number, found = (number << 1) ^ (number >> 63), b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def datum(schema: Any, value: Any) -> bytes:
    """Return the bytes of one value."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def header(schema: Any, codec: str = "null", marker: bytes = MARKER) -> bytes:
    """Return the header of a file; ``schema`` may be a text."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    metadata = {b"avro.schema": text.encode(), b"avro.codec": codec.encode()}
    found = b"Obj\x01" + long(len(metadata))
    for key, value in metadata.items():
        found += long(len(key)) + key + long(len(value)) + value
    return found + long(0) + marker


def block(count: int, data: bytes, codec: str = "null", marker: bytes = MARKER) -> bytes:
    """Return a block that claims ``count`` rows."""
    packed = _packed(data, codec)
    return long(count) + long(len(packed)) + packed + marker


def _packed(data: bytes, codec: str) -> bytes:
    if codec == "deflate":
        return zlib.compress(data, wbits=-15)
    if codec == "bzip2":
        return bz2.compress(data)
    if codec == "xz":
        return lzma.compress(data)
    if codec == "snappy":
        packed = bytes(pa.compress(data, codec="snappy", asbytes=True))
        return packed + zlib.crc32(data).to_bytes(4, "big")
    if codec == "zstandard":
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return data


def avro_bytes(
    schema: Any, rows: Sequence[Any], *, rows_a_block: int = 1_000, codec: str = "null"
) -> bytes:
    """Return a file of rows, in blocks of ``rows_a_block``."""
    return header(schema, codec) + avro_blocks(schema, rows, rows_a_block, codec)


def avro_blocks(schema: Any, rows: Sequence[Any], rows_a_block: int, codec: str = "null") -> bytes:
    """Return the blocks of rows, to append to a file."""
    found = b""
    for start in range(0, len(rows), rows_a_block):
        some = rows[start : start + rows_a_block]
        found += block(len(some), b"".join(datum(schema, row) for row in some), codec)
    return found


def write_avro(path: Path, schema: Any, rows: Sequence[Any], **more: Any) -> Path:
    """Write a file of rows; ``more`` is for `avro_bytes`."""
    path.write_bytes(avro_bytes(schema, rows, **more))
    return path
