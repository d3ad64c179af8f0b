"""A keyed log next to SlateDB (its binding from PyPI): the same records, one process, a disk.

Both write a million records and compact them. Both then read one key (cold: opened again; warm:
read before), search for an absent key, count one key, and read all. Requests are GETs of the reads
alone. SlateDB's own metrics count its requests; tidelog's are counted at its store.

    python bench/keyed.py [--records N] [--keys N] [--skewed] [--rounds N] [--ours]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import print_table
from keyed_records import MadeRecords, made_records
from keyed_slatedb import SlateLog
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.values import Keys
from tidelog.location import Location, open_location
from tidelog.store.wrappers.metered import Usage, usage_of

READS = 30
AIMS = {
    "ingest, from pairs": "10",
    "ingest, from Arrow": "10",
    "count, warm": "0 data GETs",
    "one key, warm": "2 GETs, 64 KB",
    "all": "3",
}


@dataclass
class Side:
    """The seconds of one step in each round, and its requests in the last round."""

    seconds: list[float] = field(default_factory=list)
    gets: float = 0.0
    bytes: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Steps = dict[str, Side]


async def timed(steps: Steps, name: str, work: Awaitable[Any], asked: Callable[[], Usage]) -> Any:
    """Await some work, and record its seconds and requests."""
    before, begun = asked(), time.perf_counter()
    found = await work
    seconds, used = time.perf_counter() - begun, asked() - before
    side = steps.setdefault(name, Side())
    side.seconds.append(seconds)
    side.gets, side.bytes = float(used.get_count), float(used.read_bytes)
    return found


async def each(
    steps: Steps, name: str, calls: Sequence[Awaitable[Any]], asked: Callable[[], Usage]
) -> None:
    """Await calls one after the other, and record the cost of one of them."""

    async def all_of() -> None:
        for call in calls:
            await call

    await timed(steps, name, all_of(), asked)
    side = steps[name]
    side.seconds[-1] /= len(calls)
    side.gets, side.bytes = side.gets / len(calls), side.bytes / len(calls)


async def ours(steps: Steps, folder: Path, made: MadeRecords) -> None:
    lake = await open_location(folder / "lake", create=True)
    for name, is_arrow in (("pairs", False), ("arrow", True)):
        await (await lake.keyed.create(name)).close()
        log = await lake.keyed.open(name, maintenance=False)
        told = f"ingest, from {'Arrow' if is_arrow else 'pairs'}"
        # A program has its records in memory, so their creation is not timed.
        given = made.table if is_arrow else made.pairs
        await timed(steps, told, _ingest(log, given), lambda: usage_of(lake.store))
        if is_arrow:
            written = log.compact(full=True)
            await timed(steps, "compact", written, lambda: usage_of(lake.store))
        await log.close()
    await _read_ours(steps, await open_location(folder / "lake"), made)


async def _ingest(log: KeyedLog, given: Any) -> None:
    if isinstance(given, list):
        for at in range(0, len(given), 10_000):
            await log.append(given[at : at + 10_000], durable=False)
        await log.flush()
    else:
        await log.append_arrow(given)


async def _read_ours(steps: Steps, lake: Location, made: MadeRecords) -> None:
    def asked() -> Usage:
        return usage_of(lake.store)

    keys = sorted(set(made.keys))
    some = [keys[n * len(keys) // READS] for n in range(READS)]
    reader = await lake.keyed.reader("arrow", refresh_us=3_600_000_000)
    await reader.next_sequence()
    await timed(steps, "one key, cold", reader.scan(some[0]).to_arrow(), asked)
    for key in some:
        await reader.count(key)
    await each(steps, "one key, warm", [reader.scan(key).to_arrow() for key in some], asked)
    absent = [reader.scan(key + b"-not").to_arrow() for key in some]
    await each(steps, "absent key, warm", absent, asked)
    await each(steps, "count, warm", [reader.count(key) for key in some], asked)

    async def everything() -> int:
        return sum([table.num_rows async for table in reader.scan(Keys.all())])

    assert await timed(steps, "all", everything(), asked) == len(made.keys)
    await reader.close()


async def theirs(steps: Steps, folder: Path, made: MadeRecords) -> None:
    log = SlateLog(folder)

    def asked() -> Usage:
        return Usage(get_count=log.gets())

    await log.open()
    await timed(steps, "ingest, from pairs", log.ingest(made.pairs), Usage)
    steps["ingest, from Arrow"] = steps["ingest, from pairs"]  # SlateDB takes records one by one.
    await timed(steps, "compact", log.compact(), Usage)
    await log.close()
    log = SlateLog(folder)
    await log.open()
    keys = sorted(set(made.keys))
    some = [keys[n * len(keys) // READS] for n in range(READS)]
    await timed(steps, "one key, cold", log.scan(some[0]), asked)
    for key in some:
        await log.scan(key)
    await each(steps, "one key, warm", [log.scan(key) for key in some], asked)
    await each(steps, "absent key, warm", [log.scan(key + b"-not") for key in some], asked)
    await each(steps, "count, warm", [log.scan(key) for key in some], asked)
    assert await timed(steps, "all", log.scan_all(), asked) == len(made.keys)
    await log.close()


def told(our: Steps, their: Steps) -> None:
    """Print the steps side by side."""
    lines = []
    for name, side in our.items():
        other = their.get(name)
        times = "" if other is None else f"{other.median / side.median:.1f}"
        lines.append(
            [
                name,
                f"{side.median * 1e3:,.2f}",
                f"{side.gets:.1f}",
                f"{side.bytes / 1e3:,.1f}",
                "" if other is None else f"{other.median * 1e3:,.2f}",
                "" if other is None else f"{other.gets:.1f}",
                times,
                AIMS.get(name, ""),
            ]
        )
    head = ["", "tidelog, ms", "GETs", "KB", "SlateDB, ms", "GETs", "times as fast", "aim"]
    print_table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--skewed", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ours", action="store_true", help="tidelog alone")
    given = parser.parse_args()
    made = made_records(given.records, given.keys, is_skewed=given.skewed)
    our: Steps = {}
    their: Steps = {}
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(ours(our, Path(folder), made))
        if not given.ours:
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(theirs(their, Path(folder), made))
    told(our, their)


if __name__ == "__main__":
    main()
