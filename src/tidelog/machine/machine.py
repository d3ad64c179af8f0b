"""The machine: the one loop that reads a state, decides, and commits on condition.

A state is a value. ``decide`` is a pure function from a state to a diff and a result; the machine
appends the diff with compare-and-set, and on a lost race reads what won and decides again. One
instance commits one change at a time, so that its own calls never race each other.

Source: persist, "State Machine" and "Pipelining".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tidelog.clock import Clock, backoff_us
from tidelog.consensus.port import Consensus, Versioned
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ObjectNotFound,
    TidelogError,
)
from tidelog.ids import SeqNo
from tidelog.machine import record as records
from tidelog.machine.record import Record, Rollup
from tidelog.metrics import observe_commit
from tidelog.store.listing import first_entry
from tidelog.store.port import Store

S = TypeVar("S")
D = TypeVar("D")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Decision(Generic[D, R]):
    """What is to be answered, and what is to be written for it (None: nothing)."""

    result: R
    diff: D | None = None


class Language(Protocol[S, D]):
    """How a kind of state begins, changes, and becomes bytes. All pure."""

    def initial(self) -> S: ...
    def apply(self, state: S, diff: D) -> S: ...
    def encode_diff(self, diff: D) -> bytes: ...
    def decode_diff(self, data: bytes) -> D: ...
    def encode_state(self, state: S) -> bytes: ...
    def decode_state(self, data: bytes) -> S: ...


@dataclass(slots=True, kw_only=True)
class Machine(Generic[S, D]):
    """One durable state.

    Units: ``rollup_every`` counts changes from one rollup to the next.
    """

    key: str
    prefix: str
    language: Language[S, D]
    store: Store
    consensus: Consensus
    clock: Clock
    rollup_every: int = 64
    commits_max: int = 1_000
    state: S = field(init=False)
    seqno: SeqNo = field(init=False, default=SeqNo(0))
    _rollup: Rollup | None = field(init=False, default=None)
    _pending: Rollup | None = field(init=False, default=None)
    _is_new: bool = field(init=False, default=False)
    _lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.state = self.language.initial()

    async def refresh(self) -> S:
        """Read what others have committed, and return the newest state."""
        async with self._lock:
            await self._catch_up()
            return self.state

    async def commit(self, decide: Callable[[S], Decision[D, R]]) -> R:
        """Decide over the newest state and write the change; return the decision's result.

        ``decide`` may run several times, over newer and newer states. A decision that writes
        nothing is believed only over a state that was read after this call began.

        Raises:
            whatever ``decide`` raises; ContentionError: others were first at every try.
            LocationError, OutcomeUnknown: see `tidelog.consensus.port.Consensus`.
        """
        start_us = self.clock.monotonic_us()
        async with self._lock:
            known_fresh = False
            for attempt in range(self.commits_max):
                try:
                    decision = decide(self.state)
                except TidelogError:
                    if known_fresh:
                        raise
                    await self._catch_up()
                    known_fresh = True
                    continue
                if decision.diff is None:
                    if known_fresh:
                        return decision.result
                    await self._catch_up()
                    known_fresh = True
                    continue
                if await self._append(decision.diff):
                    await self._maintain()
                    seconds = (self.clock.monotonic_us() - start_us) / 1e6
                    observe_commit(self.prefix.partition("/")[0], seconds, attempt + 1)
                    return decision.result
                if attempt:
                    await self.clock.sleep(backoff_us(attempt, self.clock))
                await self._catch_up()
                known_fresh = True
            raise ContentionError("others were first at every try: try again", key=self.key)

    async def _append(self, diff: D) -> bool:
        """Write one record; True if it landed, and then the state has it."""
        pending = self._pending
        if pending is not None and self._rollup is not None and pending.seqno <= self._rollup.seqno:
            # Named by a record whose answer was lost, or overtaken: the next one can be written.
            pending = self._pending = None
        seqno = SeqNo(self.seqno + 1)
        record = Record(rollup=pending or self._rollup, diff=self.language.encode_diff(diff))
        if not await self.consensus.compare_and_set(self.key, seqno, records.encode_record(record)):
            return False
        superseded = self._rollup if pending is not None else None
        self.state, self.seqno, self._rollup = (
            self.language.apply(self.state, diff),
            seqno,
            record.rollup,
        )
        if pending is not None:
            self._pending = None
            await self._truncate(pending, superseded)
        return True

    async def _catch_up(self) -> None:
        """Apply the records after our seqno; start from a rollup where they are gone."""
        for attempt in range(20):
            found = await self.consensus.scan(self.key, SeqNo(self.seqno + 1))
            if not found and not self.seqno and not self._is_new:
                self._is_new = not await self._was_written()
                found = [] if self._is_new else await self.consensus.scan(self.key, SeqNo(1))
                if not found and not self._is_new:
                    raise state_lost(self.key)
            if not found:
                return
            try:
                if found[0].seqno != self.seqno + 1:
                    found = await self._start_over(found)
                self._replay(found)
            except ObjectNotFound:
                # The rollup went since the record that named it was read: a newer one names
                # another.
                await self.clock.sleep(backoff_us(attempt, self.clock))
                continue
            return
        raise CorruptionError("the rollup that the newest record names is missing", key=self.key)

    async def _was_written(self) -> bool:
        """Say whether there are objects that are only written once there are records.

        Those are rollups, and what else follows parts in a listing: a part may be older than the
        first record, or of a writer that died before it.
        """
        after = f"{self.prefix}/part0"  # "0" follows "/".
        return await first_entry(self.store, f"{self.prefix}/", after=after) is not None

    async def _start_over(self, found: list[Versioned]) -> list[Versioned]:
        """Take the state from the newest record's rollup; return the records after it."""
        newest = found[-1]
        rollup = records.decode_record(newest.data, key=self.key, seqno=newest.seqno).rollup
        if rollup is None or found[0].seqno > rollup.seqno + 1:
            raise CorruptionError(
                "records are missing, and no rollup covers them", key=self.key, seqno=newest.seqno
            )
        data = records.check_rollup(rollup, (await self.store.get(rollup.path)).data)
        self.state = self.language.decode_state(data)
        self.seqno = SeqNo(rollup.seqno)
        return [r for r in found if r.seqno > rollup.seqno]

    def _replay(self, found: list[Versioned]) -> None:
        state, seqno, rollup = self.state, self.seqno, self._rollup
        for version in found:
            if version.seqno != seqno + 1:
                raise CorruptionError("a record is missing", key=self.key, seqno=seqno + 1)
            record = records.decode_record(version.data, key=self.key, seqno=version.seqno)
            state = self.language.apply(state, self.language.decode_diff(record.diff))
            seqno, rollup = version.seqno, record.rollup
        self.state, self.seqno, self._rollup = state, seqno, rollup

    async def _maintain(self) -> None:
        """Write a rollup when one is due; the next record names it. Best effort."""
        since = self.seqno - (self._rollup.seqno if self._rollup else 0)
        if since < self.rollup_every or self._pending is not None:
            return
        data = self.language.encode_state(self.state)
        path = records.rollup_path(self.prefix, self.seqno, self.clock.unique())
        try:
            await self.store.put(path, data)
        except LocationError:
            return
        self._pending = records.describe_rollup(self.seqno, path, data)

    async def _truncate(self, named: Rollup, superseded: Rollup | None) -> None:
        """Drop the records that ``named`` covers, then the rollup before it. Best effort too.

        The record that names ``named`` has landed, so every later reader starts from it or a newer.
        """
        try:
            await self.consensus.truncate(self.key, SeqNo(named.seqno))
            if superseded is not None:
                await self.store.delete([superseded.path])
        except LocationError:
            return


def state_lost(key: str) -> CorruptionError:
    """Return the error that a state is gone of which other objects are left."""
    return CorruptionError(
        f"the state of {key!r} is gone, though it was written: restore the object "
        f"consensus/{key} (from a backup, or an older version of it), and write nothing before"
    )
