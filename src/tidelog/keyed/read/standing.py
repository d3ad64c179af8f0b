"""What a handle knows of a keyed log: its state, its tail, and the view that both make.

Invariants: a view has no holes: the state is read before the wal, and again where the wal was
    collected past it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.clock import Clock
from tidelog.consensus.port import Consensus
from tidelog.errors import ContentionError
from tidelog.ids import Named, named_id
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
class KeyedStanding:
    """A keyed log as this process knows it."""

    name: str
    store: Store
    consensus: Consensus
    clock: Clock
    location_url: str = ""  # By which other processes open the store, where its own will not do.
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
        """Return what is not compacted, as it is known; of a log whose state was read once."""
        if self._tail is None:
            self._tail = LooseTail(store=self.wal, clock=self.clock)
        return self._tail

    @property
    def wal_name(self) -> str:
        """Return the name of the log that feeds it, among those of keyed logs."""
        return self.state.wal or self.name

    @property
    def wal(self) -> Within:
        """Return the folder of the log that feeds it; that of a log that is there stays so."""
        return Within(self.store, f"{WALS}{self.wal_name}")

    def beside(self, name: str) -> KeyedStanding:
        """Return another log of the same place, of which nothing was read yet."""
        return KeyedStanding(
            name=name, store=self.store, consensus=self.consensus, clock=self.clock
        )

    async def refresh(self, *, unless_since_us: int | None = None) -> None:
        """Read what others have committed, unless that was done since a time.

        Many who ask at once share what is read: all that counts is that it began after they asked.

        Raises:
            NoSuchLog: the log is gone. CorruptionError, LocationError: it cannot be read.
        """
        asked = self._begun
        async with self._lock:
            tail, known_us = self._tail, self.refreshed_us
            # What was appended here while the tail was behind is in no view until it is not.
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
                    self.tail.lag()  # It may have a gap, until the state is as new.
                if not self.tail.is_behind:
                    self.refreshed_us, self._done = begun_us, begun
                    return
        raise ContentionError(
            "the log was compacted and collected faster than it could be read: try again"
        )

    def view(self, pending: Sequence[LoosePiece] = ()) -> KeyedView:
        """Return what is readable, and (``pending``) what is ordered and follows it."""
        state, compacted = self.state, self.state.compacted
        runs: list[Source] = [
            RunSource(run, self.parts) for run in state.runs if run.upper > state.retired
        ]
        pieces: list[LoosePiece] = []
        following = compacted
        for piece in self.tail.pieces:
            if piece.start > following:
                break  # What is between is in runs, and the state that names them is on its way.
            if piece.limit > compacted:
                pieces.append(piece)
                following = piece.limit
        for piece in pending:
            if piece.limit <= following:
                continue  # It was read from the store before its writer was told of it.
            if piece.start != following:
                break  # It is being placed anew.
            pieces.append(piece)
            following = piece.limit
        loose = [PieceSource(piece, self.tail.records, compacted) for piece in pieces]
        return KeyedView(state=state, sources=(*runs, *loose), next=following)

    def view_at(self, checkpoint: str) -> KeyedView:
        """Return what a checkpoint keeps.

        Raises:
            NoSuchCheckpoint: there is none of the name.
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
