"""The cache of decoded pieces: rows that a survey has decoded, for the computation of the binding.

A cached piece never decides a result. It is used only if the binding proves, by sums of blocks or
by the object's version, that the piece was decoded from the bound bytes. Otherwise the bytes are
read and decoded again. A piece of text that is not the last of its file ends with a record that
reaches into the next piece. The bytes there are its ``tail``. The sums of the piece do not cover
them, so a reader compares them with the bound bytes.
Source: design page 6, "Who reads what".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.formats.lines import Int64s
from tidelog.collection.formats.records import OFFSET, Texts
from tidelog.collection.source.binding import SUM_BYTES, FileRange, block_bounds
from tidelog.collection.source.decode import DecodedRows, TextsNotKept
from tidelog.collection.source.fetch import BoundFile, OpenedFile
from tidelog.collection.source.survey_facts import SurveyFacts, SurveyPiece
from tidelog.core.clock import Clock

KEPT_ROWS_BYTES_MAX: Final = 256 * 1024 * 1024


class PieceProof(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes from which a piece was decoded, with checksums to compare with a binding.

    Shape: the piece has the records that start in ``[first, limit)``. ``sums`` are those of the
        blocks of ``[low, high)``. ``rests`` has the sum of a block's part before an offset. If the
        object's version is the proof, ``e_tag`` is that version and ``sums`` is empty. ``dropped``
        counts values of fields that the schema of the ``schema_id`` lacks.
    """

    path: str
    first: int
    limit: int
    low: int
    high: int
    block_bytes: int
    sums: bytes = b""
    rests: dict[int, bytes] = {}
    e_tag: str = ""
    header: bytes = b""
    tail: bytes = b""
    dropped: dict[str, int] = {}
    schema_id: int = 0

    def meets(self, low: int, high: int) -> bool:
        """Return True if the piece may have records that start in ``[low, high)``."""
        return self.first < high and low < self.limit

    def fits(self, found: FileRange) -> bool:
        """Return True if the piece and a bound range have the same bytes where they overlap."""
        if self.header != found.header or self.schema_id != found.schema_id:
            return False
        if not found.is_summed:
            return bool(self.e_tag) and self.e_tag == found.e_tag
        if not self.sums or self.block_bytes != found.block_bytes:
            return False
        limit = min(self.high, found.limit)
        bounds = block_bounds(max(self.low, found.start), limit, self.block_bytes)
        return all(
            self._sum_of(low, high) == _sum_at(found.sums, low, found.start, self.block_bytes)
            for low, high in pairwise(bounds)
        )

    def _sum_of(self, low: int, high: int) -> bytes | None:
        """Return the sum of the block at ``low``, or of its part before ``high`` if known."""
        if high != self.high and high % self.block_bytes:
            return self.rests.get(high)
        return _sum_at(self.sums, low, self.low, self.block_bytes)


def _sum_at(sums: bytes, low: int, start: int, block_bytes: int) -> bytes:
    first = (low // block_bytes - start // block_bytes) * SUM_BYTES
    return sums[first : first + SUM_BYTES]


@dataclass(frozen=True, slots=True)
class DecodedPiece:
    """The rows and the bad records of a piece of a file, with the proof of their bytes."""

    proof: PieceProof
    rows: pa.Table
    errors: pa.Table

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes + self.errors.nbytes

    def between(self, low: int, high: int) -> DecodedRows | None:
        """Return the records that start in ``[low, high)``; None if they cannot be separated.

        The counts of dropped values are those of the whole piece. A part of it cannot have its own.
        """
        proof = self.proof
        if proof.dropped and (low > proof.first or high < proof.limit):
            return None
        return DecodedRows(
            _between(self.rows, OFFSET, low, high),
            _between(self.errors, "offset", low, high),
            proof.dropped,
            _no_texts,
        )


KeepRows = Callable[[DecodedPiece], None]


class KeptRows(Protocol):
    """A cache of decoded pieces, with a bound on its size; it evicts the oldest pieces first."""

    def keep(self, piece: DecodedPiece) -> None:
        """Store a piece, if it fits within the bound."""
        ...

    def find(self, path: str, low: int, high: int) -> list[DecodedPiece]:
        """Return the cached pieces of a file that may have records that start in ``[low, high)``.

        A piece that was damaged in the cache is not returned.
        """
        ...

    def forget(self) -> None:
        """Remove all pieces: the bindings that could use them are computed, or never will be."""
        ...


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
) -> DecodedRows | None:
    """Return the records of a bound range that start in ``[low, high)``, from the cache.

    Return None if some of them are not cached, or their bytes are not proven to be the bound ones.
    The caller then reads and decodes them.

    Raises:
        SourceRewritten: the file differs from the bound one. GoneError: the file no longer exists.
    """
    kept = await clock.offload(lambda: rows.find(found.path, low, high))
    parts: list[DecodedRows] = []
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


def piece_of(
    piece: SurveyPiece,
    found: SurveyFacts,
    decoded: DecodedRows,
    *,
    end: int,
    tail: bytes,
    schema_id: int,
) -> DecodedPiece:
    """Return the decoded records of a survey's piece, in the form for the cache.

    ``end`` is the end of the last record, and ``tail`` are the bytes of it after the piece.
    """
    asked, (first, limit) = piece.candidate, piece.window
    high, limit = (end, end) if piece.is_last else (piece.high, min(limit, end))
    places = (p for b in found.blocks for p in (b.first, b.rise, b.change) if p is not None)
    proof = PieceProof(
        path=asked.path,
        first=first,
        limit=limit,
        low=piece.low,
        high=high,
        block_bytes=asked.block_bytes,
        sums=found.sums,
        rests={place.offset: place.rest for place in places},
        e_tag="" if found.sums else asked.e_tag,
        header=found.header,
        tail=tail,
        dropped=dict(decoded.dropped),
        schema_id=schema_id,
    )
    return DecodedPiece(proof, decoded.rows, decoded.errors)


def join_decoded(found: list[DecodedRows]) -> DecodedRows:
    """Return the records of adjacent pieces as one."""
    dropped: dict[str, int] = {}
    for one in found:
        for name, count in one.dropped.items():
            dropped[name] = dropped.get(name, 0) + count
    return DecodedRows(
        pa.concat_tables([one.rows for one in found]),
        pa.concat_tables([one.errors for one in found]),
        dropped,
        _no_texts,
    )


def _between(table: pa.Table, name: str, low: int, high: int) -> pa.Table:
    offsets = table.column(name).to_numpy()
    first, limit = np.searchsorted(offsets, [low, high]).tolist()
    return table.slice(first, limit - first)


def _no_texts(_: Int64s) -> Texts:
    raise TextsNotKept
