"""The tail: the loose records of the wal, as this process knows them.

The records that this process appends are in memory. For the others, it knows the fragments and
caches some of those that it has read. Memory is bounded; other records are read from the store
again.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.errors import ObjectNotFound
from tidelog.keyed.format.marker import marks_in
from tidelog.keyed.read.piece import LoosePiece, in_range, keyed_records
from tidelog.store.port import Store
from tidelog.store.wrappers.flights import SharedCalls
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import plain
from tidelog.wal.format.snapshot import overlaps
from tidelog.wal.read.head import load_past
from tidelog.wal.slot_protocol.reader import SlotReader

MEMORY_BYTES: Final = 256 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class LooseTail:
    """Consecutive pieces of the wal at the root of ``store``.

    Units: up to ``memory_bytes`` of records that were read or appended are kept.
    """

    store: Store
    clock: Clock
    memory_bytes: int = MEMORY_BYTES
    pieces: list[LoosePiece] = field(default_factory=list)
    next: int = 1
    oldest: int = 1
    is_behind: bool = True
    _kept_bytes: int = field(init=False, default=0)
    _cuts: int = field(init=False, default=0)
    _ahead: list[LoosePiece] | None = field(init=False, default=None)
    reader: SlotReader = field(init=False)
    _kept: OrderedDict[LoosePiece, int] = field(init=False, default_factory=OrderedDict)
    _calls: SharedCalls[LoosePiece, pa.Table] = field(init=False, default_factory=SharedCalls)

    def __post_init__(self) -> None:
        self.reader = SlotReader(store=self.store, clock=self.clock)

    async def refresh(self, compacted: int) -> None:
        """Read which fragments other processes have appended; drop those that are compacted.

        Raises:
            NoSuchLog: the wal is gone. CorruptionError, LocationError: it cannot be read.
        """
        self.forget(compacted)
        self._ahead, cuts = [], self._cuts
        try:
            await self._refresh(compacted)
            self.is_behind = self._cuts > cuts
        finally:
            ahead, self._ahead = self._ahead, None
        for piece in sorted(ahead, key=lambda one: one.start):
            self.add(piece)

    async def _refresh(self, compacted: int) -> None:
        while True:
            start = self._reached(compacted)
            end = await self.reader.end()
            try:
                named = await self.reader.tree.fragments_of(end.manifest, start=start, limit=None)
            except ObjectNotFound as error:
                await load_past(self.store, end.manifest, error)
                continue
            if self._reached(compacted) >= start:
                break  # Otherwise, known pieces were dropped during the request: read again.
        past = [plain(one) for one in end.fragments if overlaps(one, start, None)]
        # This process may have appended during the request, and know more.
        start = max(start, self._reached(compacted))
        for one in [*named, *past]:
            if one.limit > start:
                self.pieces.append(
                    LoosePiece(start=max(one.start, start), limit=one.limit, fragment=one)
                )
                start = one.limit
        self.next = max(self.next, end.tail.position)
        self.oldest = end.manifest.oldest

    def lag(self) -> None:
        """Force the next read to refresh, because other processes may have written."""
        self.is_behind = True
        self._cuts += 1

    def forget(self, compacted: int) -> None:
        """Drop the pieces that are compacted."""
        self.next = max(self.next, compacted)
        kept = [piece for piece in self.pieces if piece.limit > compacted]
        for piece in self.pieces:
            if piece.limit <= compacted:
                self._drop(piece)
        self.pieces = kept

    def add(self, piece: LoosePiece) -> None:
        """Add records that this process has appended and that are durable."""
        if piece.start > self.next or self.is_behind:
            self.is_behind = True  # A gap: an earlier piece is not known. A refresh finds both.
            if self._ahead is not None:
                self._ahead.append(piece)  # A refresh is under way, and may not read this far.
            return
        if piece.limit <= self.next:
            return
        self.pieces.append(piece)
        self.next = piece.limit
        self._keep(piece)

    async def records(self, piece: LoosePiece) -> pa.Table:
        """Return the records of a piece, from memory or from the store.

        Raises:
            ObjectNotFound: it was compacted and collected concurrently. CorruptionError: it was
                changed. LocationError: the store failed.
        """
        if piece.records is not None:
            with suppress(KeyError):
                self._kept.move_to_end(piece)
            return piece.records
        if piece.fragment is None:
            raise ObjectNotFound("records in memory were released: read again")
        # Concurrent callers share one fetch.
        fetch = partial(self._fetch, piece, piece.fragment)
        return await self._calls.wait(piece, self._calls.join(piece, fetch))

    async def _fetch(self, piece: LoosePiece, fragment: Fragment) -> pa.Table:
        found = await self.reader.records.fetch(fragment)
        records = await self.clock.offload(partial(keyed_records, found))
        # One fragment may hold several appends. Its first records may belong to another piece,
        # which this process knows from memory.
        records = in_range(records, piece.start, piece.limit)
        piece.marks = await self.clock.offload(partial(marks_in, found))
        if piece.records is None:
            piece.records = records
            self._keep(piece)
        return records

    def _reached(self, compacted: int) -> int:
        return max(compacted, self.pieces[-1].limit if self.pieces else compacted)

    def _keep(self, piece: LoosePiece) -> None:
        """Keep a piece's records in memory; past the limit, drop other records, or all."""
        self._drop(piece)
        self._kept[piece] = piece.nbytes
        self._kept_bytes += self._kept[piece]
        if self._kept_bytes <= self.memory_bytes:
            return
        for old in list(self._kept):
            if self._kept_bytes <= self.memory_bytes:
                return
            if old.fragment is not None:
                self._drop(old)
                old.forget_records()
        if self._kept_bytes > self.memory_bytes:
            self._forget_own()

    def _drop(self, piece: LoosePiece) -> None:
        """Remove a piece from the memory count."""
        self._kept_bytes -= self._kept.pop(piece, 0)

    def _forget_own(self) -> None:
        """Drop this process's own appends whose fragments are not known.

        The tail then ends before them, until a refresh finds them in the store.
        """
        at = next(n for n, one in enumerate(self.pieces) if one.fragment is None)
        self.next, self.is_behind = self.pieces[at].start, True
        self._cuts += 1
        for one in self.pieces[at:]:
            self._drop(one)
        del self.pieces[at:]
