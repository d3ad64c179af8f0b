"""A cache, in this process's memory, of the rows that surveys decoded, and reads from it.

Source: design page 6, "Who reads what".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import Decoded
from tidelog.collection.source.kept import DecodedPiece, KeptRows, join_decoded
from tidelog.collection.source.opened import BoundFile, OpenedFile
from tidelog.core.clock import Clock

KEPT_ROWS_BYTES_MAX: Final = 256 * 1024 * 1024


@dataclass(slots=True)
class RowsInMemory:
    """Decoded pieces in memory, up to ``bytes_max`` of Arrow data. It is safe for threads."""

    bytes_max: int = KEPT_ROWS_BYTES_MAX
    _pieces: OrderedDict[tuple[str, int], DecodedPiece] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, piece: DecodedPiece) -> None:
        if piece.size_bytes > self.bytes_max:
            return
        with self._lock:
            key = piece.proof.path, piece.proof.first
            if (before := self._pieces.pop(key, None)) is not None:
                self._bytes -= before.size_bytes
            self._pieces[key] = piece
            self._bytes += piece.size_bytes
            while self._bytes > self.bytes_max:
                self._bytes -= self._pieces.popitem(last=False)[1].size_bytes

    def find(self, path: str, low: int, high: int) -> list[DecodedPiece]:
        with self._lock:
            ours = [piece for (of_path, _), piece in self._pieces.items() if of_path == path]
        return [piece for piece in ours if piece.proof.meets(low, high)]

    def forget(self) -> None:
        with self._lock:
            self._pieces.clear()
            self._bytes = 0


async def read_kept(
    rows: KeptRows, file: OpenedFile, found: FileRange, low: int, high: int, *, clock: Clock
) -> Decoded | None:
    """Return the records of a bound range that start in ``[low, high)``, from the cache.

    Return None if some of them are not cached, or their bytes are not proven to be the bound ones.
    The caller then reads and decodes them.

    Raises:
        SourceRewritten: the file differs from the bound one. GoneError: the file no longer exists.
    """
    kept = await clock.offload(lambda: rows.find(found.path, low, high))
    parts: list[Decoded] = []
    while low < high:
        fitting = (one for one in kept if one.proof.first <= low < one.proof.limit)
        piece = next((one for one in fitting if one.proof.fits(found)), None)
        if piece is None or not await _is_tail_bound(piece, file, found):
            return None
        limit = min(high, piece.proof.limit)
        part = piece.between(low, limit)
        if part is None:
            return None
        parts.append(part)
        low = limit
    return join_decoded(parts) if parts else None


async def _is_tail_bound(piece: DecodedPiece, file: OpenedFile, found: FileRange) -> bool:
    """Return True if the end of a piece's last record, in the next piece's blocks, is as bound.

    If the range ends with the piece or before it, that record is not part of the range.
    """
    high, tail = piece.proof.high, piece.proof.tail
    if not tail or not found.is_summed or found.limit <= high:
        return True
    at, data = await BoundFile(file=file, found=found).get(high, high + len(tail))
    return data[high - at : high - at + len(tail)] == tail
