"""One verification: writers, readers that replay, and a collector that deletes what all have read.

The log is named ``verify-<seed>``. A cut is the state of the sequences at a position. The collector
stores each cut as a record of a second log, ``verify-<seed>-cuts``, before it collects up to the
cut. So a reader that starts late, or a later run, replays from the newest cut. A run ends with a
scrub.
Source: design page 3, "End-to-end check".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.core.clock import Clock, SystemClock, backoff_us
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    NoSuchCursor,
    NoSuchLog,
    PositionCollected,
    UsageError,
)
from tidelog.store.port import Store
from tidelog.verify.checker import (
    Checker,
    LogDiffers,
    Mismatch,
    SequenceCut,
    decode_cut,
    encode_cut,
    first_cut,
)
from tidelog.verify.figures import Figures
from tidelog.verify.sequence import Words, author_of
from tidelog.verify.writing import AcknowledgedRecords, Script, Writer, settle_log
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.opening import check_protocol
from tidelog.wal.read.bounds import Bounds
from tidelog.wal.scrub.report import ScrubReport

T = TypeVar("T")

AUTHORS: Final = 8  # Per writer: each author has one append in flight.
STREAMS_MAX: Final = 10_000
CURSOR: Final = "cut"
ROUNDS: Final = 4
GRACE_US: Final = 200_000
BEHIND_US: Final = 60_000_000
LOOK_US: Final = 50_000
RETRIES_MAX: Final = 60
ALL: Final = Keep(share_max=1)


def new_seed() -> int:
    """Return a random seed, for logs that no other run uses."""
    return int(SystemClock().unique()[:8], 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run.

    Units:
        seconds: time of writing.
        batch_max: records in an append, at most.
    """

    seed: int
    seconds: float = 20.0
    writers: int = 2
    readers: int = 2
    streams: int = 64
    protocol: str = "slot"
    batch_max: int = 64

    def __post_init__(self) -> None:
        limits = {"writers": 64, "readers": 64, "streams": STREAMS_MAX, "batch_max": 10_000}
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"{name} must be from 1 to {most:,}, not {getattr(self, name)}")
        if not 0 < self.seconds <= 366 * 86_400:
            raise UsageError(
                "the time of a run must be more than 0 s, and at most a year, "
                f"not {self.seconds:g} s"
            )
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"a seed must be from 0 to 2^63 - 1, not {self.seed}")
        check_protocol(self.protocol)

    @property
    def log(self) -> str:
        return f"verify-{self.seed}"

    @property
    def cuts(self) -> str:
        return f"{self.log}-cuts"


@dataclass(slots=True)
class Report:
    """The result of a run. The log is correct if there is neither a mismatch nor a problem."""

    settings: Settings
    figures: Figures
    mismatch: Mismatch | None = None
    problems: list[dict[str, str]] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return self.mismatch is None and not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        settings = self.settings
        return {
            "log": settings.log,
            "seed": settings.seed,
            "protocol": settings.protocol,
            "writers": settings.writers,
            "readers": settings.readers,
            "streams": settings.streams,
            **self.figures.to_dict(),
            "problems": self.problems,
            "mismatch": None if self.mismatch is None else self.mismatch.to_dict(),
        }


@dataclass(slots=True, kw_only=True)
class Verification:
    """A run on the logs of one store. Setting ``stopping`` ends it as if its time were over."""

    store: Store
    clock: Clock
    writer: str
    settings: Settings
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    figures: Figures = field(default_factory=Figures)
    _acknowledged: AcknowledgedRecords = field(default_factory=AcknowledgedRecords)
    _readers: list[Checker] = field(default_factory=list)
    _begun_us: int = 0

    async def run(
        self, *, keep: bool = False, tell: Callable[[Figures], None] | None = None
    ) -> Report:
        """Write, read and collect; then read to the end, and scrub.

        The logs are destroyed at the end, unless ``keep`` is True or the log is wrong.

        Raises:
            UsageError: the log has the other protocol, or was dropped.
            LocationError: the store failed at every try.
        """
        report = Report(self.settings, self.figures)
        try:
            cut = await self._patiently(self._begin)
            await self._work(cut, tell)
            if keep:
                await self._patiently(partial(self._store_cut, self._readers[0].cut()))
            report.problems = (await self._patiently(self._scrub)).to_dict()["problems"]
        except LogDiffers as error:
            report.mismatch = error.mismatch
        except BaseExceptionGroup as errors:
            first = next(_leaves(errors))
            if isinstance(first, LogDiffers):
                report.mismatch = first.mismatch
            elif isinstance(first, CorruptionError):
                report.problems.append(_problem(first))
            else:
                raise first from None
        except CorruptionError as error:
            report.problems.append(_problem(error))
        if report.is_clean and not keep:
            await self.drop()
        return report

    async def drop(self) -> None:
        """Destroy the logs.

        Raises:
            LocationError: the store failed at every try.
        """
        for name in (self.settings.cuts, self.settings.log):
            with suppress(NoSuchLog):  # An earlier try destroyed it, and its answer was lost.
                destroy = partial(self._logs("verify").drop, name, grace_us=0)
                await self._patiently(destroy)

    async def _begin(self) -> SequenceCut:
        """Create missing logs, and replay existing ones; return the state of the sequences.

        An earlier run may have died at any point, even in this method.
        """
        settings = self.settings
        log = await self._made(settings.log)
        async with await self._made(settings.cuts) as cuts:
            if (await cuts.bounds()).next == 1:
                await cuts.append([encode_cut(first_cut(settings.seed, settings.streams))])
        await settle_log(log)
        bounds = await log.bounds()
        if CURSOR not in (await log.cursors()).cursors:
            await log.create_cursor(CURSOR, bounds.oldest)
        checker = (await self._last_cut()).checker("resume")
        if bounds.next < checker.position:
            raise checker.refuse_end(bounds.next)
        if bounds.next > 1:
            self.figures.resumed_at = checker.position
            await self._replay(log, checker)
            self.figures.replays += 1
        missing = max(0, settings.streams - len(checker.next))
        numbers = np.concatenate([checker.next, np.ones(missing, dtype=np.uint64)])
        return SequenceCut(settings.seed, checker.position, numbers)

    async def _made(self, name: str) -> Log:
        shelf, protocol = self._logs("verify"), self.settings.protocol
        try:
            log = await shelf.open(name)
        except NoSuchLog:
            log = await shelf.create(name, protocol=protocol)
        if log.protocol != protocol:
            raise UsageError(
                f"the log {name!r} exists with the protocol {log.protocol}: verify it with that "
                "protocol"
            )
        return log

    async def _scrub(self) -> ScrubReport:
        return await (await self.open_log("scrub")).scrub()

    async def _work(self, cut: SequenceCut, tell: Callable[[Figures], None] | None) -> None:
        settings, self._begun_us = self.settings, self.clock.monotonic_us()
        self._readers = [cut.checker(f"reader-{n}") for n in range(settings.readers)]
        self._acknowledged.limit = cut.position
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(self._follow(checker)) for checker in self._readers]
            rest = [group.create_task(writer.run()) for writer in self._writers(cut)]
            rest.append(group.create_task(self._collect_often(cut.checker("collector"))))
            await self._wait(tell)
            self.stopping.set()
            await asyncio.gather(*rest)
            self.figures.seconds = (self.clock.monotonic_us() - self._begun_us) / 1e6
            await self._catch_up()
            for task in readers:
                task.cancel()
        for checker in self._readers:
            checker.check_reached(self._acknowledged.numbers, self._acknowledged.limit)

    def _writers(self, cut: SequenceCut) -> Iterator[Writer]:
        settings = self.settings
        authors = min(settings.writers * AUTHORS, len(cut.next))
        made = [
            author_of(settings.seed, n, authors=authors, next_numbers=cut.next)
            for n in range(authors)
        ]
        for number in range(settings.writers):
            yield Writer(
                number=number,
                writers=settings.writers,
                open_log=self.open_log,
                witness=self._readers[0],
                clock=self.clock,
                scripts=[Script(author) for author in made[number :: settings.writers]],
                figures=self.figures,
                acknowledged=self._acknowledged,
                batch_max=settings.batch_max,
                turn_us=int(min(max(settings.seconds / 16, 0.2), 30) * 1e6),
                begun_us=self._begun_us,
                stopping=self.stopping,
            )

    async def _wait(self, tell: Callable[[Figures], None] | None) -> None:
        end_us = self._begun_us + int(self.settings.seconds * 1e6)
        while not self.stopping.is_set() and self.clock.monotonic_us() < end_us:
            await self.clock.sleep(min(LOOK_US, end_us - self.clock.monotonic_us()))
            self.figures.seconds = (self.clock.monotonic_us() - self._begun_us) / 1e6
            if tell is not None:
                tell(self.figures)

    async def _follow(self, checker: Checker) -> None:
        """Read and compare until cancelled."""
        log = await self.open_log(checker.name)
        attempt = 0
        while attempt < RETRIES_MAX:
            try:
                async for table in log.follow(checker.position):
                    self._take(checker, table)
                    attempt = 0
                raise UsageError(
                    f"another process sealed the log {self.settings.log!r}: verify with another "
                    "seed"
                )
            except PositionCollected as error:
                raise checker.refuse_collected(error.facts.get("oldest")) from error
            except LocationError:
                await self.clock.sleep(backoff_us(attempt, self.clock))
                attempt += 1
        raise LocationError(
            f"gave up after {RETRIES_MAX} tries: the store failed at every read; try again later"
        )

    async def _catch_up(self) -> None:
        """Wait until all readers have reached the end."""
        limit = (await self._patiently(self._bounds)).next
        end_us = self.clock.monotonic_us() + BEHIND_US
        while any(checker.position < limit for checker in self._readers):
            if self.clock.monotonic_us() > end_us:
                return  # The records that they have not read then count as missing.
            await self.clock.sleep(LOOK_US)

    async def _bounds(self) -> Bounds:
        return await (await self.open_log("end")).bounds()

    async def _collect_often(self, checker: Checker) -> None:
        """Periodically read to the end, store a cut, and collect records read by all readers."""
        period_us = int(min(max(self.settings.seconds / 20, 0.5), 15) * 1e6)
        cuts, rounds = deque[SequenceCut](), deque[tuple[int, Words]](maxlen=ROUNDS)
        due_us = self.clock.monotonic_us() + period_us
        while not self.stopping.is_set():
            await self.clock.sleep(LOOK_US)
            if self.clock.monotonic_us() < due_us:
                continue
            due_us += period_us
            try:
                start = checker.position
                rounds.append(
                    (start, await self._replay(await self.open_log(checker.name), checker))
                )
                for begin, keys in rounds:
                    # An acknowledgement may arrive long after its records were read.
                    checker.check_places(self._acknowledged.places, begin, keys)
                cuts.append(checker.cut())
                passed = min(reader.position for reader in self._readers)
                while len(cuts) > 1 and cuts[1].position <= passed:
                    cuts.popleft()
                if cuts[0].position <= passed:
                    await self._collect(cuts.popleft())
            except (LocationError, ContentionError):
                self.figures.refused += 1  # The next round continues.

    async def _collect(self, cut: SequenceCut) -> None:
        await self._store_cut(cut)
        log = await self.open_log("collector")
        cursor = await log.load_cursor(CURSOR)
        if cut.position > cursor.position:
            await log.move_cursor(cursor, cut.position)
        self.figures.collected += (await log.collect(keep=ALL, grace_us=GRACE_US)).fragments
        self.figures.collections += 1
        late = (await self._last_cut()).checker("late reader")
        await self._replay(await self.open_log(late.name), late)
        self.figures.replays += 1

    async def _store_cut(self, cut: SequenceCut) -> None:
        async with await self._logs("collector").open(self.settings.cuts) as log:
            position = await log.append([encode_cut(cut)])
            try:
                await log.move_cursor(await log.load_cursor(CURSOR), position)
            except NoSuchCursor:
                await log.create_cursor(CURSOR, position)
            await log.collect(keep=ALL, grace_us=0)

    async def _last_cut(self) -> SequenceCut:
        log = await self._logs("verify").open(self.settings.cuts)
        tables = [t async for t in log.scan((await log.bounds()).next - 1)]
        return decode_cut(tables[-1].column("body")[-1].as_py())

    async def _replay(self, log: Log, checker: Checker) -> Words:
        """Read all current records; everything acknowledged before must be among them.

        Return the first words of the records read.
        """
        before, read = self._acknowledged.copy(), [np.array([], dtype=np.uint64)]

        async def scan() -> None:
            try:
                async for table in log.scan(checker.position):
                    # Collect each table at once, so that a failure keeps the earlier ones.
                    keys = self._take(checker, table, is_live=False)
                    read.append(keys)
            except PositionCollected as error:
                raise checker.refuse_collected(error.facts.get("oldest")) from error

        await self._patiently(scan)
        checker.check_reached(before.numbers, before.limit)
        return np.concatenate(read)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat ``work`` while the store fails, for up to half a minute."""
        for attempt in range(RETRIES_MAX):
            try:
                return await work()
            except LocationError:
                await self.clock.sleep(backoff_us(attempt, self.clock))
        return await work()

    def _take(self, checker: Checker, table: pa.Table, *, is_live: bool = True) -> Words:
        keys = checker.take(table)
        self.figures.reads += 1
        self.figures.records_read += table.num_rows
        if is_live:
            times = np.asarray(table.column("timestamp_us")).astype(np.int64)
            self.figures.lags.note(self.clock.now_us() - times)
        return keys

    async def open_log(self, who: str) -> Log:
        """Open the log under a name for people. Each writer and each reader has its own handle."""
        return await self._logs(who).open(self.settings.log)

    def _logs(self, who: str) -> Logs:
        return Logs(store=self.store, clock=self.clock, writer=f"{self.writer}/{who}")


def _problem(error: CorruptionError) -> dict[str, str]:
    return {"path": str(error.facts.get("path", "")), "why": error.sentence}


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
