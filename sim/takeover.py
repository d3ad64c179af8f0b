"""Takeovers of a saturated writer, measured in virtual time: how long, how many requests.

``python -m sim.takeover`` prints a table with a cell for each latency of puts and gets, alpha and
operation. The operations open the log for writing, or find its end. A cell shows seconds, round
trips, requests, and the gets that walk past the manifest (one for each slot that it does not name
yet). Each number is the greatest over all seeds. The writer keeps alpha puts under way all the
time; computing takes no time. Round trips are the longest chain of requests, each sent after the
answer to the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.errors import ContentionError, TidelogError
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object, Store
from tidelog.wal.admin.fork import Fork
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.link import EPOCHS
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.fencing import make_log
from tidelog.wal.slot_protocol.shape import Shape

WARM_TRIPS = 30  # Round trips for the writer to fill its window before a takeover.
PATIENCE_S = 120
CELL = 39  # Columns.


@dataclass(slots=True)
class Net:
    """A store to which each request travels, and each answer back, with some jitter.

    ``trips`` is the longest chain of answered requests, each sent after the answer to the one
    before. ``walked`` counts the gets of slots, except those that read back after a refused put.
    """

    inner: Store
    clock: SimClock
    put_us: int
    get_us: int
    dice: random.Random
    requests: int = 0
    walked: int = 0
    trips: int = 0
    refused: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        return self.inner.url

    @asynccontextmanager
    async def _travel(self, there_and_back_us: int) -> AsyncIterator[None]:
        self.requests += 1
        place = self.trips + 1  # One after the longest chain answered by now.
        await self._half(there_and_back_us)
        try:
            yield
        finally:
            await self._half(there_and_back_us)
            self.trips = max(self.trips, place)

    async def _half(self, duration_us: int) -> None:
        await self.clock.sleep(int(duration_us / 2 * self.dice.uniform(0.8, 1.2)))

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        if key in self.refused:
            self.refused.remove(key)
        else:
            self.walked += f"/{EPOCHS}" in key
        async with self._travel(self.get_us):
            return await self.inner.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        async with self._travel(self.get_us):
            return await self.inner.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        async with self._travel(self.put_us):
            try:
                return await self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
            except ContentionError:
                self.refused.add(key)
                raise

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._travel(self.put_us):
            await self.inner.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async with self._travel(self.get_us):
            found = [entry async for entry in self.inner.list(prefix, after=after)]
        for entry in found[:1_000]:
            yield entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The latency of the store, and a log's alpha. Units: milliseconds."""

    put_ms: int
    get_ms: int
    alpha: int


@dataclass(slots=True)
class BusyLog:
    """A log with a writer that keeps alpha puts under way."""

    case: Case
    seed: int
    store: MemoryStore = field(default_factory=MemoryStore)
    is_over: bool = False
    acknowledged: int = 0

    async def log(self, name: str) -> tuple[SlotLog, Net]:
        """Return a log with a network of its own."""
        clock = SimClock(f"{self.seed} {name}")  # Otherwise both would draw the same names.
        way = Net(
            self.store,
            clock,
            self.case.put_ms * 1_000,
            self.case.get_ms * 1_000,
            random.Random(f"{self.seed} {name}"),
        )
        log = SlotLog(
            name="x",
            store=Within(way, "log/x"),
            clock=clock,
            writer=name,
            shape=Shape(alpha=self.case.alpha),
            batching=Batching(interval_us=0, batch_bytes=1),
        )
        return log, way

    async def write(self, log: SlotLog) -> None:
        """Append until another client takes over the log."""

        async def one() -> None:
            while not self.is_over:
                await log.append([b"x" * 100])
                self.acknowledged += 1

        with suppress(TidelogError, ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for _ in range(2 * self.case.alpha):
                    group.create_task(one())
        self.is_over = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCost:
    """The cost of an operation: ``trips`` and ``walked`` as in `Net`."""

    seconds: float
    trips: int
    requests: int
    walked: int


Work = Callable[[SlotLog], Awaitable[object]]


def measure(case: Case, work: Work, *, seed: int = 1) -> OperationCost | None:
    """Return the cost of an operation next to a busy writer; None if it did not end."""
    found: list[OperationCost] = []

    async def main() -> None:
        busy = BusyLog(case, seed)
        await make_log(Within(busy.store, "log/x"), clock=SimClock(seed), writer="maker")
        log, _ = await busy.log("busy")
        writing = asyncio.create_task(busy.write(log))
        other, way = await busy.log("other")
        await other.clock.sleep(WARM_TRIPS * 1_000 * max(case.put_ms, case.get_ms))
        begun_us = other.clock.monotonic_us()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await work(other)
                found.append(
                    OperationCost(
                        seconds=(other.clock.monotonic_us() - begun_us) / 1e6,
                        trips=way.trips,
                        requests=way.requests,
                        walked=way.walked,
                    )
                )
        busy.is_over = True
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await writing
        for one in (log, other):
            with suppress(TidelogError):
                await one.close()

    run(main, seed)
    return found[0] if found else None


async def take_over(log: SlotLog) -> None:
    """Append one record, which ends the present writer's epoch."""
    await log.append([b"mine"])


async def find_bounds(log: SlotLog) -> None:
    """Find where the log ends."""
    await log.bounds()


async def make_pin(log: SlotLog) -> None:
    """Pin the whole log."""
    await log.create_pin("p")


async def collect(log: SlotLog) -> None:
    """Collect the first half of the log, up to a cursor."""
    bounds = await log.bounds()
    await log.create_cursor("c", max(1, bounds.next // 2))
    await log.collect(grace_us=0)


async def fork(log: SlotLog) -> None:
    """Fork the log."""
    assert isinstance(log.store, Within)
    await Fork(store=log.store, source="x", name="y", clock=log.clock, writer="me").make()


WORK: dict[str, Work] = {
    "takeover": take_over,
    "bounds": find_bounds,
    "pin": make_pin,
    "collect": collect,
    "fork": fork,
}
WAYS = ((10, 10), (60, 60), (100, 100), (100, 20), (20, 100))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.takeover", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--alpha", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--work", nargs="*", default=[*WORK], choices=[*WORK])
    given = parser.parse_args(arguments)
    print("put/get ms  alpha  " + "  ".join(f"{name:>{CELL}}" for name in given.work))
    for put_ms, get_ms in WAYS:
        for alpha in given.alpha:
            case = Case(put_ms=put_ms, get_ms=get_ms, alpha=alpha)
            cells = [_worst(case, WORK[name], given.seeds) for name in given.work]
            print(f"{put_ms:>4}/{get_ms:<5}  {alpha:>5}  " + "  ".join(cells), flush=True)
    return 0


def _worst(case: Case, work: Work, seeds: int) -> str:
    try:
        found = [measure(case, work, seed=seed) for seed in range(1, seeds + 1)]
    except ContentionError:  # The writer replaced the manifest before each try.
        return f"{'gave up: others were first':>{CELL}}"
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return f"{'did not end':>{CELL}}"
    seconds = max(one.seconds for one in known)
    trips, requests = max(one.trips for one in known), max(one.requests for one in known)
    walked = max(one.walked for one in known)
    return f"{seconds:6.2f} s {trips:3} trips {requests:4} rq, {walked:4} walked"


if __name__ == "__main__":
    raise SystemExit(main())
