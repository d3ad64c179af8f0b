"""Decoded pieces: rows that a survey has decoded, cached for the computation of the binding. Pure.

A cached piece never decides a result. It is used only if the binding proves, by sums of blocks or
by the object's version, that the piece was decoded from the bound bytes. Otherwise the bytes are
read and decoded again. A piece of text that is not the last of its file ends with a record that
reaches into the next piece. The bytes there are its ``tail``. The sums of the piece do not cover
them, so a reader compares them with the bound bytes.
Source: design page 6, "Who reads what".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.formats.places import Int64s
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.formats.row_texts import Texts
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.blocks import SUM_BYTES, block_bounds
from tidelog.collection.source.decode import Decoded, TextsNotKept
from tidelog.collection.source.surveyed import Surveyed, SurveyPiece


class PieceProof(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes from which a piece was decoded, with checksums to compare with a binding.

    Shape: the piece has the records that start in ``[first, limit)``. ``sums`` are those of the
        blocks of ``[low, high)``. ``rests`` has the sum of a block's part before an offset. If the
        object's version is the proof, ``e_tag`` is that version and ``sums`` is empty. ``dropped``
        counts values of fields that the schema lacks.
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

    def meets(self, low: int, high: int) -> bool:
        """Return True if the piece may have records that start in ``[low, high)``."""
        return self.first < high and low < self.limit

    def fits(self, found: FileRange) -> bool:
        """Return True if the piece and a bound range have the same bytes where they overlap."""
        if self.header != found.header:
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

    def between(self, low: int, high: int) -> Decoded | None:
        """Return the records that start in ``[low, high)``; None if they cannot be separated.

        The counts of dropped values are those of the whole piece. A part of it cannot have its own.
        """
        proof = self.proof
        if proof.dropped and (low > proof.first or high < proof.limit):
            return None
        return Decoded(
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


def piece_of(
    piece: SurveyPiece, found: Surveyed, decoded: Decoded, *, end: int, tail: bytes
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
    )
    return DecodedPiece(proof, decoded.rows, decoded.errors)


def join_decoded(found: list[Decoded]) -> Decoded:
    """Return the records of adjacent pieces as one."""
    dropped: dict[str, int] = {}
    for one in found:
        for name, count in one.dropped.items():
            dropped[name] = dropped.get(name, 0) + count
    return Decoded(
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
