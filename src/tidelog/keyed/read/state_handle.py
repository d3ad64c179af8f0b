"""A handle's knowledge of a keyed log: its state, its loose records, and the view of both.

Invariants: a view has no gaps. The state is read before the wal, and again if the wal was collected
    past the state concurrently.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.ids import NamedKind, named_id
from tidelog.core.lookahead import SharedCalls
from tidelog.errors import ContentionError, ObjectNotFound
from tidelog.keyed.format.records import in_range, keyed_records, marks_in
from tidelog.keyed.read.part_reader import RunPartReader
from tidelog.keyed.read.run_objects import DirectoryCache
from tidelog.keyed.read.sources import LoosePiece, PieceSource, RunSource, Source
from tidelog.keyed.states.language import KeyedLanguage, prefix_of
from tidelog.keyed.states.state import KeyedDiff, KeyedState
from tidelog.keyed.states.transition import check_living, no_checkpoint
from tidelog.machine.machine import Machine
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import plain
from tidelog.wal.format.manifest import overlaps, problems_of_manifest
from tidelog.wal.read.head import Head, load_past
from tidelog.wal.slot_protocol.reader import SlotReader


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedView:
    """Sources in sequence order, and the next sequence after them."""

    state: KeyedState
    sources: tuple[Source, ...]
    next: int

    @property
    def oldest(self) -> int:
        return self.state.retired

    def between(self, start: int, limit: int | None) -> list[Source]:
        """Return the sources that overlap the sequences ``[start, limit)``."""
        upper = self.next if limit is None else min(limit, self.next)
        return [source for source in self.sources if source.upper > start and source.lower < upper]


WALS: Final = "keylog/"
TRIES: Final = 10


@dataclass(slots=True, kw_only=True)
class KeyedStateHandle:
    """A keyed log as this process knows it."""

    name: str
    store: Store
    consensus: Consensus
    clock: Clock
    # The URL by which other processes open the store, if the store's own is not suitable.
    location_url: str = ""
    machine: Machine[KeyedState, KeyedDiff] = field(init=False)
    parts: RunPartReader = field(init=False)
    refreshed_us: int | None = None
    _tail: LooseTail | None = None
    _begun: int = 0
    _done: int = 0
    _lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.machine = Machine(
            key=named_id(NamedKind.KEYED, self.name),
            prefix=prefix_of(self.name),
            language=KeyedLanguage(self.name),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )
        self.parts = RunPartReader(self.store, self.clock, DirectoryCache())

    @property
    def state(self) -> KeyedState:
        return self.machine.state

    @property
    def tail(self) -> LooseTail:
        """The known loose records; only valid after the state was read once."""
        if self._tail is None:
            self._tail = LooseTail(store=self.wal, clock=self.clock)
        return self._tail

    @property
    def wal_name(self) -> str:
        """The name of the log's wal, among those of keyed logs."""
        return self.state.wal or self.name

    @property
    def wal(self) -> Within:
        """The folder of the log's wal; it never changes once the log exists."""
        return Within(self.store, f"{WALS}{self.wal_name}")

    def beside(self, name: str) -> KeyedStateHandle:
        """Return a handle's view of another log of the same location; nothing is read yet."""
        return KeyedStateHandle(
            name=name, store=self.store, consensus=self.consensus, clock=self.clock
        )

    async def refresh(self, *, unless_since_us: int | None = None) -> None:
        """Read the commits of other processes, unless this was done after ``unless_since_us``.

        Concurrent callers share a read, if it began after they called.

        Raises:
            NoSuchLog: the log is gone. CorruptionError, LocationError: it cannot be read.
        """
        asked = self._begun
        async with self._lock:
            tail, known_us = self._tail, self.refreshed_us
            # While the tail is behind, this process's own appends are in no view, so read again.
            if tail is not None and not tail.is_behind:
                if (
                    known_us is not None
                    and unless_since_us is not None
                    and known_us > unless_since_us
                ):
                    return
                if self._done > asked:
                    return
            self._begun += 1
            begun, begun_us = self._begun, self.clock.monotonic_us()
            for _ in range(TRIES):
                state = await self.machine.refresh()
                check_living(state)
                await self.tail.refresh(state.compacted)
                if self.tail.oldest > state.compacted:
                    # The tail may have a gap after this state, so read the state again.
                    self.tail.lag()
                if not self.tail.is_behind:
                    self.refreshed_us, self._done = begun_us, begun
                    return
        raise ContentionError(
            f"gave up after {TRIES} tries: other processes kept compacting and collecting the log "
            "during the read; try again"
        )

    def view(self, pending: Sequence[LoosePiece] = ()) -> KeyedView:
        """Return a view of all readable records, followed by the ordered ones of ``pending``."""
        state, compacted = self.state, self.state.compacted
        runs: list[Source] = [
            RunSource(run, self.parts) for run in state.runs if run.upper > state.retired
        ]
        pieces: list[LoosePiece] = []
        following = compacted
        for piece in self.tail.pieces:
            if piece.start > following:
                break  # The records in between are in runs, which the next state names.
            if piece.limit > compacted:
                pieces.append(piece)
                following = piece.limit
        for piece in pending:
            if piece.limit <= following:
                # A refresh read these records from the store before the writer received its answer.
                continue
            if piece.start != following:
                break  # These records are being placed again.
            pieces.append(piece)
            following = piece.limit
        loose = [PieceSource(piece, self.tail.records, compacted) for piece in pieces]
        return KeyedView(state=state, sources=(*runs, *loose), next=following)

    def view_at(self, checkpoint: str) -> KeyedView:
        """Return a view of a checkpoint.

        Raises:
            NoSuchCheckpoint: no such checkpoint.
        """
        entry = self.state.checkpoints.get(checkpoint)
        if entry is None:
            raise no_checkpoint(checkpoint)
        state = replace(
            self.state,
            runs=entry.runs,
            retired=entry.retired,
            compacted=entry.compacted,
            seals=entry.seals,
            first_segment=entry.first_segment,
        )
        runs = tuple(RunSource(run, self.parts) for run in entry.runs)
        return KeyedView(state=state, sources=runs, next=entry.compacted)


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
    _head: Head | None = field(init=False, default=None)
    _ahead: list[LoosePiece] | None = field(init=False, default=None)
    reader: SlotReader = field(init=False)
    _kept: OrderedDict[LoosePiece, int] = field(init=False, default_factory=OrderedDict)
    _calls: SharedCalls[LoosePiece, pa.Table] = field(init=False, default_factory=SharedCalls)

    def __post_init__(self) -> None:
        self.reader = SlotReader(store=self.store, clock=self.clock)

    def remember(self, head: Head) -> None:
        """Keep the head of the wal as its opener read it, so that the next read need not decode it.

        The next read reports the faults of a head that contradicts itself.
        """
        if not problems_of_manifest(head.manifest):
            self._head = head

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
        for piece in sorted(ahead, key=lambda loose: loose.start):
            self.add(piece)

    async def _refresh(self, compacted: int) -> None:
        while True:
            start = self._reached(compacted)
            end = await self.reader.walker.end(known=self._head)
            self._head = end.head
            try:
                named = await self.reader.tree.fragments_of(end.manifest, start=start, limit=None)
            except ObjectNotFound as error:
                await load_past(self.store, end.manifest, error)
                continue
            if self._reached(compacted) >= start:
                break  # Otherwise, known pieces were dropped during the request: read again.
        past = [plain(fragment) for fragment in end.fragments if overlaps(fragment, start, None)]
        # This process may have appended during the request, and know more.
        start = max(start, self._reached(compacted))
        for fragment in [*named, *past]:
            if fragment.limit > start:
                self.pieces.append(
                    LoosePiece(
                        start=max(fragment.start, start), limit=fragment.limit, fragment=fragment
                    )
                )
                start = fragment.limit
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
        wal_records = await self.reader.records.fetch(fragment)
        records = await self.clock.offload(partial(keyed_records, wal_records))
        # One fragment may hold several appends. Its first records may belong to another piece,
        # which this process knows from memory.
        records = in_range(records, piece.start, piece.limit)
        piece.marks = await self.clock.offload(partial(marks_in, wal_records))
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
        at = next(n for n, piece in enumerate(self.pieces) if piece.fragment is None)
        self.next, self.is_behind = self.pieces[at].start, True
        self._cuts += 1
        for piece in self.pieces[at:]:
            self._drop(piece)
        del self.pieces[at:]
