"""The writers of a verification, which take turns and take the log over from each other.

Each author has one append in flight, and starts the next one once it knows the outcome. So the
records of a stream have one order, even if appends are refused, unknown or sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import (
    BusyError,
    ContentionError,
    HandleError,
    LocationError,
    LogSealed,
    Outcome,
    OutcomeUnknown,
    TidelogError,
)
from tidelog.verify.checker import Checker
from tidelog.verify.figures import Figures
from tidelog.verify.sequence import Author, Words, make_bodies, split_keys
from tidelog.wal.log import Log
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.slot_protocol.fencing import Fencer

# The share of a turn for which the previous writer continues, unless it is fenced.
OVERLAP: Final = 0.25
LOOK_US: Final = 20_000
SETTLES_MAX: Final = 60


@dataclass(slots=True)
class AcknowledgedRecords:
    """The acknowledged records: the last number of each stream, and the end of all of them.

    ``places`` maps an acknowledged position to the first word of its record; the collector removes
    positions that it has checked.
    """

    numbers: dict[int, int] = field(default_factory=dict)
    limit: int = 1
    places: dict[int, int] = field(default_factory=dict)

    def note(self, keys: Words, limit: int) -> None:
        streams, numbers = split_keys(keys)
        # Numbers of a stream rise, so the last one of each is stored.
        self.numbers.update(zip(streams.tolist(), numbers.tolist(), strict=True))
        self.limit = max(self.limit, limit)
        if limit:
            self.places[limit - len(keys)] = int(keys[0])

    def copy(self) -> AcknowledgedRecords:
        return AcknowledgedRecords(dict(self.numbers), self.limit)


@dataclass(slots=True)
class Script:
    """An author, and its append that is not known to be in the log."""

    author: Author
    pending: Words | None = None


@dataclass(slots=True, kw_only=True)
class Writer:
    """One of several writers. It writes in its turn, and afterwards until another one takes over.

    ``open_log`` opens the log under a name for people. ``witness`` is a reader's checker, which
    shows whether an append with an unknown outcome is in the log.

    Units:
        turn_us: length of a turn.
        begun_us: start of the first turn.
    """

    number: int
    writers: int
    open_log: Callable[[str], Awaitable[Log]]
    witness: Checker
    clock: Clock
    scripts: Sequence[Script]
    figures: Figures
    acknowledged: AcknowledgedRecords
    batch_max: int
    turn_us: int
    begun_us: int
    stopping: asyncio.Event

    async def run(self) -> None:
        """Write until ``stopping`` is set."""
        attempt = 0
        while not self.stopping.is_set():
            if not self._is_turn(0):
                await self.clock.sleep(LOOK_US)
                continue
            try:
                log = await self.open_log(f"writer-{self.number}")
            except LocationError:
                await self.clock.sleep(backoff_us(attempt, self.clock))
                attempt += 1
                continue
            attempt = 0
            await self._take_turn(log)

    async def _take_turn(self, log: Log) -> None:
        is_over = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                for script in self.scripts:
                    group.create_task(self._write(script, log, is_over))
        finally:
            # Only a roll-up remains, which the next writer does too.
            with suppress(HandleError, LocationError, ContentionError, LogSealed):
                await log.close()

    async def _write(self, script: Script, log: Log, is_over: asyncio.Event) -> None:
        attempt = 0
        while not is_over.is_set() and (script.pending is not None or self._may_append()):
            if script.pending is None:
                author = script.author
                script.pending = author.draw(author.size(self.batch_max))
            try:
                limit = await self._append(script.author.seed, script.pending, log)
            except HandleError:
                self.figures.takeovers += not is_over.is_set()
                is_over.set()
                return
            except (BusyError, ContentionError, LocationError) as error:
                if error.outcome is Outcome.NOT_APPLIED:
                    self.figures.refused += 1
                    await self.clock.sleep(backoff_us(attempt, self.clock))
                    attempt += 1
                    if self.stopping.is_set() or attempt > SETTLES_MAX:
                        raise_unless_stopped(error, self.stopping)
                        return
                    continue
                self.figures.unknown += 1
                if not await self._is_appended(script.pending, log):
                    continue
                limit = 0
            attempt = 0
            self.acknowledged.note(script.pending, limit)
            self.figures.appends += 1
            self.figures.records += len(script.pending)
            script.pending = None

    async def _append(self, seed: int, keys: Words, log: Log) -> int:
        bodies = make_bodies(seed, keys)
        position = await log.append_arrow(bodies)
        self.figures.bytes += bodies.nbytes
        return position + len(keys)

    async def _is_appended(self, keys: Words, log: Log) -> bool:
        """Find out whether an append is in the log: once another epoch has begun, this is decided.

        Raises:
            LocationError: the store failed at every try.
        """
        streams, numbers = split_keys(keys[:1])
        for attempt in range(SETTLES_MAX):
            try:
                await settle_log(log)
                limit = (await log.bounds()).next
            except (LocationError, ContentionError):
                await self.clock.sleep(backoff_us(attempt, self.clock))
                continue
            while self.witness.position < limit:
                await self.clock.sleep(LOOK_US)
            return bool(self.witness.next[int(streams[0])] > numbers[0])
        raise OutcomeUnknown("cannot connect to the store, so an append may be in the log")

    def _may_append(self) -> bool:
        overlap_us = int(self.turn_us * OVERLAP)
        return not self.stopping.is_set() and (self._is_turn(0) or self._is_turn(overlap_us))

    def _is_turn(self, ago_us: int) -> bool:
        """Return True if it is this writer's turn, or was ``ago_us`` ago."""
        passed_us = self.clock.monotonic_us() - self.begun_us - ago_us
        return passed_us // self.turn_us % self.writers == self.number


async def settle_log(log: Log) -> None:
    """Open a log for writing, which decides the outcome of all appends of its previous writer."""
    if log.protocol == "slot":
        with suppress(LogSealed):
            await Fencer(store=log.store, clock=log.clock, writer=log.writer).open(lanes=1, alpha=8)
        return
    await Committer(store=log.store, clock=log.clock, writer=log.writer).open()


def raise_unless_stopped(error: TidelogError, stopping: asyncio.Event) -> None:
    if not stopping.is_set():
        raise error
