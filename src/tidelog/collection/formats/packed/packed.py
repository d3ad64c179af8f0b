"""Compressed files of text: which they are, and what a binding says of one beside its range. Pure.

All offsets of such a file's records, and of its ranges, are those of its text as it is once
decompressed. A file is one or more members (of zstd: frames), each whole in itself: what is behind
the last whole one is not there yet.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tidelog.errors import CorruptionError

Codec = Literal["gzip", "zstd"]

PACKED_RATIO: Final = 8  # About how much longer text is than what it was compressed to.
SUFFIXES: Final[dict[str, Codec]] = {".gz": "gzip", ".zst": "zstd"}


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Where a range of a compressed file lies in that file.

    Shape: the file's first ``whole_bytes`` are whole members, which hold ``text_bytes`` of text;
        ``tail`` is the sum of the last ``tail_bytes`` of them. Who reads the range begins with the
        member at byte ``raw_at``, whose text begins at ``text_at``, and needs no byte of the file
        from ``raw_limit`` on. ``text_head`` is the sum of the text's first ``text_head_bytes``: by
        it the file is known after it is decompressed, or compressed otherwise.
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
        """Return about how many bytes of the file hold the text before ``limit``."""
        if limit >= self.text_bytes:
            return self.whole_bytes
        return self.whole_bytes * limit // self.text_bytes


def codec_of(path: str) -> Codec | None:
    """Return how a file is compressed, as its name says."""
    return next((codec for end, codec in SUFFIXES.items() if path.lower().endswith(end)), None)


def is_packed(path: str, format: str) -> bool:
    """Say whether a file has to be decompressed as one stream; parquet is compressed within."""
    return format != "parquet" and codec_of(path) is not None


def encode_packed(packed: Packed | None) -> bytes:
    """Return what the remap shard keeps; nothing of a file that is not compressed."""
    return b"" if packed is None else msgspec.msgpack.encode(packed)


def decode_packed(data: bytes) -> Packed | None:
    """Read what the remap shard keeps; see `encode_packed`.

    Raises:
        CorruptionError: it is nothing of the kind.
    """
    try:
        return msgspec.msgpack.decode(data, type=Packed) if data else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError("where a compressed file was read to cannot be read") from error
