"""Keyed logs under faults: writers that contend, compactors, collectors, readers and forks.

The model is plain Python: the records committed to the wal, and the changes decided for the state
(`sim.checkers.keyed_truth`). Each answer is checked against it at once, by the facts that the
caller knew. The answers of appends are checked in the end, once no outcome is unknown.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sim.checkers.demands import demand
from sim.checkers.keyed_truth import KeyedTruth
from sim.checkers.watch_keyed import KeyedWatch
from sim.kernel.clock import START_US
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import CALM, RarerRates, day_of
from sim.kernel.small_keyed import keyed_limited, keyed_limits_of
from sim.kernel.world import Client, World
from sim.workloads.log import schedule_of
from sim.workloads.scenario import LONG_S, STEPS_MAX
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    NoSuchLog,
    ReadOvertaken,
    TidelogError,
)
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.wal.append.batching import Batching

LOG = "k"
KEYS = (b"", b"a", b"ab", b"b", b"b\x00", b"\xff")


@dataclass(slots=True)
class KeyedReport:
    """The counts of a run; ``struck`` counts the faults that took effect."""

    trace: str = ""
    acknowledged: int = 0
    ordered: int = 0
    never: int = 0
    unsure: int = 0
    lost: int = 0
    fenced: int = 0
    full: int = 0
    records: int = 0
    runs: int = 0
    merges: int = 0
    seals: int = 0
    retired: int = 0
    checkpoints: int = 0
    forks: int = 0
    dropped: int = 0
    collected: int = 0
    reads: int = 0
    refused: int = 0
    followed: int = 0
    deaths: int = 0
    requests: int = 0
    struck: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class KeyedRun:
    """One run. ``never`` are values reported as not applied, and ``told`` the acknowledged ones."""

    world: World
    dice: random.Random
    watch: KeyedWatch
    report: KeyedReport = field(default_factory=KeyedReport)
    writing: set[Client] = field(default_factory=set)
    opened: dict[str, list[KeyedLog]] = field(default_factory=dict)
    dropping: set[str] = field(default_factory=set)
    never: dict[bytes, str] = field(default_factory=dict)
    told: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    numbers: int = 0

    @property
    def worse(self) -> RarerRates:
        schedule = self.world.schedule
        return schedule.worse if isinstance(schedule, Dice) else CALM

    @property
    def is_over(self) -> bool:
        """Return True if every writer left is paused for long."""
        return all(client.stopped_for > LONG_S for client in self.writing)

    def logs(self, client: Client) -> KeyedLogs:
        return KeyedLogs(
            store=client.store,
            consensus=client.consensus,
            clock=client.clock,
            writer=client.name,
        )

    async def open(self, client: Client, name: str, *, maintenance: bool = True) -> KeyedLog:
        """Open a log for writing."""
        batching = Batching(
            batch_bytes=self.dice.choice([1, 20, 1_000]),
            interval_us=self.dice.choice([0, 20_000]),
            pending_bytes=self.dice.choice([60, 10_000]),
        )
        visibility = self.dice.choice(["memory", "durable"])
        found = await self.logs(client).open(
            name, visibility=visibility, batching=batching, maintenance=maintenance
        )
        self.opened.setdefault(client.name, []).append(found)
        return found

    def truth(self, name: str) -> KeyedTruth:
        return self.watch.log(name)

    def is_failure(self, error: TidelogError) -> bool:
        """Return True if the error has a cause in this run: a store's fault, or a lost race."""
        return isinstance(error, (LocationError, ContentionError, ReadOvertaken)) or (
            isinstance(error, CorruptionError) and self.world.struck["short"] > 0
        )

    @contextmanager
    def trouble(self, name: str, *others: type[TidelogError]) -> Iterator[None]:
        """Ignore failures of the store, ``others``, and NoSuchLog for a log being dropped."""
        self.watch.check()
        try:
            yield
            self.watch.check()
        except others:
            self.report.refused += 1
        except NoSuchLog:
            demand(name in self.dropping, "a log is gone that nobody dropped", log=name)
            self.report.refused += 1
        except TidelogError as error:
            if not self.is_failure(error):
                raise

    def bury(self, client: Client) -> None:
        """Cancel a dead client's writer task, which waits for no request and so cannot notice."""
        for opened in self.opened.get(client.name, ()) if client.is_dead else ():
            if opened.wal._writer._task is not None:
                opened.wal._writer._task.cancel()

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()


def simulate_keyed(seed: int) -> KeyedReport:
    """Run one seed, and check everything.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    # That module imports this one, so it is imported late.
    from sim.workloads.keyed_play import finish, play

    world = World(seed, schedule_of(seed, "w0", "w1", "t0", "t1", "f0"))
    found = keyed_of(world, random.Random(f"keyed {seed}"))
    found.watch.clocks_jump = day_of(seed) in ("jumps", "all")
    with keyed_limited(keyed_limits_of(seed)):

        async def all_of_it() -> None:
            await play(found)
            await finish(found)

        run(all_of_it, seed, steps_max=STEPS_MAX)
    return report_of(found)


def keyed_of(world: World, dice: random.Random) -> KeyedRun:
    """Return a run with a watch on its world."""

    def now_us() -> int:
        return START_US + round(asyncio.get_running_loop().time() * 1e6)

    watch = KeyedWatch(world.store, now_us)
    world.watchers.append(watch)
    return KeyedRun(world, dice, watch)


def report_of(found: KeyedRun) -> KeyedReport:
    """Return the counts of a run."""
    report, world = found.report, found.world
    logs = found.watch.logs.values()
    report.trace = world.trace()
    report.requests = world.requests_count
    report.deaths = sum(client.is_dead for client in world.clients.values())
    report.struck = world.struck
    report.records = sum(len(one.records) for one in logs)
    report.runs = sum(one.runs_made for one in logs)
    report.merges = sum(one.merges for one in logs)
    report.seals = sum(len(one.sealed_ever) for one in logs)
    report.retired = sum(one.retired > 1 for one in logs)
    report.never = len(found.never)
    return report
