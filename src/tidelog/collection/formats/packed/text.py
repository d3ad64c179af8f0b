"""The text of a compressed file, out of its bytes, which lie in a file of this process.

Memory is bounded, whatever the file makes of itself once decompressed: text is given out in the
pieces that are asked for, and a file that holds a record of no sensible length, or far more text
than anybody compresses so, is not taken at all.
Everything here blocks.
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
RATIO_MAX: Final = 2_000  # Gzip cannot do better than 1032; text that is data seldom gets to 100.
TORN_MEMBER: Final = (
    "it ends in the middle of what was compressed: it is being written, or was cut off"
)

HasEnd = Callable[[bytes], bool]  # Says whether a record ends in some text, far enough in it.


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a file is whole, in bytes of the file and of its text; ``torn``: more is not."""

    whole_bytes: int
    text_bytes: int
    torn: bool


class PackedText:
    """Reads on from where it stands; what was read last is kept, and may be asked for again."""

    def __init__(self, raw: BinaryIO, codec: Codec, *, at: int, text_at: int) -> None:
        self._inflater = open_inflater(raw, codec, at=at, text_at=text_at)
        self._kept, self._kept_at = b"", text_at
        self.member = at, text_at  # The last one that begins before what was asked for.
        self.raw_at = at

    @property
    def first(self) -> int:
        """Where the text begins that can still be asked for."""
        return self._kept_at

    def get(self, start: int, size: int, has_end: HasEnd | None = None) -> bytes:
        """Return text from ``start`` on: ``size`` bytes, and on until ``has_end``, or less.

        Raises:
            CorruptionError: the file is damaged before that.
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
        """Return what is known of the text from ``start`` on, reading as far as to there."""
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
        """Read to the end, keeping nothing more, and say how much is whole.

        Raises:
            CorruptionError: something is damaged, or it is too much: of a record where these end
                ``by_lines``, or of all.
        """
        inflater, end = self._inflater, self._kept_at + len(self._kept)
        record = len(self._kept) - (self._kept.rfind(b"\n") + 1)
        while piece := inflater.read(PIECE_BYTES):
            end += len(piece)
            line = piece.rfind(b"\n")
            record = record + len(piece) if line < 0 else len(piece) - line - 1
            if by_lines and record > RECORD_BYTES_MAX:
                raise CorruptionError(
                    f"it is not decompressed: a line of it has over {RECORD_BYTES_MAX >> 20} MiB"
                )
            if end > max(FREE_TEXT_BYTES, inflater.raw_at * RATIO_MAX):
                raise CorruptionError(
                    f"it is not decompressed: it holds over {RATIO_MAX:,} times as much as it takes"
                )
        whole, text = inflater.member if inflater.torn else (inflater.raw_at, end)
        return Extent(whole, text, inflater.torn)
