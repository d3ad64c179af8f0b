"""What all runs of logs share: clients who append and read, what they were told, and how it ends.

What each call was answered is held against the log as it is in the end, by a checker that knows
nothing of how logs work.
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
from sim.checkers.liveness import Deadline, Standing
from sim.kernel.fates import Dice
from sim.kernel.weather import CALM, Worse
from sim.kernel.world import Client, World
from tidelog.clock import Clock
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
from tidelog.wal.scrub.report import Scrubbed
from tidelog.wal.scrub.tree_scrub import scrub
from tidelog.wal.slot_protocol.writer import SlotWriter

T = TypeVar("T")
TRIES: Final = 200
LONG_S: Final = 1.0  # Others do not wait for a writer that stands still for longer.
STEPS_MAX: Final = 1_000_000  # Of a run: a hundred times what most take.
ENDED: Final[tuple[type[TidelogError], ...]] = (HandleError, LogSealed)


@dataclass(slots=True)
class Report:
    """What a run did; ``struck`` counts what befell it."""

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
    """What a scenario asks of writers."""

    async def append(self, records: Sequence[bytes]) -> int: ...

    async def close(self) -> None: ...


class LogReader(Protocol):
    """What a scenario asks of readers."""

    def scan(self, start: int = 0) -> AsyncIterator[pa.Table]: ...


class Party(Standing, Protocol):
    """A client, or what one sees of one log."""

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> Store: ...


@dataclass(slots=True)
class Plot:
    """One run, of a log in wal3's form; ``writing`` are the clients that are not done."""

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
    def worse(self) -> Worse:
        fates = self.world.fates
        return fates.worse if isinstance(fates, Dice) else CALM

    @property
    def is_over(self) -> bool:
        """Say whether no writer is left but such as stand still for long."""
        return all(client.stopped_for > LONG_S for client in self.writing)

    def is_failure(self, error: TidelogError) -> bool:
        """Say whether it is the store's failure, seeing what befell the run; nobody was ahead."""
        struck = self.world.struck
        return (
            isinstance(error, LocationError)
            or (type(error) is ContentionError and struck["busy"] > 0)
            or (isinstance(error, CorruptionError) and struck["short"] > 0)
        )

    @contextmanager
    def trouble(self, *others: type[TidelogError]) -> Iterator[None]:
        """Pass over failures of the store, and ``others``."""
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
        """Return a reader of the log, on another store than the client's if it is given."""
        return Wal3Reader(store=store or client.store, clock=client.clock, reads=2)

    async def make(self, client: Party) -> None:
        """Make the log, unless it is there."""
        await self.writer(client).committer.open(make=True)

    async def settle(self, client: Party, store: Store) -> None:
        """Open the log on a store that is well: from then on, nothing of before is in doubt."""
        writer = self.writer(client)
        writer.committer.store = store
        await writer.committer.open()

    async def scrub(self, client: Party) -> Scrubbed:
        """Check all that is stored."""
        return await scrub(Wal3Reader(store=self.world.store, clock=client.clock))

    async def check_truth(self, client: Party) -> None:
        """Hold what was read in the end against what else is known of the log."""

    async def append(self, client: Party, writer: LogWriter, bodies: list[bytes]) -> None:
        """Append, and note what became of it; see `note`."""
        await self.note(client, bodies, lambda: writer.append(bodies))

    async def note(
        self,
        client: Party,
        bodies: Sequence[bytes],
        call: Callable[[], Awaitable[int]],
        *others: type[TidelogError],
    ) -> None:
        """Note what became of an append; ``others`` are errors that it may end in, besides.

        Nothing is known of one that is cancelled, or over which the client dies.
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
        """Hold an acknowledgement against the log as it is at that moment."""

    async def read(self, client: Party, start: int) -> None:
        """Read all there is from a position on."""
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
        """Close a writer, now and then at the second try, the first being cancelled."""

        async def close() -> None:
            async with Deadline(client, "a close"):
                with self.trouble(*ENDED):
                    await self._uncancelled(client, writer.close)

        if await self.is_cancelled("close", close()):
            await close()

    async def is_cancelled(self, what: str, work: Awaitable[None]) -> bool:
        """Do some work, or cancel it before it is done, and say so."""
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
        """End what a dead client left that asks for nothing, and so would not hear of its death."""
        for writer in self.opened.get(client.name, ()) if client.is_dead else ():
            if writer._task is not None:
                writer._task.cancel()

    def others(self, group: asyncio.TaskGroup) -> None:
        """Start whoever else is there, beside writers and readers."""

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    @staticmethod
    async def _uncancelled(client: Party, call: Callable[[], Awaitable[T]]) -> T:
        """Call; nobody but the caller may cancel it."""
        try:
            return await call()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            asked = client.is_dead or (task is not None and task.cancelling())
            demand(asked, "a call was cancelled that nobody had cancelled", client=client.name)
            raise


async def persist(client: Party, call: Callable[[], Awaitable[T]]) -> T:
    """Call again while the store fails, as any caller would."""
    last: TidelogError | None = None
    for attempt in range(TRIES):
        try:
            async with Deadline(client, "a call"):
                return await call()
        except (LocationError, ContentionError, CorruptionError) as error:
            last = error
            await client.clock.sleep(min(10_000 << min(attempt, 10), 1_000_000))
    raise AssertionError("the store fails for ever") from last


async def look(plot: Plot, client: Party) -> None:
    """Read and scrub all that there is, at the store itself."""
    begin = plot.now()
    reader = plot.reader(client, plot.world.store)
    rows = [row async for table in reader.scan() for row in table.to_pylist()]
    plot.final = tuple(row["body"] for row in rows)
    last = Read(start=1, begin=begin, end=plot.now(), bodies=plot.final)
    plot.history.reads.append(last)
    found = await plot.scrub(client)
    demand(found.is_clean, "the log is not whole", problems=found.problems)
    demand(found.records == len(plot.final), "scrub counts other records than a read gives")


async def finish(plot: Plot, client: Party) -> None:
    """Read what is there once nothing is in doubt, and again once nothing is under way.

    What is late lands after all have looked, and must not change what they have seen.
    """
    await plot.settle(client, plot.world.store)
    await look(plot, client)
    await plot.world.until_all_has_landed()
    again = plot.world.client(f"{client.name} again")
    await look(plot, again)
    await plot.check_truth(again)
    # An append that nobody had acknowledged may come in only now, where a writer opens the log.
    await plot.settle(again, plot.world.store)
    await look(plot, again)


def report_of(plot: Plot) -> Report:
    """Return what a run did."""
    appends = plot.history.appends
    there = set(plot.final)
    unsure = [a for a in appends if a.position is None and not a.is_never]
    return Report(
        trace=plot.world.trace(),
        appends=len(appends),
        acknowledged=sum(a.position is not None for a in appends),
        never=sum(a.is_never for a in appends),
        unsure=len(unsure),
        brought_in=sum(a.bodies[0] in there for a in unsure),
        records=len(plot.final),
        reads=len(plot.history.reads),
        deaths=sum(client.is_dead for client in plot.world.clients.values()),
        requests=plot.world.requests_count,
        takeovers=plot.takeovers,
        rebuilt=plot.rebuilt[True],
        rebuilds_refused=plot.rebuilt[False],
        struck=plot.world.struck,
    )


def counts_of(report: Any) -> Counter[str]:
    """Return the counts of a report, and what struck as ``struck.<kind>``."""
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
