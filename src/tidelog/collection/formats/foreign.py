"""Detection of files that are not UTF-8 text, or whose lines end with a carriage return. Pure."""

from __future__ import annotations

import codecs
from typing import Final

_COMPRESSED: Final = (
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x1f\x9d", "compress"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"PK\x03\x04", "zip"),
)
_RENAMED: Final = ((b"\x1f\x8b", "gzip", ".gz"), (b"\x28\xb5\x2f\xfd", "zstd", ".zst"))
_FORMATS: Final = (
    (b"PAR1\x15", "parquet"),
    (b"Obj\x01", "avro"),
    (b"ARROW1\x00\x00", "arrow"),
    (b"SQLite format 3\x00", "sqlite"),
)
# The level is followed by a block, or by the end.
_BZIP2_BLOCKS: Final = (b"1AY&SY", b"\x17rE8P\x90")


def why_foreign(begin: bytes) -> str | None:
    """Return the reason why a file with this beginning is not UTF-8 text; None if it may be."""
    for magic, name in _COMPRESSED:
        if begin.startswith(magic) and (name != "bzip2" or begin[4:10] in _BZIP2_BLOCKS):
            return f"it is compressed with {name}, which is not supported: use gzip or zstd"
    for magic, name, ending in _RENAMED:
        if begin.startswith(magic):
            return f"it is compressed with {name}: give it a name that ends in {ending}"
    for magic, name in _FORMATS:
        if begin.startswith(magic):
            return f"its format is {name}: choose that format, or move the file away"
    start = begin[:64]
    if len(start) >= 8 and not start.strip(b"\x00"):
        return (
            "it begins with zero bytes, as after a crash of its writer: write it again, or move it "
            "away"
        )
    if is_wide(begin):
        return (
            "it is text in UTF-16 or UTF-32, but tidelog reads UTF-8: convert it, as iconv -f "
            "UTF-16 -t UTF-8 does"
        )
    return None


def is_wide(text: bytes) -> bool:
    """Return True if text is UTF-16 or UTF-32, by its byte order mark or by its zero bytes."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return True
    start = text[:64]
    return len(start) >= 8 and max(start[0::2].count(0), start[1::2].count(0)) >= len(start) // 2


def has_old_line_ends(data: bytes, quote: bytes) -> bool:
    """Return True if lines end with a carriage return alone, and none with a line feed.

    A carriage return at the very end does not count, because a line feed may follow. One in quotes
    is part of a field.
    """
    place = data.rstrip(b"\r").find(b"\r")
    if place < 0 or b"\n" in data:
        return False
    return not quote or data.count(quote, 0, place) % 2 == 0


OLD_LINE_ENDS: Final = (
    "its lines end with a carriage return only: write line feeds, as tr '\\r' '\\n' does"
)
