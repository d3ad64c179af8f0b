"""Random readers and writers of one cache, on a store that is slow and fails.

Each seed is one run in virtual time. A read must return a state that the store had between its
beginning and its end. A task damages copies on disk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash

from kit.clocks import LateClock
from kit.stores import LingeringStore
from sim.kernel.loop import run
from tidelog.core.lookahead import SharedCalls
from tidelog.errors import LocationError, ObjectExists, ObjectNotFound
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers import cached, cached_disk
from tidelog.store.wrappers.cached import CachedStore, CacheReads, CacheSize
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrappers.hedging import Hedging
from tidelog.testing import Fault, FaultyStore, Request

SEEDS = range(50)
KEYS = [f"i/{number}" for number in range(4)] + ["m/0"]


class WitnessedStore(MemoryStore):
    """A store that records every state of every key, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[str, bytes | None]] = []

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        e_tag = await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)
        self.history.append((key, data))
        return e_tag

    async def delete(self, keys: Sequence[str]) -> None:
        await MemoryStore.delete(self, keys)
        self.history += [(key, None) for key in keys]

    def states(self, key: str, since: int) -> list[bytes | None]:
        """Return the state of ``key`` at a length of the history, and all its states since then."""
        before = [data for of, data in self.history[:since] if of == key]
        return [*(before[-1:] or [None]), *(data for of, data in self.history[since:] if of == key)]


class World:
    """One store with faults, one cache, and the wrong answers that readers got."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.dice = random.Random(f"world {seed}")
        # Threads take time too, and continue after their caller is cancelled.
        self.clock = LateClock(seed, delay_us=lambda: self.dice.choice((0, 0, 50, 500)))
        self.inner = WitnessedStore()
        self.directory = directory
        faulty = FaultyStore(self.inner, toss=self._toss)
        self.slow = LingeringStore(faulty, clock=self.clock, delays_us=self._delays_us)
        # Every second run hedges slow reads below the cache, as in real use.
        hedging = Hedging(least_us=500, most_us=500, samples_min=1, extra_permille=1_000)
        self.store = CachedStore(
            HedgedStore(self.slow, clock=self.clock, hedging=hedging) if seed % 2 else self.slow,
            clock=self.clock,
            is_immutable=lambda key: key.startswith("i/"),
            # One body fits into memory, and three or four fit on disk.
            bounds=CacheSize(memory_bytes=1_000, directory_bytes=2_400),
            directory=directory,
        )
        self.wrong: list[str] = []
        self.answers_count = 0
        self.writes_count = 0

    async def client(self) -> None:
        for _ in range(40):
            step = self.dice.choice((self.read, self.read, self.read, self.write, self.remove))
            try:
                await step(self.dice.choice(KEYS))
            except LocationError:
                continue
            await self.clock.sleep(self.dice.randrange(300))

    async def read(self, key: str) -> None:
        start, limit = self.dice.choice(((0, None), (0, None), (3, 9), (0, 5_000)))
        since = len(self.inner.history)
        found: bytes | None = None
        try:
            # Some readers give up, and must not cancel others.
            async with asyncio.timeout(self.dice.choice((None, None, 0.0005, 0.002))):
                found = (await self.store.get(key, start=start, limit=limit)).data
        except TimeoutError:
            return
        except ObjectNotFound:
            pass
        self.answers_count += 1
        states = self.inner.states(key, since)
        if found not in [state and state[start:limit] for state in states]:
            self.wrong.append(f"{key} gave {found!r}, and held {states}")

    async def write(self, key: str) -> None:
        self.writes_count += 1
        body = key.encode() * 150
        if key.startswith("m/"):
            await self.store.put(key, f"{self.writes_count}, then ".encode() * 3)
        elif self.dice.random() < 0.3:
            await self.store.put(key, body)
        else:
            # Processes without this cache create objects too.
            with suppress(ObjectExists):
                await self.dice.choice((self.store, self.slow)).put(key, body, if_absent=True)

    async def remove(self, key: str) -> None:
        await self.store.delete([key, self.dice.choice(KEYS)])

    async def damage(self) -> None:
        """Flip a bit in a copy from time to time, like a bad disk."""
        for _ in range(60):
            await self.clock.sleep(self.dice.randrange(1_500))
            files = sorted(file for file in self.directory.rglob("*") if file.is_file())
            if files:
                file = self.dice.choice(files)
                data = bytearray(file.read_bytes())
                data[-1 - self.dice.randrange(100)] ^= 4
                file.write_bytes(data)

    def _delays_us(self, op: str) -> tuple[int, int]:
        # A read may take longer than several changes.
        slow = self.dice.choice((100, 400, 9_000 if op == "get" else 1_000))
        return self.dice.randrange(slow), self.dice.randrange(slow)

    def _toss(self, request: Request) -> Fault:
        return Fault(happened=self.dice.random() > 0.05, told=self.dice.random() > 0.05)


def simulate(seed: int, path: Path) -> World:
    """Run six clients for a while, and a task that damages copies."""
    world = World(seed, path / f"{seed}")

    async def main() -> None:
        await asyncio.gather(*(world.client() for _ in range(6)), world.damage())
        await world.slow.settled()
        await world.clock.settled()
        assert len(asyncio.all_tasks()) == 1

    run(main, seed)
    return world


def test_no_read_is_wrong(tmp_path: Path) -> None:
    """No read is wrong under failures, delays, cancellations, damage, deletions and creations."""
    reads, answers_count = list[CacheReads](), 0
    for seed in SEEDS:
        world = simulate(seed, tmp_path)
        assert world.wrong == [], seed
        reads.append(world.store.reads())
        answers_count += world.answers_count

    totals = {
        name: sum(getattr(read, f"{name}_count") for read in reads)
        for name in ("memory", "disk", "joined", "store", "damaged", "failures")
    }
    print(f"seeds={len(SEEDS)} answers={answers_count} {totals}")
    assert totals.pop("failures") == 0
    assert min(totals.values()) >= len(SEEDS), "each way to answer was taken"


class AnyDigest(bytes):
    """A digest that equals every other one."""

    def __ne__(self, other: object) -> bool:
        return False


class KeepsAnyway(cached.Visit):
    """A visit that may always keep its result, even after the key was deleted."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, True)


def without_visits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cached, "Visit", KeepsAnyway)


def without_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedCalls, "next_number", 0)


def without_changing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cached.Visits, "changing", lambda self, key: False)


def without_leaving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedCalls, "leave", lambda self, names: None)


def without_dropping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cached_disk.Directory, "drop", lambda self, keys: None)


def without_checksums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(xxhash, "xxh3_128_digest", lambda data: AnyDigest())


@pytest.mark.parametrize(
    "broken",
    [
        without_visits,
        without_changing,
        without_numbers,
        without_leaving,
        without_dropping,
        without_checksums,
    ],
)
def test_each_rule_is_needed(
    broken: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The canaries: without any one of its rules, the cache returns a wrong answer."""
    broken(monkeypatch)

    assert any(simulate(seed, tmp_path).wrong for seed in SEEDS)
