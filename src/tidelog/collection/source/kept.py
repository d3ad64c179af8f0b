"""Decoded pieces: what a survey decoded, kept for whoever computes what was bound of it.

What is kept decides nothing. It is used where the binding proves that its bytes are those that were
decoded, by the sums of their blocks or by the object's version; else they are read and decoded
anew. A piece of text, but the last of a file, ends with a record that reaches into the next one:
those bytes are its ``tail``, which whoever uses it compares with what was bound. Pure.
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
    """Which bytes of a file a decoded piece was made of, and how they are known again.

    Shape: records count that start in ``[first, limit)``; ``sums`` are those of the blocks of
        ``[low, high)``, ``rests`` those of the part of a block before an offset. Where an object's
        version is the proof, ``e_tag`` is it, and there are no sums. ``dropped`` counts fields that
        the schema lacks.
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
        """Say whether records that start in ``[low, high)`` may be among its own."""
        return self.first < high and low < self.limit

    def fits(self, found: FileRange) -> bool:
        """Say whether the bytes of a bound range are those of this piece, where the two meet."""
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
        """Return the sum of the block that begins at ``low``, or of its part before ``high``."""
        if high != self.high and high % self.block_bytes:
            return self.rests.get(high)
        return _sum_at(self.sums, low, self.low, self.block_bytes)


def _sum_at(sums: bytes, low: int, start: int, block_bytes: int) -> bytes:
    first = (low // block_bytes - start // block_bytes) * SUM_BYTES
    return sums[first : first + SUM_BYTES]


@dataclass(frozen=True, slots=True)
class DecodedPiece:
    """The rows and the bad records of a piece of a file, and what proves that they are."""

    proof: PieceProof
    rows: pa.Table
    errors: pa.Table

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes + self.errors.nbytes

    def between(self, low: int, high: int) -> Decoded | None:
        """Return the records that start in ``[low, high)``; None if that is not known of them."""
        proof = self.proof
        if proof.dropped and (low > proof.first or high < proof.limit):
            return None  # Of fields that the schema lacks, it is not known which record had them.
        return Decoded(
            _between(self.rows, OFFSET, low, high),
            _between(self.errors, "offset", low, high),
            proof.dropped,
            _no_texts,
        )


KeepRows = Callable[[DecodedPiece], None]


class KeptRows(Protocol):
    """Where decoded pieces are kept, up to a bound: those that were kept first go first."""

    def keep(self, piece: DecodedPiece) -> None:
        """Keep a piece, if there is room for it."""
        ...

    def find(self, path: str, low: int, high: int) -> list[DecodedPiece]:
        """Return the kept pieces of a file that may have records that start in ``[low, high)``.

        They are what was kept, or are not returned.
        """
        ...

    def forget(self) -> None:
        """Let go of what is of no more use: all that was kept has been computed, or never will."""
        ...


def piece_of(
    piece: SurveyPiece, found: Surveyed, decoded: Decoded, *, end: int, tail: bytes
) -> DecodedPiece:
    """Return what was decoded of a piece, as it is kept: its records that end at ``end`` or before.

    ``tail`` are the bytes of the last of them that lie behind the piece.
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
    """Return what was decoded of pieces that follow each other as one."""
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
