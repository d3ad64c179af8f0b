"""Decompression of a file in pieces, from the start of one of its members.

All calls block, and read a local copy of the file (see `packed.text`). A checksum at the end of a
member proves it. Its text is returned before that checksum is read.
"""

from __future__ import annotations

import io
import os
import zlib
from typing import BinaryIO, Final, Protocol

import pyarrow as pa

from tidelog.collection.formats.packed.packed import Codec
from tidelog.errors import CorruptionError

READ_BYTES: Final = 64 * 1024
_GZIP: Final = 31  # zlib's wbits for gzip: the largest window, with gzip's header and checksum.
_FRAME: Final = 0xFD2FB528
_SKIPPED: Final = 0x184D2A50
_HEAD_BYTES_MAX: Final = 18
_RESERVED: Final = 3


class Inflater(Protocol):
    """A reader of decompressed text, in order.

    Shape: ``member`` is the start of the current or next member: the offsets in the file and in the
        text. ``raw_at`` is the offset up to which the file was read. ``torn`` is True if the file
        ends within a member.
    """

    member: tuple[int, int]
    raw_at: int
    torn: bool

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes of text, all of one member; b"" at the end of the file.

        Raises:
            CorruptionError: the file is damaged, or is not of this codec.
        """
        ...


def open_inflater(raw: BinaryIO, codec: Codec, *, at: int, text_at: int) -> Inflater:
    """Return an inflater; ``raw`` has a file's bytes from ``at``, where a member begins."""
    kind = GzipInflater if codec == "gzip" else ZstdInflater
    return kind(raw, at=at, text_at=text_at)


class GzipInflater:
    """A reader of gzip members. It skips zero bytes after a member, which some tools write."""

    def __init__(self, raw: BinaryIO, *, at: int, text_at: int) -> None:
        raw.seek(0)
        self.member = at, text_at
        self.raw_at = at
        self.torn = False
        self._raw, self._text_at = raw, text_at
        self._data = b""
        self._inflate: zlib._Decompress | None = None

    def read(self, size: int) -> bytes:
        while self._inflate is not None or self._begin():
            found = self._inflated(size)
            if found:
                return found
            if self._inflate is not None and not self._data and not self._read_on():
                self.torn = True
                return b""
        return b""

    def _inflated(self, size: int) -> bytes:
        inflate = self._inflate
        if inflate is None:
            return b""
        try:
            found = inflate.decompress(self._data, size)
        except zlib.error as error:
            raise CorruptionError(f"it is not a complete gzip file: {_said(error)}") from error
        self._text_at += len(found)
        self._data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        if inflate.eof:
            self._inflate = None
            self.member = self.raw_at - len(self._data), self._text_at
        return found

    def _begin(self) -> bool:
        """Begin the next member; return False at the end of the file."""
        while self._data or self._read_on():
            if self.member[0]:
                self._data = self._data.lstrip(b"\0")
            self.member = self.raw_at - len(self._data), self._text_at
            if self._data:
                self._inflate = zlib.decompressobj(_GZIP)
                return True
        return False

    def _read_on(self) -> bool:
        self._data = self._raw.read(READ_BYTES)
        self.raw_at += len(self._data)
        return bool(self._data)


class ZstdInflater:
    """A reader of zstd frames. If the file ends within a frame, it returns the text up to there."""

    def __init__(self, raw: BinaryIO, *, at: int, text_at: int) -> None:
        self.member = at, text_at
        self.raw_at = at
        self.torn = False
        self._raw, self._base, self._text_at = raw, at, text_at
        self._size = raw.seek(0, os.SEEK_END)
        self._window: _Window | None = None
        self._stream: pa.CompressedInputStream | None = None

    def read(self, size: int) -> bytes:
        while self._stream is not None or self._begin():
            found = self._inflated(size)
            if found or self.torn:
                return found
            if self._window is not None:
                self.member = self._base + self._window.limit, self._text_at
            self._stream = None
        return b""

    def _inflated(self, size: int) -> bytes:
        if self._stream is None or self._window is None:
            return b""
        try:
            found: bytes = self._stream.read(size)
        except (pa.ArrowException, OSError) as error:
            if self._window.at == self._window.limit and self._window.torn:
                self.torn = True
                return b""
            raise CorruptionError(f"it is not a complete zstd file: {_said(error)}") from error
        finally:
            self.raw_at = max(self.raw_at, self._base + self._window.at)
        self._text_at += len(found)
        self.torn = not found and self._window.torn
        return found

    def _begin(self) -> bool:
        at = self.member[0] - self._base
        if at >= self._size:
            return False
        end = frame_end(self._raw, at, self._size)
        self._window = _Window(self._raw, at, self._size if end is None else end, end is None)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._window, mode="r"), "zstd")
        return True


class _Window(io.RawIOBase):
    """The bytes ``[at, limit)`` of a file, as a file; ``torn`` if the frame there is not whole."""

    def __init__(self, raw: BinaryIO, at: int, limit: int, torn: bool) -> None:
        self._raw, self.at, self.limit, self.torn = raw, at, limit, torn

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        left = self.limit - self.at
        self._raw.seek(self.at)
        found = self._raw.read(left if size is None or size < 0 else min(size, left))
        self.at += len(found)
        return found


def frame_end(raw: BinaryIO, at: int, size: int) -> int | None:
    """Return the end of the zstd frame that begins at ``at``; None if the file ends before it.

    Each block has its length in its header, so nothing is decompressed.

    Raises:
        CorruptionError: no frame begins there.
    Source: RFC 8878, "Zstandard Frames".
    """
    raw.seek(at)
    head = raw.read(_HEAD_BYTES_MAX)
    magic = int.from_bytes(head[:4], "little")
    if len(head) < 8:
        return None
    if magic & ~0xF == _SKIPPED:
        end = at + 8 + int.from_bytes(head[4:8], "little")
        return end if end <= size else None
    if magic != _FRAME:
        raise CorruptionError("it is not a complete zstd file: a frame is missing")
    told = head[4]
    is_single, is_summed = bool(told >> 5 & 1), bool(told >> 2 & 1)
    at += 5 + (not is_single) + (0, 1, 2, 4)[told & 3] + (int(is_single), 2, 4, 8)[told >> 6]
    is_last = False
    while not is_last:
        raw.seek(at)
        block = raw.read(3)
        if len(block) < 3:
            return None
        told = int.from_bytes(block, "little")
        is_last, kind = bool(told & 1), told >> 1 & 3
        if kind == _RESERVED:
            raise CorruptionError("it is not a complete zstd file: a block has an unknown type")
        at += 3 + (1 if kind == 1 else told >> 3)
    end = at + 4 * is_summed
    return end if end <= size else None


def _said(error: Exception) -> str:
    """Return the first line of a library's message."""
    return str(error).partition("\n")[0]
