"""Container files of Avro: a header, and blocks of rows, each with the file's marker at its end.

A block stands between two markers, so a reader finds the blocks of any part of a file. The
result for a block depends only on its bytes: a block whose size is not that of the bytes before its
marker is a bad row, and the next block is read. This module does no I/O.

Shape: the bytes of a range are ``[header length: 8 bytes little endian][header][blocks]``.
Source: the Avro specification 1.12, "Object Container Files".
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidelog.collection.formats.avro.schema import AvroSchema, parse_avro_schema
from tidelog.errors import CorruptionError

AVRO_FORMAT: Final = "avro"
MAGIC: Final = b"Obj\x01"
MARKER_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
# A block is inflated in memory. A short one can claim to be very long.
INFLATED_BYTES_MAX: Final = 256 * 1024 * 1024
# A row's address is its block's offset, shifted by these bits, plus its number in the block.
ROW_BITS: Final = 24
ROWS_MAX: Final = 1 << ROW_BITS
FILE_BYTES_MAX: Final = 1 << (62 - ROW_BITS)
_CODECS: Final = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")
_VARINT_BYTES_MAX: Final = 10
_PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AvroHeader:
    """The header of a file: the text of its schema, its codec, and its marker.

    Units: ``size`` is the header's length in bytes.
    """

    schema_text: bytes
    codec: str
    marker: bytes
    size: int

    @property
    def schema(self) -> AvroSchema:
        """Return the schema by which the file was written.

        Raises:
            CorruptionError: tidelog cannot read the schema. UsageError: fastavro is not installed.
        """
        return parse_avro_schema(self.schema_text)


def read_header(data: bytes) -> AvroHeader | None:
    """Return the header at the start of a file; None if ``data`` ends within it.

    Raises:
        CorruptionError: the file is not avro, or has an unknown codec.
    """
    if not MAGIC.startswith(data[:4]):
        raise CorruptionError("the file is not avro: correct its format, or move the file away")
    try:
        found, at = _read_map(data, len(MAGIC))
    except IndexError:
        if len(data) > HEADER_BYTES_MAX:
            raise CorruptionError("the header of the avro file is longer than 16 MiB") from None
        return None
    if len(data) < at + MARKER_BYTES:
        return None
    codec = found.get(b"avro.codec", b"null").decode("utf-8", errors="replace")
    if codec not in _CODECS:
        raise CorruptionError(
            f"the blocks of the avro file have the codec {codec!r}, which tidelog does not read: "
            f"write it with one of {', '.join(_CODECS)}"
        )
    text = found.get(b"avro.schema", b"")
    return AvroHeader(text, codec, data[at : at + MARKER_BYTES], at + MARKER_BYTES)


def _read_map(data: bytes, at: int) -> tuple[Mapping[bytes, bytes], int]:
    """Return the metadata that begin at an offset, and the offset of their end.

    Raises:
        IndexError: the data end before.
    """
    found: dict[bytes, bytes] = {}
    while True:
        count, at = read_long(data, at)
        if count == 0:
            return found, at
        if count < 0:
            count, (_, at) = -count, read_long(data, at)
        for _ in range(count):
            key, at = _read_bytes(data, at)
            found[key], at = _read_bytes(data, at)


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if size < 0:
        raise CorruptionError("the header of the avro file is damaged")
    if len(data) < at + size:
        raise IndexError
    return data[at : at + size], at + size


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset of its end.

    Raises:
        IndexError: the data end before. CorruptionError: the number has more than 64 bits.
    """
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise CorruptionError("the avro file is damaged: a number has more than 64 bits")


def encode_long(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    rest, found = number << 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def marker_end(data: bytes, marker: bytes, place: int, *, base: int = 0) -> int | None:
    """Return the offset after the first marker that ends at ``place`` or later; None without one.

    Shape: ``data`` begin at the offset ``base`` of the file, and ``place`` is an offset of it too.
    """
    found = data.find(marker, max(0, place - base - MARKER_BYTES))
    return None if found < 0 else base + found + MARKER_BYTES


def last_marker_end(data: bytes, marker: bytes, limit: int, *, base: int = 0) -> int | None:
    """Return the offset after the last marker that ends at ``limit`` or before, or None."""
    found = data.rfind(marker, 0, max(0, limit - base))
    return None if found < 0 else base + found + MARKER_BYTES


def pack_blocks(header: bytes, blocks: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + blocks


def unpack_blocks(data: bytes) -> tuple[AvroHeader, bytes]:
    """Return the header of a packed range, and the bytes of its blocks.

    Raises:
        CorruptionError: the header cannot be read.
    """
    size = int.from_bytes(data[:8], "little")
    header = read_header(data[8 : 8 + size])
    if header is None:
        raise CorruptionError("the header of the avro file is incomplete")
    return header, data[8 + size :]


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """A block: its offset in the file, and its bytes without the marker.

    ``is_torn`` is True if the file ends before the block's marker.
    """

    start: int
    data: bytes
    is_torn: bool = False

    @property
    def address(self) -> int:
        """Return the address of the first row."""
        return self.start << ROW_BITS

    def rows(self, header: AvroHeader) -> tuple[int, bytes]:
        """Return the number of rows, and their inflated bytes.

        Raises:
            CorruptionError: the block is damaged, or is too large.
        """
        try:
            count, at = read_long(self.data, 0)
            size, at = read_long(self.data, at)
        except IndexError:
            raise CorruptionError("it ends within its first bytes") from None
        if self.is_torn:
            raise CorruptionError("the file ends within it")
        if size != len(self.data) - at:
            raise CorruptionError(
                f"it has {len(self.data) - at:,} bytes before the file's marker, but says {size:,}"
            )
        if not 0 <= count < ROWS_MAX:
            raise CorruptionError(
                f"it says that it has {count:,} rows; a block has up to 16,777,215"
            )
        if self.start >= FILE_BYTES_MAX:
            raise CorruptionError("it begins after the first 256 GiB of its file")
        rows = inflate(self.data[at:], header.codec)
        if count * header.schema.size_min > len(rows):
            raise CorruptionError(
                f"it says that it has {count:,} rows, but has {len(rows):,} bytes"
            )
        return count, rows


def blocks_in(data: bytes, base: int, marker: bytes) -> Iterator[AvroBlock]:
    """Yield the blocks of ``data``, which begin with one, at the offset ``base`` of the file."""
    at = 0
    while at < len(data):
        # Markers may overlap, as those of zero bytes do. A reader of a part finds each of them.
        found = data.find(marker, max(0, at - MARKER_BYTES + 1))
        if found < 0:
            yield AvroBlock(base + at, data[at:], is_torn=True)
            return
        yield AvroBlock(base + at, data[at:found])
        at = found + MARKER_BYTES


def inflate(data: bytes, codec: str) -> bytes:
    """Return the bytes of a block's rows.

    Raises:
        CorruptionError: they cannot be inflated, or are more than `INFLATED_BYTES_MAX`.
    """
    try:
        found = _inflate(data, codec)
    except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, pa.ArrowException) as error:
        raise CorruptionError(f"its bytes are not {codec}: {type(error).__name__}") from error
    if len(found) > INFLATED_BYTES_MAX:
        raise CorruptionError("it has more than 256 MiB of rows: write smaller blocks")
    return found


def _inflate(data: bytes, codec: str) -> bytes:
    wanted = INFLATED_BYTES_MAX + 1
    if codec == "deflate":
        return _whole(zlib.decompressobj(-15), data, wanted)
    if codec == "bzip2":
        return _whole(bz2.BZ2Decompressor(), data, wanted)
    if codec == "xz":
        return _whole(lzma.LZMADecompressor(), data, wanted)
    if codec == "snappy":
        return _unsnap(data)
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            pieces, size = [], 0
            while size < wanted and (piece := stream.read(_PIECE_BYTES)):
                pieces.append(bytes(piece))
                size += len(piece)
        return b"".join(pieces)
    return data


def _whole(inflater: Any, data: bytes, wanted: int) -> bytes:
    found: bytes = inflater.decompress(data, wanted)
    if len(found) < wanted and not inflater.eof:
        raise EOFError
    return found


def _unsnap(data: bytes) -> bytes:
    """Inflate snappy: its bytes begin with the inflated length, and a checksum is at their end."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > INFLATED_BYTES_MAX:
        return bytes(INFLATED_BYTES_MAX + 1)
    found = bytes(pa.decompress(data[:-4], size, codec="snappy", asbytes=True))
    if zlib.crc32(found) != int.from_bytes(data[-4:], "big"):
        raise ValueError("the checksum differs")
    return found
