"""Compressed text files: their detection, and the facts about one that a binding stores. Pure.

Offsets of records and ranges of such a file are those of its decompressed text. A file has one or
more members (frames, in zstd). Each member can be decompressed by itself. Bytes after the last
whole member count as not written yet.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tidelog.errors import CorruptionError

Codec = Literal["gzip", "zstd"]

PACKED_RATIO: Final = 8  # The usual ratio of the sizes of text and compressed text.
# The formats that are not text. They compress parts of themselves, so a file is not one stream.
BINARY_FORMATS: Final = frozenset({"parquet", "avro"})
SUFFIXES: Final[dict[str, Codec]] = {".gz": "gzip", ".zst": "zstd"}


class PackedRange(msgspec.Struct, frozen=True, array_like=True):
    """The place of a range in a compressed file.

    Shape: the file's first ``whole_bytes`` are whole members with ``text_bytes`` of text. ``tail``
        is the sum of the last ``tail_bytes`` of these. A read of the range begins at byte
        ``raw_at`` with a member whose text begins at ``text_at``, and ends before byte
        ``raw_limit``. ``text_head`` is the sum of the text's first ``text_head_bytes``. It
        identifies the file after a tool has decompressed it, or compressed it by another codec.
    """

    whole_bytes: int = 0
    text_bytes: int = 0
    tail: bytes = b""
    tail_bytes: int = 0
    raw_at: int = 0
    text_at: int = 0
    raw_limit: int = 0
    text_head: bytes = b""
    text_head_bytes: int = 0

    def file_bytes(self, limit: int) -> int:
        """Return about how many bytes of the file contain the text before ``limit``."""
        if limit >= self.text_bytes:
            return self.whole_bytes
        return self.whole_bytes * limit // self.text_bytes


def codec_of(path: str) -> Codec | None:
    """Return the codec of a compressed file, by the suffix of its name."""
    return next((codec for end, codec in SUFFIXES.items() if path.lower().endswith(end)), None)


def is_packed(path: str, format: str) -> bool:
    """Return True if a file is one compressed stream; others compress parts of it."""
    return format not in BINARY_FORMATS and codec_of(path) is not None


def encode_packed(packed: PackedRange | None) -> bytes:
    """Return the bytes for the remap shard; b"" for a file that is not compressed."""
    return b"" if packed is None else msgspec.msgpack.encode(packed)


def decode_packed(data: bytes) -> PackedRange | None:
    """Return the value that `encode_packed` has encoded.

    Raises:
        CorruptionError: the bytes do not encode one.
    """
    try:
        return msgspec.msgpack.decode(data, type=PackedRange) if data else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            "the stored position in a compressed file cannot be decoded: restore the "
            "shard of the source's progress, or drop the source and create it again"
        ) from error
