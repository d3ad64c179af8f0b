"""The machine: the loop that reads a state, decides, and commits on condition.

A state is a value. ``decide`` is a pure function from a state to a diff and a result. The machine
appends the diff with compare-and-set. If it loses the race, it reads the winner's records and
decides again.

A machine writes one record at a time, so its own calls never race each other. Commands that arrive
while a record is under way are decided together and go into the next record.

Source: persist, "State Machine" and "Pipelining".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic

from tidelog.consensus.port import Consensus, KeyRecord, VersionedRecord
from tidelog.core.clock import Clock, backoff_us, wall_us
from tidelog.core.ids import SeqNo
from tidelog.core.metrics import observe_commit
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    ObjectNotFound,
    TidelogError,
    UsageError,
)
from tidelog.machine import record as records
from tidelog.machine.language import D, Decision, Language, R, S, check_storable
from tidelog.machine.lost import state_lost, state_of_another, was_written
from tidelog.machine.maintenance import MachineMaintenance
from tidelog.machine.record import History, Record, Rollup, RollupBody, begin_history, follow
from tidelog.store.port import Store

TOGETHER_MAX = 64
VANISHED_US = 3_600_000_000
_MISSING_TRIES = 20
_SETTLE_TRIES = 4
_PAUSE_MAX_US = 1_000_000
_PAUSE_TRIES = 8
_YIELDS = 16
_YIELD_TRIES = 2


@dataclass(slots=True, eq=False)
class _Job:
    """A waiting command and the future of its caller."""

    decide: Callable[[Any], Decision[Any, Any]]
    answer: asyncio.Future[Any]
    begun_us: int


@dataclass(frozen=True, slots=True)
class Decisions(Generic[S, D]):
    """The results of commands that were decided one after the other."""

    state: S
    diffs: tuple[D, ...]
    answers: tuple[tuple[_Job, Any, TidelogError | None], ...]

    @property
    def is_sure(self) -> bool:
        """Return True if every answer depends on the write, so a stale state cannot falsify it."""
        # An answer without a diff is taken from the state as this process last read it.
        return len(self.diffs) == len(self.answers)


@dataclass(frozen=True, slots=True)
class PreparedRecord(Generic[S]):
    """A record to write, and the state and the history of its machine after it."""

    written: KeyRecord
    state: S
    history: History


@dataclass(slots=True, kw_only=True)
class Machine(Generic[S, D]):
    """One durable state.

    Units: ``rollup_every`` is the number of records between rollups; ``vanished_us`` is the time in
        microseconds for which an object is kept after the state no longer names it.
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
    maintenance: MachineMaintenance[S, D] = field(init=False)
    lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _yields: int = field(init=False, default=0)
    _not_before_us: int = field(init=False, default=0)
    _waiting: list[_Job] = field(init=False, default_factory=list)
    _worker: asyncio.Task[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.state = self.language.initial()
        self.maintenance = MachineMaintenance(self)

    async def refresh(self) -> S:
        """Read the records that other processes committed, and return the newest state."""
        async with self.lock:
            await self.catch_up()
            return self.state

    async def commit(self, decide: Callable[[S], Decision[D, R]], *, rides: bool = False) -> R:
        """Decide on the newest state, write the change, and return the decision's result.

        A change that ``rides`` needs no request of its own: it waits for another commit of this
        machine, or for `nudge`.

        ``decide`` may run several times, each time on a newer state. If a decision writes nothing,
        its result is used only if the state was read after this call began. Cancelling the call
        does not cancel the change, because its record may be under way.

        Raises:
            the errors that ``decide`` raises; ContentionError: the call lost the race at every try.
            LocationError, OutcomeUnknown: see `tidelog.consensus.port.Consensus`.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve_error)
        self._waiting.append(_Job(decide, answer, self.clock.monotonic_us()))
        if not rides:
            self.nudge()
        return await asyncio.shield(answer)

    @property
    def has_riders(self) -> bool:
        """Return True if changes wait for another commit."""
        return bool(self._waiting) and self._worker is None

    def nudge(self) -> None:
        """Write the changes that wait for another commit."""
        if self.has_riders:
            self._worker = asyncio.create_task(self._work(), name=f"commits of {self.key}")

    async def collect(self, *, after_us: int | None = None) -> int:
        """Delete objects that no readable state names; return the number of objects.

        Objects that vanished in the last ``after_us`` microseconds (default ``vanished_us``) are
        kept.

        Raises:
            LocationError: the store failed; no state names an object that was deleted.
        """
        async with self.lock:
            await self.catch_up()
            return await self.maintenance.collect(
                self.vanished_us if after_us is None else after_us
            )

    async def clear(self) -> int:
        """Delete the remains of a killed `collect` or `settle`; return the number of objects.

        Raises:
            LocationError: the store failed; call again.
        """
        async with self.lock:
            await self.catch_up()
            return await self.maintenance.clear()

    async def settle(self, *, after_us: int | None = None) -> int:
        """Collect, and delete the state's past as well; return the number of objects.

        Records and rollups of the past contain the values that changes removed from the state. They
        are deleted unless a reader holds them. If other processes write concurrently, the newest
        changes may remain until the next call.

        Raises:
            LocationError: the store failed; call again.
        """
        async with self.lock:
            await self.catch_up()
            for _ in range(_SETTLE_TRIES):
                if self.history.changed <= self.history.rolled_up:
                    break
                await self.maintenance.roll_up_now()
                await self.catch_up()
            return await self.maintenance.settle(self.vanished_us if after_us is None else after_us)

    async def _work(self) -> None:
        jobs: list[_Job] = []
        try:
            while self._waiting:
                async with self.lock:
                    jobs, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
                    try:
                        await self._commit(jobs)
                    except Exception as error:  # noqa: BLE001 - the callers get it
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
        await self._yield()
        for attempt in range(self.commits_max):
            begin_us = self.clock.monotonic_us()
            decided = self._decide(jobs)
            if not decided.is_sure and not known_fresh:
                await self.catch_up()
                known_fresh = True
                continue
            if decided.diffs and not await self.append(decided.diffs, decided.state):
                self._yields = _YIELDS
                # The first decision may use an old state, so its loss shows no contention. A loss
                # after a refresh does: the random pause spreads the contending writers.
                if attempt:
                    await self.pause(attempt, self.clock.monotonic_us() - begin_us)
                await self.catch_up()
                known_fresh = True
                continue
            if decided.diffs:
                self._won(self.clock.monotonic_us() - begin_us)
                # Before the callers get their answers: a process may end as soon as it has one.
                await self.maintenance.after_commit()
            self._answer_jobs(decided, attempt)
            return
        raise ContentionError(
            f"gave up after {self.commits_max} tries: other processes kept committing first; try "
            "again",
            key=self.key,
        )

    def _won(self, try_us: int) -> None:
        """Let others commit next, if this machine lost one of its newest races to them.

        A winner knows the newest state, and the others must read it first. Without a pause the same
        machine would win each time.
        """
        if self._yields:
            self._yields -= 1
            # A try may take minutes, if the process sleeps or the store stalls.
            most_us = min(_PAUSE_MAX_US, _YIELD_TRIES * try_us)
            rest_us = int(most_us * self.clock.uniform())
            self._not_before_us = self.clock.monotonic_us() + rest_us

    async def _yield(self) -> None:
        wait_us = self._not_before_us - self.clock.monotonic_us()
        if wait_us > 0:
            await self.clock.sleep(wait_us)

    async def pause(self, lost: int, try_us: int) -> None:
        """Wait after a lost race; ``try_us`` is the time that the last try took."""
        # The pause depends on the speed of the store. With long pauses a fast store would be idle,
        # or serve only the winners.
        first_us = max(1, try_us)
        most_us = min(_PAUSE_MAX_US, _PAUSE_TRIES * first_us)
        pause_us = backoff_us(lost - 1, self.clock, first_us=first_us, most_us=most_us)
        await self.clock.sleep(pause_us)

    def _decide(self, jobs: list[_Job]) -> Decisions[S, D]:
        """Decide commands one after the other, each on the state after those before it."""
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
            except Exception as error:  # noqa: BLE001 - the caller gets it
                # An unforeseen error does not depend on the state, so a newer state would not help.
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
        return Decisions(state, tuple(diffs), tuple(answers))

    def with_riders(self, diff: D) -> Decisions[S, D]:
        """Return a change of the state together with those that wait and can be decided after it.

        Decisions without a change go on waiting, because this state may be an old one.
        """
        state, diffs = self.language.apply(self.state, diff), [diff]
        answers: list[tuple[_Job, Any, TidelogError | None]] = []
        for job in self._waiting[: TOGETHER_MAX - 1]:
            with suppress(Exception):
                decision = job.decide(state)
                if decision.diff is not None:
                    check_storable(self.language, decision.diff)
                    state = self.language.apply(state, decision.diff)
                    diffs.append(decision.diff)
                    answers.append((job, decision.result, None))
        return Decisions(state, tuple(diffs), tuple(answers))

    def answer_riders(self, decided: Decisions[S, D], attempt: int) -> None:
        """Answer changes of `with_riders` that have landed."""
        done = {id(job) for job, _, _ in decided.answers}
        self._waiting = [job for job in self._waiting if id(job) not in done]
        self._answer_jobs(decided, attempt)

    def fail_riders(self, decided: Decisions[S, D], error: BaseException) -> None:
        """Raise an error in the callers of `with_riders`, because their changes may have landed."""
        sent = [job for job, _, _ in decided.answers]
        self._waiting = [job for job in self._waiting if job not in sent]
        _fail(sent, error)

    def _answer_jobs(self, decided: Decisions[S, D], attempt: int) -> None:
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
        """Write one record; return True if it landed. This machine then has the state ``after``."""
        prepared = self.prepare(diffs, after)
        if not await self.consensus.compare_and_set_all([prepared.written]):
            return False
        self.land(prepared)
        return True

    def prepare(self, diffs: tuple[D, ...], after: S) -> PreparedRecord[S]:
        """Return the next record, which leads to the state ``after``."""
        seqno = SeqNo(self.seqno + 1)
        rollup, floor, erased = self.maintenance.to_name(self.history)
        record = Record(
            rollup=rollup,
            floor=floor,
            erased=erased,
            at_us=wall_us(self.clock),
            diffs=tuple(self.language.encode_diff(diff) for diff in diffs),
        )
        data, kept_from = records.encode_record(record), max(floor, 1)
        history = follow(self.history, seqno, record, self._vanished(diffs))
        return PreparedRecord(KeyRecord(self.key, seqno, data, kept_from), after, history)

    def land(self, prepared: PreparedRecord[S]) -> None:
        """Continue with the state after a record that has landed."""
        self.state, self.seqno = prepared.state, prepared.written.seqno
        self.history = prepared.history

    def _vanished(self, diffs: tuple[D, ...]) -> tuple[str, ...]:
        return tuple(path for diff in diffs for path in self.language.vanished(diff))

    async def catch_up(self) -> None:
        """Apply the records after our seqno; if they were truncated, start from a rollup."""
        for attempt in range(_MISSING_TRIES):
            versions = await self.consensus.scan(self.key, SeqNo(self.seqno + 1))
            if not versions and not self.seqno and not self._is_new:
                # Nothing was ever read: the key is new, or its consensus object is lost. Other
                # objects decide which. The second scan finds records that another process wrote
                # after the first scan.
                self._is_new = not await was_written(self.store, self.prefix)
                versions = [] if self._is_new else await self.consensus.scan(self.key, SeqNo(1))
                if not versions and not self._is_new:
                    raise state_lost(self.key)
            if not versions:
                return
            try:
                if versions[0].seqno != self.seqno + 1:
                    versions = await self._start_over(versions)
                self._replay(versions)
            except ObjectNotFound:
                # The rollup was collected after we read the record that names it. The newest record
                # by now names another rollup.
                await self.clock.sleep(backoff_us(attempt, self.clock))
                continue
            return
        raise CorruptionError(
            "the rollup that the newest state record names is missing: restore it", key=self.key
        )

    async def _start_over(self, versions: list[VersionedRecord]) -> list[VersionedRecord]:
        """Load the state from the newest record's rollup; return the records after it."""
        newest = versions[-1]
        rollup = self._decode(newest).rollup
        if rollup is None or versions[0].seqno > rollup.seqno + 1:
            raise CorruptionError(
                "state records are missing, and no rollup covers them: restore them",
                key=self.key,
                seqno=newest.seqno,
            )
        self.state, held = await self.load_rollup(rollup)
        self.seqno = SeqNo(rollup.seqno)
        self.history = begin_history(rollup, held)
        return [r for r in versions if r.seqno > rollup.seqno]

    async def load_rollup(self, rollup: Rollup) -> tuple[S, RollupBody]:
        """Read a rollup: its state, and its other fields.

        Raises:
            ObjectNotFound: the rollup does not exist. CorruptionError: its bytes were changed.
            LocationError: the store failed.
        """
        held = records.decode_rollup(rollup, (await self.store.get(rollup.path)).data)
        return self.decoded(self.language.decode_state, held.state, path=rollup.path), held

    def _replay(self, versions: list[VersionedRecord]) -> None:
        state, seqno, history = self.state, self.seqno, self.history
        for version in versions:
            if version.seqno != seqno + 1:
                raise CorruptionError(
                    "a state record is missing: restore it", key=self.key, seqno=seqno + 1
                )
            record = self._decode(version)
            diffs = self.diffs_of(record, version.seqno)
            for diff in diffs:
                state = self.language.apply(state, diff)
            seqno = version.seqno
            history = follow(history, seqno, record, self._vanished(diffs))
        self.state, self.seqno, self.history = state, seqno, history

    def diffs_of(self, record: Record, seqno: int) -> tuple[D, ...]:
        """Return the changes of a record.

        Raises:
            CorruptionError: a change cannot be decoded.
        """
        decode = self.language.decode_diff
        return tuple(self.decoded(decode, data, seqno=seqno) for data in record.diffs)

    def decoded(self, decode: Callable[[bytes], R], data: bytes, **where: object) -> R:
        """Decode stored bytes; an error names the key of the machine, and ``where``.

        Raises:
            CorruptionError: the bytes cannot be decoded.
        """
        try:
            return decode(data)
        except CorruptionError as error:
            facts: dict[str, Any] = {**error.facts, "key": self.key, **where}
            raise CorruptionError(error.sentence, **facts) from error

    def _decode(self, version: VersionedRecord) -> Record:
        record = records.decode_record(version.data, key=self.key, seqno=version.seqno)
        if record.rollup is not None and not record.rollup.path.startswith(f"{self.prefix}/"):
            raise state_of_another(self.key)
        return record


def _retrieve_error(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        # Reading the exception keeps asyncio from logging it if the caller cancelled the call.
        answer.exception()


def _fail(jobs: list[_Job], error: BaseException) -> None:
    """Raise an error in the caller of each command that still waits."""
    for job in jobs:
        if job.answer.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            job.answer.cancel()
        else:
            job.answer.set_exception(error)
