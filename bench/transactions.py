"""Commits to several shards: round trips on a slow store, and rates on the disk.

A round trip is 30 ms. "applied at once" is the protocol before decision 28: each commit is written
to its shards before the call returns, and a commit that loses a race is tried again by its caller.
Each row is measured both ways in turn.

    python bench/transactions.py [--times N] [--delay-ms N] [--seconds N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from figures import percentile, print_table
from tidelog.core.clock import SystemClock
from tidelog.location import Location, open_location
from tidelog.persist.states.transition import Verdict
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import DelayedStore

FIELDS: list[pa.Field[Any]] = [pa.field("k", pa.int64()), pa.field("text", pa.string())]
SCHEMA = pa.schema(FIELDS)
ROWS = pa.table({"k": [1, 2, 3, 4], "text": ["x" * 50] * 4}, schema=SCHEMA)
Commit = Callable[[Transactions, list[str]], Awaitable[int]]  # Returns the number of tries.


async def insert_lazily(found: Transactions, names: list[str]) -> int:
    """Insert at the next time."""
    await found.insert(dict.fromkeys(names, ROWS))
    return 1


async def insert_at_once(found: Transactions, names: list[str]) -> int:
    """Commit at the upper that this handle knows, until no other writer is first; then apply."""
    for tries in count(1):
        upper = found.state.upper
        rows = ROWS.append_column("_time", pa.array([upper] * 4))
        rows = rows.append_column("_diff", pa.array([1] * 4))
        done = await found.try_compare_and_append(dict.fromkeys(names, rows), upper, upper + 1)
        if done.verdict is Verdict.COMMITTED:
            await found._apply_known()
            return tries
        await found.refresh()
    raise AssertionError


async def begin_and_commit(found: Transactions, names: list[str]) -> int:
    """Begin, write and commit."""
    begun = await found.begin()
    for name in names:
        begun.write(name, ROWS)
    await begun.commit()
    return 1


async def begin_and_apply(found: Transactions, names: list[str]) -> int:
    """Begin, write, commit and apply."""
    await begin_and_commit(found, names)
    await found._apply_known()
    return 1


@dataclass(frozen=True, slots=True)
class Place:
    """A location with registered shards."""

    location: Location

    async def transactions(self, name: str, shards: int) -> tuple[Transactions, list[str]]:
        """Return transactions over new shards, and the names of these."""
        found = self.location.shards.transactions(name)
        names = [f"{name}-{number}" for number in range(shards)]
        for one in names:
            await found.register(self.location.shard(one, schema=SCHEMA, key=["k"]))
        return found, names


async def round_trips(place: Place, name: str, shards: int, commit: Commit, times: int) -> str:
    """Return p50 and p95 of a commit, after one that makes the handle know its shards."""
    found, names = await place.transactions(name, shards)
    await commit(found, names)
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        await commit(found, names)
        seconds.append(time.perf_counter() - begun)
    trip = DELAY_S[0]
    return f"{percentile(seconds, 0.5) / trip:.2f}, {percentile(seconds, 0.95) / trip:.2f}"


async def rate(
    place: Place, name: str, commit: Commit, *, writers: int, handles: int, seconds: float
) -> str:
    """Return commits per second of writers that share handles, and the tries of each."""
    first, names = await place.transactions(name, 1)
    more = [place.location.shards.transactions(name) for _ in range(handles - 1)]
    tries: list[int] = []
    begun = time.perf_counter()

    async def write(found: Transactions) -> None:
        await found.refresh()
        while time.perf_counter() - begun < seconds:
            tries.append(await commit(found, names))

    each = [first, *more]
    await asyncio.gather(*(write(each[number % handles]) for number in range(writers)))
    elapsed = time.perf_counter() - begun
    return f"{len(tries) / elapsed:.0f} ({sum(tries) / len(tries):.1f})"


DELAY_S = [0.03]


async def measure_trips(times: int, delay_ms: int) -> None:
    """Print the round trips of commits."""
    clock = SystemClock()
    DELAY_S[0] = delay_ms / 1e3
    slow = DelayedStore(MemoryStore(), clock=clock, delay_us=lambda _op, _key: delay_ms * 1_000)
    place = Place(await open_location("memory://", create=True, clock=clock, store=slow))
    rows = []
    for shards in (1, 3, 10):
        cells = [
            await round_trips(place, f"{which}{shards}", shards, commit, times)
            for which, commit in (("eager", insert_at_once), ("lazy", insert_lazily))
        ]
        rows.append([f"insert, {shards} shards", *cells])
    cells = [
        await round_trips(place, f"begun-{which}", 3, commit, times)
        for which, commit in (("eager", begin_and_apply), ("lazy", begin_and_commit))
    ]
    rows.append(["begin, write, commit, 3 shards", *cells])
    print(f"round trips of {delay_ms} ms: p50, p95\n")
    print_table(["operation", "applied at once", "lazy"], rows)


async def measure_rates(folder: Path, seconds: float) -> None:
    """Print the commits per second on a disk."""
    place = Place(await open_location(folder.as_uri(), create=True))
    rows = []
    for writers, handles in ((1, 1), (6, 6), (16, 1), (16, 16)):
        cells = [
            await rate(
                place,
                f"{which}-{writers}-{handles}",
                commit,
                writers=writers,
                handles=handles,
                seconds=seconds,
            )
            for which, commit in (("eager", insert_at_once), ("lazy", insert_lazily))
        ]
        rows.append([f"{writers} writers, {handles} handles", *cells])
    print("inserts per second on the file store (tries of each)\n")
    print_table(["writers", "applied at once", "lazy"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--delay-ms", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    asyncio.run(measure_trips(given.times, given.delay_ms))
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=given.folder))
    try:
        asyncio.run(measure_rates(folder, given.seconds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
