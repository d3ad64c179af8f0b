"""Decode row groups of a Parquet file with a known footer from their bytes alone. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.keyed.format.layout import Span


def read_metadata(tail: bytes) -> pq.FileMetaData:
    """Decode a footer from a file's last bytes. Raises: Arrow's errors for other bytes."""
    return pq.read_metadata(pa.BufferReader(tail))


def decode_groups(
    metadata: pq.FileMetaData, span: Span, data: bytes, groups: Sequence[int]
) -> pa.Table:
    """Decode row groups that lie in ``span`` of a file; ``data`` is the contents of that span.

    Raises:
        Arrow's errors for damaged bytes; callers check the bytes first.
    """
    source = pa.PythonFile(_Window(span, data), mode="r")
    file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False)
    return file.read_row_groups(list(groups), use_threads=False)


class _Window(io.RawIOBase):
    """A file of which only a span is loaded; Arrow reads no other bytes."""

    def __init__(self, span: Span, data: bytes) -> None:
        super().__init__()
        self._span = span
        self._data = memoryview(data)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        # Arrow seeks to the end to find the file's size, but does not read there.
        self._at = offset + (self._at if whence == 1 else self._span.limit if whence == 2 else 0)
        return self._at

    def read(self, size: int = -1) -> Any:
        start = self._at - self._span.start
        if start < 0 or size < 0 or start + size > len(self._data):
            raise ValueError("a row group is outside the bytes read")
        self._at += size
        return bytes(self._data[start : start + size])
