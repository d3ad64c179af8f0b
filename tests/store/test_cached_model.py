"""Many readers and writers through one cache, on a store that is slow and fails.

Each seed is one run in virtual time. What a read gives must be what the store held at some moment
between its beginning and its end; copies on disk are damaged meanwhile.
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
from kit.stores import Lingering
from sim.kernel.loop import run
from tidelog.errors import LocationError, ObjectExists, ObjectNotFound
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers import cached_disk, cached_visits
from tidelog.store.wrappers.cached import Cached, CacheReads, CacheSize
from tidelog.store.wrappers.flights import SharedCalls
from tidelog.store.wrappers.hedged import Hedged
from tidelog.store.wrappers.hedging import Hedging
from tidelog.testing import Fault, Faulty, Request

SEEDS = range(50)
KEYS = [f"i/{number}" for number in range(4)] + ["m/0"]


class Witnessed(MemoryStore):
    """Remembers every state of every key, in the order in which they came."""

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
        """Return what ``key`` held when the history had that length, and all it held since."""
        before = [data for of, data in self.history[:since] if of == key]
        return [*(before[-1:] or [None]), *(data for of, data in self.history[since:] if of == key)]


class World:
    """One store with its troubles, one cache, and what readers were told that was not so."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.dice = random.Random(f"world {seed}")
        # Threads, too, take time, and go on when their caller is cancelled.
        self.clock = LateClock(seed, delay_us=lambda: self.dice.choice((0, 0, 50, 500)))
        self.inner = Witnessed()
        self.directory = directory
        faulty = Faulty(self.inner, toss=self._toss)
        self.slow = Lingering(faulty, clock=self.clock, delays_us=self._delays_us)
        # Every other run with slow reads sent twice below, as both are meant to be used.
        hedging = Hedging(least_us=500, most_us=500, samples_min=1, extra_permille=1_000)
        self.store = Cached(
            Hedged(self.slow, clock=self.clock, hedging=hedging) if seed % 2 else self.slow,
            clock=self.clock,
            is_immutable=lambda key: key.startswith("i/"),
            # One of the bodies in memory, three or four of them on disk.
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
            # Some give up, and must take nobody along.
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
            # Others, who have no part in this cache, create objects too.
            with suppress(ObjectExists):
                await self.dice.choice((self.store, self.slow)).put(key, body, if_absent=True)

    async def remove(self, key: str) -> None:
        await self.store.delete([key, self.dice.choice(KEYS)])

    async def damage(self) -> None:
        """Flip a bit in a copy now and then, as a bad disk does."""
        for _ in range(60):
            await self.clock.sleep(self.dice.randrange(1_500))
            files = sorted(file for file in self.directory.rglob("*") if file.is_file())
            if files:
                file = self.dice.choice(files)
                data = bytearray(file.read_bytes())
                data[-1 - self.dice.randrange(100)] ^= 4
                file.write_bytes(data)

    def _delays_us(self, op: str) -> tuple[int, int]:
        # A read may outlast several changes.
        slow = self.dice.choice((100, 400, 9_000 if op == "get" else 1_000))
        return self.dice.randrange(slow), self.dice.randrange(slow)

    def _toss(self, request: Request) -> Fault:
        return Fault(happened=self.dice.random() > 0.05, told=self.dice.random() > 0.05)


def simulate(seed: int, path: Path) -> World:
    """Let six clients go on for a while, and one damage copies."""
    world = World(seed, path / f"{seed}")

    async def main() -> None:
        await asyncio.gather(*(world.client() for _ in range(6)), world.damage())
        await world.slow.settled()
        await world.clock.settled()
        assert len(asyncio.all_tasks()) == 1

    run(main, seed)
    return world


def test_no_read_is_wrong(tmp_path: Path) -> None:
    """Whatever fails, is slow, is cancelled, is damaged, is deleted and created meanwhile."""
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
    """Is never another than the one it is compared with."""

    def __ne__(self, other: object) -> bool:
        return False


class KeepsAnyway(cached_visits.Visit):
    """May keep what it learned before the key was deleted."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, True)


def without_visits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cached_visits, "Visit", KeepsAnyway)


def without_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedCalls, "next_number", 0)


def without_changing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cached_visits.Visits, "changing", lambda self, key: False)


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
    """The canaries: without any one of its rules, the cache gives what it must not."""
    broken(monkeypatch)

    assert any(simulate(seed, tmp_path).wrong for seed in SEEDS)
