"""A handle's knowledge of a keyed log: its state, its tail, and the view of both.

Invariants: a view has no gaps. The state is read before the wal, and again if the wal was collected
    past the state concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.ids import Named, named_id
from tidelog.errors import ContentionError
from tidelog.keyed.read.directory_reader import DirectoryCache
from tidelog.keyed.read.part_reader import RunPartReader
from tidelog.keyed.read.piece import LoosePiece
from tidelog.keyed.read.sources import PieceSource, RunSource, Source
from tidelog.keyed.read.tail import LooseTail
from tidelog.keyed.read.view import KeyedView
from tidelog.keyed.states.language import KeyedLanguage, prefix_of
from tidelog.keyed.states.state import KeyedDiff, KeyedState
from tidelog.keyed.states.transition import check_living, no_checkpoint
from tidelog.machine.machine import Machine
from tidelog.store.port import Store
from tidelog.store.within import Within

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
            key=named_id(Named.KEYED, self.name),
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
        found = self.state.checkpoints.get(checkpoint)
        if found is None:
            raise no_checkpoint(checkpoint)
        state = replace(
            self.state,
            runs=found.runs,
            retired=found.retired,
            compacted=found.compacted,
            seals=found.seals,
            first_segment=found.first_segment,
        )
        runs = tuple(RunSource(run, self.parts) for run in found.runs)
        return KeyedView(state=state, sources=runs, next=found.compacted)
