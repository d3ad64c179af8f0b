"""The common part of all log runs: clients that append and read, their answers, and the end.

A checker that shares no code with logs compares each call's answer with the final log.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.linear_log import FOREVER, Append, LogHistory, Read
from sim.checkers.liveness import Deadline, DeadlineClient
from sim.kernel.faults import Dice
from sim.kernel.rates import CALM, RarerRates
from sim.kernel.world import Client, World
from tidelog.core.clock import Clock
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    HandleError,
    LocationError,
    LogSealed,
    Outcome,
    TidelogError,
)
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.scrub.tree_scrub import scrub
from tidelog.wal.slot_protocol.writer import SlotWriter

T = TypeVar("T")
TRIES: Final = 200
LONG_S: Final = 1.0  # Clients do not wait for a writer that pauses for longer.
STEPS_MAX: Final = 1_000_000  # A hundred times the steps of most runs.
ENDED: Final[tuple[type[TidelogError], ...]] = (HandleError, LogSealed)


@dataclass(slots=True)
class Report:
    """The counts of a run; ``struck`` counts the faults that took effect."""

    trace: str = ""
    appends: int = 0
    acknowledged: int = 0
    never: int = 0
    unsure: int = 0
    brought_in: int = 0
    records: int = 0
    reads: int = 0
    deaths: int = 0
    requests: int = 0
    takeovers: int = 0
    rebuilt: int = 0
    rebuilds_refused: int = 0
    struck: Counter[str] = field(default_factory=Counter)


class LogWriter(Protocol):
    """The methods of a writer that a scenario calls."""

    async def append(self, records: Sequence[bytes]) -> int: ...

    async def close(self) -> None: ...


class LogReader(Protocol):
    """The methods of a reader that a scenario calls."""

    def scan(self, start: int = 0) -> AsyncIterator[pa.Table]: ...


class Party(DeadlineClient, Protocol):
    """A client, or its view of one log."""

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> Store: ...


@dataclass(slots=True)
class Scenario:
    """One run of a log in wal3's form; ``writing`` are the clients that have not finished."""

    world: World
    dice: random.Random
    history: LogHistory = field(default_factory=LogHistory)
    final: tuple[bytes, ...] = ()
    writing: set[Client] = field(default_factory=set)
    takeovers: int = 0
    rebuilt: Counter[bool] = field(default_factory=Counter)
    opened: dict[str, list[Wal3Writer | SlotWriter]] = field(default_factory=dict)
    has_pins: bool = False
    cancel_dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.cancel_dice = random.Random(f"cancel {self.world.seed}")

    @property
    def worse(self) -> RarerRates:
        schedule = self.world.schedule
        return schedule.worse if isinstance(schedule, Dice) else CALM

    @property
    def is_over(self) -> bool:
        """Return True if every writer left is paused for long."""
        return all(client.stopped_for > LONG_S for client in self.writing)

    def is_failure(self, error: TidelogError) -> bool:
        """Return True if a fault of this run explains the error; a lost race does not."""
        struck = self.world.struck
        return (
            isinstance(error, LocationError)
            or (type(error) is ContentionError and struck["busy"] > 0)
            or (isinstance(error, CorruptionError) and struck["short"] > 0)
        )

    @contextmanager
    def trouble(self, *others: type[TidelogError]) -> Iterator[None]:
        """Ignore failures of the store, and ``others``."""
        try:
            yield
        except others:
            pass
        except TidelogError as error:
            if not self.is_failure(error):
                raise

    def writer(self, client: Party) -> Wal3Writer:
        committer = Committer(
            store=client.store,
            clock=client.clock,
            writer=client.name,
            rollover=Rollover(fragments=self.dice.randrange(2, 5), snapshots=2),
        )
        batching = Batching(
            batch_bytes=self.dice.choice([1, 20, 1_000]),
            interval_us=self.dice.choice([0, 20_000]),
            pending_bytes=60,
        )
        writer = Wal3Writer(committer=committer, batching=batching)
        self.opened.setdefault(client.name, []).append(writer)
        return writer

    def reader(self, client: Party, store: Store | None = None) -> LogReader:
        """Return a reader of the log, on ``store`` if given, else on the client's store."""
        return Wal3Reader(store=store or client.store, clock=client.clock, reads=2)

    async def make(self, client: Party) -> None:
        """Make the log, unless it exists."""
        await self.writer(client).committer.open(make=True)

    async def settle(self, client: Party, store: Store) -> None:
        """Open the log on a store without faults, which settles every earlier doubt."""
        writer = self.writer(client)
        writer.committer.store = store
        await writer.committer.open()

    async def scrub(self, client: Party) -> ScrubReport:
        """Scrub the log at the shared store."""
        return await scrub(Wal3Reader(store=self.world.store, clock=client.clock))

    async def check_truth(self, client: Party) -> None:
        """Compare the final log with other knowledge about it."""

    async def append(self, client: Party, writer: LogWriter, bodies: list[bytes]) -> None:
        """Append, and record the outcome; see `note`."""
        await self.note(client, bodies, lambda: writer.append(bodies))

    async def note(
        self,
        client: Party,
        bodies: Sequence[bytes],
        call: Callable[[], Awaitable[int]],
        *others: type[TidelogError],
    ) -> None:
        """Record the outcome of an append; ``others`` are further errors that it may raise.

        The outcome of an append stays unknown if it is cancelled or its client dies.
        """
        note = Append(bodies=tuple(bodies), begin=self.now(), end=FOREVER)
        index = len(self.history.appends)
        self.history.appends.append(note)
        try:
            async with Deadline(client, f"an append of {bodies!r}"):
                position = await self._uncancelled(client, call)
        except TidelogError as error:
            never = error.outcome is Outcome.NOT_APPLIED
            self.history.appends[index] = replace(note, end=self.now(), is_never=never)
            if not (self.is_failure(error) or isinstance(error, (*ENDED, *others))):
                raise
        else:
            self.acknowledged(bodies, position)
            self.history.appends[index] = replace(note, end=self.now(), position=position)

    def acknowledged(self, bodies: Sequence[bytes], position: int) -> None:
        """Check an acknowledgement against the log at that moment."""

    async def read(self, client: Party, start: int) -> None:
        """Read everything from a position."""
        reader, begin = self.reader(client), self.now()
        async with Deadline(client, f"a read from {start}"):
            rows = [row async for table in reader.scan(start) for row in table.to_pylist()]
        demand(
            [row["position"] for row in rows] == list(range(start, start + len(rows))),
            "a read gave positions that do not follow each other",
        )
        bodies = tuple(row["body"] for row in rows)
        self.history.reads.append(Read(start=start, begin=begin, end=self.now(), bodies=bodies))

    async def close(self, client: Party, writer: LogWriter) -> None:
        """Close a writer; now and then the first try is cancelled, and a second one closes it."""

        async def close() -> None:
            async with Deadline(client, "a close"):
                with self.trouble(*ENDED):
                    await self._uncancelled(client, writer.close)

        if await self.is_cancelled("close", close()):
            await close()

    async def is_cancelled(self, what: str, work: Awaitable[None]) -> bool:
        """Do some work, or cancel it before it is done; return True if it was cancelled."""
        dice = self.cancel_dice
        if not self.worse.cancels or dice.random() >= self.worse.cancels:
            await work
            return False
        try:
            async with asyncio.timeout(dice.choice([0.001, 0.03, 0.3])):
                await work
        except TimeoutError:
            self.world.struck[f"cancelled_{what}"] += 1
            return True
        return False

    def bury(self, client: Party) -> None:
        """Cancel a dead client's writer task, which waits for no request and so cannot notice."""
        for writer in self.opened.get(client.name, ()) if client.is_dead else ():
            if writer._task is not None:
                writer._task.cancel()

    def others(self, group: asyncio.TaskGroup) -> None:
        """Start the clients other than writers and readers."""

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    @staticmethod
    async def _uncancelled(client: Party, call: Callable[[], Awaitable[T]]) -> T:
        """Call; only the caller may cancel the call."""
        try:
            return await call()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            asked = client.is_dead or (task is not None and task.cancelling())
            demand(asked, "a call was cancelled that nobody had cancelled", client=client.name)
            raise


async def persist(client: Party, call: Callable[[], Awaitable[T]]) -> T:
    """Retry a call while the store fails, as any caller would."""
    last: TidelogError | None = None
    for attempt in range(TRIES):
        try:
            async with Deadline(client, "a call"):
                return await call()
        except (LocationError, ContentionError, CorruptionError) as error:
            last = error
            await client.clock.sleep(min(10_000 << min(attempt, 10), 1_000_000))
    raise AssertionError("the store fails for ever") from last


async def look(scenario: Scenario, client: Party) -> None:
    """Read and scrub the whole log at the shared store."""
    begin = scenario.now()
    reader = scenario.reader(client, scenario.world.store)
    rows = [row async for table in reader.scan() for row in table.to_pylist()]
    scenario.final = tuple(row["body"] for row in rows)
    last = Read(start=1, begin=begin, end=scenario.now(), bodies=scenario.final)
    scenario.history.reads.append(last)
    found = await scenario.scrub(client)
    demand(found.is_clean, "the log is not whole", problems=found.problems)
    demand(found.records == len(scenario.final), "scrub counts other records than a read gives")


async def finish(scenario: Scenario, client: Party) -> None:
    """Read the log once no outcome is unknown, and again once no change is under way.

    Late changes land after the first look, and must not change its result.
    """
    await scenario.settle(client, scenario.world.store)
    await look(scenario, client)
    await scenario.world.until_all_has_landed()
    again = scenario.world.client(f"{client.name} again")
    await look(scenario, again)
    await scenario.check_truth(again)
    # An append without an acknowledgement may enter the log only now, when a writer opens it.
    await scenario.settle(again, scenario.world.store)
    await look(scenario, again)


def report_of(scenario: Scenario) -> Report:
    """Return the counts of a run."""
    appends = scenario.history.appends
    there = set(scenario.final)
    unsure = [a for a in appends if a.position is None and not a.is_never]
    return Report(
        trace=scenario.world.trace(),
        appends=len(appends),
        acknowledged=sum(a.position is not None for a in appends),
        never=sum(a.is_never for a in appends),
        unsure=len(unsure),
        brought_in=sum(a.bodies[0] in there for a in unsure),
        records=len(scenario.final),
        reads=len(scenario.history.reads),
        deaths=sum(client.is_dead for client in scenario.world.clients.values()),
        requests=scenario.world.requests_count,
        takeovers=scenario.takeovers,
        rebuilt=scenario.rebuilt[True],
        rebuilds_refused=scenario.rebuilt[False],
        struck=scenario.world.struck,
    )


def counts_of(report: Any) -> Counter[str]:
    """Return the counts of a report, with faults as ``struck.<kind>``."""
    found: Counter[str] = Counter()
    for name in report.__dataclass_fields__:
        value = getattr(report, name)
        if isinstance(value, int):
            found[name] = value
        elif is_dataclass(value):
            found += counts_of(value)
    for kind, count in getattr(report, "struck", {}).items():
        found[f"struck.{kind}"] = count
    return found
