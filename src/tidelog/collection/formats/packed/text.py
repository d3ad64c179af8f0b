"""The text of a compressed file, from a local copy of its bytes.

Memory is bounded, however large the text is. A caller gets text in the pieces that it asks for. A
file with an extremely long record, or with a ratio of text to bytes that no ordinary file has, is
refused.
All calls block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Final

from tidelog.collection.formats.packed.inflate import open_inflater
from tidelog.collection.formats.packed.packed import Codec
from tidelog.errors import CorruptionError

PIECE_BYTES: Final = 1024 * 1024
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
FREE_TEXT_BYTES: Final = 1024 * 1024 * 1024
RATIO_MAX: Final = 2_000  # The limit of gzip is 1032, and ordinary text seldom reaches 100.
TORN_MEMBER: Final = (
    "its compressed data is incomplete: another process is writing it, or it was truncated"
)

HasEnd = Callable[[bytes], bool]  # Returns True if a record ends in a text, at or after its limit.


@dataclass(frozen=True, slots=True)
class Extent:
    """The whole part of a file, in bytes of the file and of its text.

    ``torn`` is True if more bytes follow, which are not a whole member.
    """

    whole_bytes: int
    text_bytes: int
    torn: bool


class PackedText:
    """A reader of text in order. It keeps the text of the last call, which may be read again."""

    def __init__(self, raw: BinaryIO, codec: Codec, *, at: int, text_at: int) -> None:
        self._inflater = open_inflater(raw, codec, at=at, text_at=text_at)
        self._kept, self._kept_at = b"", text_at
        self.member = at, text_at  # The last member that begins before the requested text.
        self.raw_at = at

    @property
    def first(self) -> int:
        """Return the first offset of the text that can still be read."""
        return self._kept_at

    def get(self, start: int, size: int, has_end: HasEnd | None = None) -> bytes:
        """Return ``size`` bytes of text from ``start``, or fewer at the end of the file.

        With ``has_end``, read on until it is True, or to a limit.

        Raises:
            CorruptionError: the file is damaged before the end of the result.
        """
        pieces = self._skip_to(start)
        found, wanted = sum(map(len, pieces)), size
        while True:
            while found < wanted and (more := self._inflater.read(PIECE_BYTES)):
                pieces.append(more)
                found += len(more)
            data = b"".join(pieces)
            more_allowed = found >= wanted and found < size + RECORD_BYTES_MAX
            if has_end is None or not more_allowed or has_end(data):
                break
            pieces, wanted = [data], found + max(PIECE_BYTES, found - size)
        self._kept, self._kept_at = data, start
        self.raw_at = self._inflater.raw_at
        return data

    def _skip_to(self, start: int) -> list[bytes]:
        """Read up to ``start``; return the text after it that is read already."""
        at, piece = self._kept_at, self._kept
        while at + len(piece) <= start:
            at += len(piece)
            self._pass(start)
            piece = self._inflater.read(PIECE_BYTES)
            if not piece:
                break
        self._pass(start)
        return [piece[start - at :]]

    def _pass(self, start: int) -> None:
        if self._inflater.member[1] <= start:
            self.member = self._inflater.member

    def measure(self, *, by_lines: bool) -> Extent:
        """Read to the end of the file without keeping the text; return the whole part.

        Raises:
            CorruptionError: the file is damaged, or its text is too long. With ``by_lines``, also
                if a record is too long.
        """
        inflater, end = self._inflater, self._kept_at + len(self._kept)
        record = len(self._kept) - (self._kept.rfind(b"\n") + 1)
        while piece := inflater.read(PIECE_BYTES):
            end += len(piece)
            line = piece.rfind(b"\n")
            record = record + len(piece) if line < 0 else len(piece) - line - 1
            if by_lines and record > RECORD_BYTES_MAX:
                raise CorruptionError(
                    f"it is not decompressed: one of its lines has over {RECORD_BYTES_MAX >> 20} "
                    "MiB"
                )
            if end > max(FREE_TEXT_BYTES, inflater.raw_at * RATIO_MAX):
                raise CorruptionError(
                    f"it is not decompressed: its text is over {RATIO_MAX:,} times as large as "
                    "the file"
                )
        whole, text = inflater.member if inflater.torn else (inflater.raw_at, end)
        return Extent(whole, text, inflater.torn)
