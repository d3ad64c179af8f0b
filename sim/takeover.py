"""Takeovers of a writer that is as busy as can be, in virtual time: how long, how many requests.

``python -m sim.takeover`` prints a table: for each time that a put and a get take, and each alpha,
what it takes to open the log for writing, and what it takes others to find the log's end. The
writer keeps alpha puts under way all the time; computing takes no time at all. Round trips are
counted by the longest chain of requests, each of which waited for one before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.errors import TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object, Store
from tidelog.store.within import Within
from tidelog.wal.admin.fork import Fork
from tidelog.wal.append.batching import Batching
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.fencing import make_log
from tidelog.wal.slot_protocol.shape import Shape

WARM_TRIPS = 30  # Before a takeover the writer is given so many round trips to fill its window.
PATIENCE_S = 120


@dataclass(slots=True)
class Net:
    """A store to which each request travels, and each answer back, with some jitter."""

    inner: Store
    clock: SimClock
    put_us: int
    get_us: int
    dice: random.Random
    requests: int = 0

    @property
    def url(self) -> str:
        return self.inner.url

    async def _half(self, duration_us: int) -> None:
        await self.clock.sleep(int(duration_us / 2 * self.dice.uniform(0.8, 1.2)))

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        self.requests += 1
        await self._half(self.get_us)
        try:
            return await self.inner.get(key, start=start, limit=limit)
        finally:
            await self._half(self.get_us)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        self.requests += 1
        await self._half(self.get_us)
        try:
            return await self.inner.refresh(key, e_tag)
        finally:
            await self._half(self.get_us)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        self.requests += 1
        await self._half(self.put_us)
        try:
            return await self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        finally:
            await self._half(self.put_us)

    async def delete(self, keys: Sequence[str]) -> None:
        self.requests += 1
        await self._half(self.put_us)
        await self.inner.delete(keys)
        await self._half(self.put_us)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        self.requests += 1
        await self._half(self.get_us)
        found = [entry async for entry in self.inner.list(prefix, after=after)]
        await self._half(self.get_us)
        for entry in found[:1_000]:
            yield entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A way to the store, and a log's alpha. Units: milliseconds."""

    put_ms: int
    get_ms: int
    alpha: int


@dataclass(slots=True)
class Busy:
    """A log with a writer that keeps alpha puts under way."""

    case: Case
    seed: int
    store: MemoryStore = field(default_factory=MemoryStore)
    is_over: bool = False
    acknowledged: int = 0

    async def log(self, name: str) -> tuple[SlotLog, Net]:
        """Return a log on a way of its own."""
        clock = SimClock(f"{self.seed} {name}")  # Or both would draw the same names.
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
        """Append until another takes the log over."""

        async def one() -> None:
            while not self.is_over:
                await log.append([b"x" * 100])
                self.acknowledged += 1

        with suppress(TidelogError, ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for _ in range(2 * self.case.alpha):
                    group.create_task(one())
        self.is_over = True


Measured = tuple[float, int]
Work = Callable[[SlotLog], Awaitable[object]]


def measure(case: Case, work: Work, *, seed: int = 1) -> Measured | None:
    """Return seconds and requests of some work beside a busy writer; None if it did not end."""
    found: list[Measured] = []

    async def main() -> None:
        busy = Busy(case, seed)
        await make_log(Within(busy.store, "log/x"), clock=SimClock(seed), writer="maker")
        log, _ = await busy.log("busy")
        writing = asyncio.create_task(busy.write(log))
        other, way = await busy.log("other")
        await other.clock.sleep(WARM_TRIPS * 1_000 * max(case.put_ms, case.get_ms))
        begun_us = other.clock.monotonic_us()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await work(other)
                found.append(((other.clock.monotonic_us() - begun_us) / 1e6, way.requests))
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
    """Append one record, which ends the epoch of whoever writes."""
    await log.append([b"mine"])


async def find_bounds(log: SlotLog) -> None:
    """Find where the log ends."""
    await log.bounds()


async def make_pin(log: SlotLog) -> None:
    """Pin all that there is."""
    await log.create_pin("p")


async def collect(log: SlotLog) -> None:
    """Collect what a cursor in the middle lets go of."""
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
    print("put/get ms  alpha  " + "  ".join(f"{name:>16}" for name in given.work))
    for put_ms, get_ms in WAYS:
        for alpha in given.alpha:
            case = Case(put_ms=put_ms, get_ms=get_ms, alpha=alpha)
            cells = [_worst(case, WORK[name], given.seeds) for name in given.work]
            print(f"{put_ms:>4}/{get_ms:<5}  {alpha:>5}  " + "  ".join(cells), flush=True)
    return 0


def _worst(case: Case, work: Work, seeds: int) -> str:
    found = [measure(case, work, seed=seed) for seed in range(1, seeds + 1)]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return f"{'did not end':>16}"
    return f"{max(s for s, _ in known):7.2f} s {max(n for _, n in known):4} rq"


if __name__ == "__main__":
    raise SystemExit(main())
