"""The machine: the one loop that reads a state, decides, and commits on condition.

A state is a value. ``decide`` is a pure function from a state to a diff and a result; the machine
appends the diff with compare-and-set, and on a lost race reads what won and decides again. What is
to be decided while a record is under way goes into the next one, all together: one instance has one
record under way at a time, so that its own calls never race each other.

Source: persist, "State Machine" and "Pipelining".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

from tidelog.clock import Clock, backoff_us, wall_us
from tidelog.consensus.port import Consensus, Versioned
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    ObjectNotFound,
    TidelogError,
    UsageError,
)
from tidelog.ids import SeqNo
from tidelog.machine import record as records
from tidelog.machine.history import History, begin_history, follow
from tidelog.machine.language import D, Decision, Language, R, S, check_storable
from tidelog.machine.lost import state_lost, state_of_another, was_written
from tidelog.machine.record import Record, RolledUp, Rollup
from tidelog.machine.upkeep import Upkeep
from tidelog.metrics import observe_commit
from tidelog.store.port import Store

TOGETHER_MAX = 64
VANISHED_US = 3_600_000_000
_MISSING_TRIES = 20
_SETTLE_TRIES = 4


@dataclass(slots=True, eq=False)
class _Job:
    """A command that waits, and who waits for it."""

    decide: Callable[[Any], Decision[Any, Any]]
    answer: asyncio.Future[Any]
    begun_us: int


@dataclass(frozen=True, slots=True)
class _Decided(Generic[S, D]):
    """What came of commands that were decided one after the other."""

    state: S
    diffs: tuple[D, ...]
    answers: tuple[tuple[_Job, Any, TidelogError | None], ...]

    @property
    def is_sure(self) -> bool:
        """Say whether each answer is proven by what is written, and not by what was read."""
        return len(self.diffs) == len(self.answers)


@dataclass(slots=True, kw_only=True)
class Machine(Generic[S, D]):
    """One durable state.

    Units: ``rollup_every`` counts records from one rollup to the next; for ``vanished_us``
        microseconds an object stays that the state names no more.
    """

    key: str
    prefix: str
    language: Language[S, D]
    store: Store
    consensus: Consensus
    clock: Clock
    rollup_every: int = 64
    vanished_us: int = VANISHED_US
    commits_max: int = 1_000
    state: S = field(init=False)
    seqno: SeqNo = field(init=False, default=SeqNo(0))
    history: History = field(init=False, default=History())
    _is_new: bool = field(init=False, default=False)
    upkeep: Upkeep[S, D] = field(init=False)
    _lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _waiting: list[_Job] = field(init=False, default_factory=list)
    _worker: asyncio.Task[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.state = self.language.initial()
        self.upkeep = Upkeep(self)

    async def refresh(self) -> S:
        """Read what others have committed, and return the newest state."""
        async with self._lock:
            await self._catch_up()
            return self.state

    async def commit(self, decide: Callable[[S], Decision[D, R]]) -> R:
        """Decide over the newest state and write the change; return the decision's result.

        ``decide`` may run several times, over newer and newer states. A decision that writes
        nothing is believed only over a state that was read after this call began. Who cancels the
        call does not cancel the change, which may be under way.

        Raises:
            whatever ``decide`` raises; ContentionError: others were first at every try.
            LocationError, OutcomeUnknown: see `tidelog.consensus.port.Consensus`.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_noticed)
        self._waiting.append(_Job(decide, answer, self.clock.monotonic_us()))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name=f"commits of {self.key}")
        return await asyncio.shield(answer)

    async def collect(self, *, after_us: int | None = None) -> int:
        """Delete what no state that may still be read names; return how many objects that were.

        What changes made vanish in the last ``after_us`` microseconds (``vanished_us``, unless
        told) stays.

        Raises:
            LocationError: the store failed; what was deleted is named by nothing.
        """
        async with self._lock:
            await self._catch_up()
            return await self.upkeep.collect(self.vanished_us if after_us is None else after_us)

    async def clear(self) -> int:
        """Delete what a killed `collect` or `settle` left; return how many rollups that were.

        Raises:
            LocationError: the store failed; call again.
        """
        async with self._lock:
            await self._catch_up()
            return await self.upkeep.clear()

    async def settle(self, *, after_us: int | None = None) -> int:
        """Collect, and delete the past of the state, too; return how many objects that were.

        Records and rollups of the past hold the values that changes took out of the state. They go
        as far as no reader holds them. Other processes may write concurrently; then the newest
        changes wait for the next call.

        Raises:
            LocationError: the store failed; call again.
        """
        async with self._lock:
            await self._catch_up()
            for _ in range(_SETTLE_TRIES):
                if self.history.changed <= self.history.rolled_up:
                    break
                await self.upkeep.roll_up_now()
                await self._catch_up()
            return await self.upkeep.settle(self.vanished_us if after_us is None else after_us)

    async def _work(self) -> None:
        jobs: list[_Job] = []
        try:
            while self._waiting:
                async with self._lock:
                    jobs, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
                    try:
                        await self._commit(jobs)
                    except Exception as error:  # noqa: BLE001 - whoever waits is told
                        _fail(jobs, error)
        except BaseException as error:
            _fail([*jobs, *self._waiting], error)
            self._waiting = []
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._worker = None

    async def _commit(self, jobs: list[_Job]) -> None:
        known_fresh = False
        for attempt in range(self.commits_max):
            decided = self._decide(jobs)
            if not decided.is_sure and not known_fresh:
                await self._catch_up()
                known_fresh = True
                continue
            if decided.diffs and not await self.append(decided.diffs, decided.state):
                if attempt:
                    await self.clock.sleep(backoff_us(attempt, self.clock))
                await self._catch_up()
                known_fresh = True
                continue
            if decided.diffs:
                # Before who waits is told: a process may end then.
                await self.upkeep.after_commit()
            self._tell(decided, attempt)
            return
        raise ContentionError("others were first at every try: try again", key=self.key)

    def _decide(self, jobs: list[_Job]) -> _Decided[S, D]:
        """Decide commands one after the other, each over what the ones before it made."""
        state, diffs = self.state, []
        answers: list[tuple[_Job, Any, TidelogError | None]] = []
        for job in jobs:
            if job.answer.done():
                continue
            try:
                decision = job.decide(state)
            except TidelogError as error:
                answers.append((job, None, error))
                continue
            except Exception as error:  # noqa: BLE001 - whoever brought the command is told
                # Not foreseen: nothing that is read later would answer it otherwise.
                _fail([job], error)
                continue
            if decision.diff is not None:
                try:
                    check_storable(self.language, decision.diff)
                except UsageError as error:
                    answers.append((job, None, error))
                    continue
                state = self.language.apply(state, decision.diff)
                diffs.append(decision.diff)
            answers.append((job, decision.result, None))
        return _Decided(state, tuple(diffs), tuple(answers))

    def _tell(self, decided: _Decided[S, D], attempt: int) -> None:
        now_us = self.clock.monotonic_us()
        for job, result, error in decided.answers:
            if job.answer.done():
                continue
            if error is not None:
                job.answer.set_exception(error)
                continue
            job.answer.set_result(result)
            if decided.diffs:
                seconds = (now_us - job.begun_us) / 1e6
                observe_commit(self.prefix.partition("/")[0], seconds, attempt + 1)

    async def append(self, diffs: tuple[D, ...], after: S) -> bool:
        """Write one record; True if it landed, and then this machine has the state ``after``."""
        seqno = SeqNo(self.seqno + 1)
        rollup, floor, erased = self.upkeep.to_name(self.history)
        record = Record(
            rollup=rollup,
            floor=floor,
            erased=erased,
            at_us=wall_us(self.clock),
            diffs=tuple(self.language.encode_diff(diff) for diff in diffs),
        )
        if not await self.consensus.compare_and_set(self.key, seqno, records.encode_record(record)):
            return False
        self.state, self.seqno = after, seqno
        self.history = follow(self.history, seqno, record, self._vanished(diffs))
        return True

    def _vanished(self, diffs: tuple[D, ...]) -> tuple[str, ...]:
        return tuple(path for diff in diffs for path in self.language.vanished(diff))

    async def _catch_up(self) -> None:
        """Apply the records after our seqno; start from a rollup where they are gone."""
        for attempt in range(_MISSING_TRIES):
            found = await self.consensus.scan(self.key, SeqNo(self.seqno + 1))
            if not found and not self.seqno and not self._is_new:
                self._is_new = not await was_written(self.store, self.prefix)
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

    async def _start_over(self, found: list[Versioned]) -> list[Versioned]:
        """Take the state from the newest record's rollup; return the records after it."""
        newest = found[-1]
        rollup = self._decode(newest).rollup
        if rollup is None or found[0].seqno > rollup.seqno + 1:
            raise CorruptionError(
                "records are missing, and no rollup covers them", key=self.key, seqno=newest.seqno
            )
        self.state, held = await self.load_rollup(rollup)
        self.seqno = SeqNo(rollup.seqno)
        self.history = begin_history(rollup, held)
        return [r for r in found if r.seqno > rollup.seqno]

    async def load_rollup(self, rollup: Rollup) -> tuple[S, RolledUp]:
        """Read a rollup: the state in it, and what else it says.

        Raises:
            ObjectNotFound: it is not there. CorruptionError: it is not what was written.
            LocationError: the store failed.
        """
        held = records.decode_rollup(rollup, (await self.store.get(rollup.path)).data)
        return self.language.decode_state(held.state), held

    def _replay(self, found: list[Versioned]) -> None:
        state, seqno, history = self.state, self.seqno, self.history
        for version in found:
            if version.seqno != seqno + 1:
                raise CorruptionError("a record is missing", key=self.key, seqno=seqno + 1)
            record = self._decode(version)
            diffs = tuple(self.language.decode_diff(data) for data in record.diffs)
            for diff in diffs:
                state = self.language.apply(state, diff)
            seqno = version.seqno
            history = follow(history, seqno, record, self._vanished(diffs))
        self.state, self.seqno, self.history = state, seqno, history

    def _decode(self, version: Versioned) -> Record:
        record = records.decode_record(version.data, key=self.key, seqno=version.seqno)
        if record.rollup is not None and not record.rollup.path.startswith(f"{self.prefix}/"):
            raise state_of_another(self.key)
        return record


def _noticed(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()  # Whoever cancelled the call is not to be told at the end.


def _fail(jobs: list[_Job], error: BaseException) -> None:
    """Tell each command that still waits."""
    for job in jobs:
        if job.answer.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            job.answer.cancel()
        else:
            job.answer.set_exception(error)
