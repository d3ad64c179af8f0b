"""The requests, dollars and seconds of a tick of a followed source, and of a source without data.

    PYTHONPATH=tests:. python bench/ticks.py [--ticks N] [--rows N] [--hours N] [--s3] [--trace]

The real ingester follows a folder of json files, as `tidelog ingest --follow` does, with merges.
Before each busy tick a new file appears; the idle source gets none. The clock is simulated, so
waits take no time. The location is in memory, with the consensus in the store. With ``--s3``, the
location and the files are in SeaweedFS on this machine. The columns "files" count the requests to
the store of the files: on a disk, a list is one walk through the folder. ``--trace`` prints the
requests to the location of the last tick. Prices are S3's, of the location and the files together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from figures import print_table
from kit.clocks import SwiftClock
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.urls import open_store
from tidelog.store.wrappers.metered import Usage, usage_of
from tidelog.testing import RecordedStore

SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND
FIRST_MS: Final = 1_700_000_000_000
HOURS_A_YEAR: Final = 8_766
SOURCES: Final = 100
WARM_TICKS: Final = 5
WARM_US: Final = 60 * SECOND
# Seconds: --interval and --heartbeat.
IDLE_CASES: Final = ((5, 60), (60, 60), (60, 3_600), (120, 3_600))


class Growing(SwiftClock):
    """A simulated clock; a new file appears while the ingester waits, if one is due."""

    def __init__(self, files: Store, rows: int) -> None:
        super().__init__()
        self.files, self.rows = files, rows
        self.written = 0
        self.is_due = True

    async def sleep(self, duration_us: int) -> None:
        if self.is_due:
            self.is_due = False
            await self.write()
        await super().sleep(duration_us)

    async def write(self) -> None:
        """Write the next file."""
        first = self.written * self.rows
        lines = (
            b'{"k": %d, "at": %d}\n' % (n, FIRST_MS + n) for n in range(first, first + self.rows)
        )
        await self.files.put(f"{self.written:08}.json", b"".join(lines))
        self.written += 1


@dataclass(frozen=True, slots=True)
class Place:
    """The URLs of a location (None: in memory) and of the files, new for each run."""

    location: str | None
    files: str
    source: str  # The URL of the files without keys, as the catalog stores it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The requests up to a moment of a run."""

    at_us: int
    seconds: float
    ticks: int
    location: Usage
    files: Usage
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The requests between two moments of a run; ``requests`` are those of the last tick."""

    ticks: int
    hours: float
    seconds: float
    location: Usage
    files: Usage
    requests: tuple[str, ...] = ()

    @property
    def dollars(self) -> float:
        return self.location.dollars + self.files.dollars


@dataclass(slots=True, kw_only=True)
class Run:
    """A followed source: ``hours`` without data if given, else ``ticks`` with a file each."""

    shards: int = 1
    timed: bool = False
    ticks: int = 0
    hours: float = 0.0
    rows: int = 100
    interval: int = 1
    heartbeat: int = 60
    moments: list[Moment] = field(default_factory=list)
    _ingester: Ingester | None = None
    _records: RecordedStore | None = None

    async def measure(self, place: Place) -> Cost:
        """Follow the source, and return the cost after the first ticks or the first minute."""
        files = open_store(place.files, clock=SwiftClock(), create=True)
        clock = Growing(files, self.rows)
        base = MemoryStore() if place.location is None else open_store(place.location, clock=clock)
        self._records = RecordedStore(base)
        url = place.location or "memory://"
        location = await open_location(url, create=True, clock=clock, store=self._records)
        await clock.write()
        await location.sources.create(
            SourceSpec(
                name="s",
                files=place.source,
                schema="k bigint, at bigint",
                shards=self.shards,
                time_column="at" if self.timed else None,
            )
        )
        self._ingester = await location.sources.ingester("s")
        await run_ingest(
            self._ingester,
            follow=True,
            interval_us=self.interval * SECOND,
            heartbeat_us=self.heartbeat * SECOND,
            on_tick=lambda told: self._ticked(clock, is_tick=told.tick is not None),
            stop=lambda: self._is_done(clock),
            merges=True,
        )
        return self.cost()

    def cost(self) -> Cost:
        """Return the cost between the first counted moment and the last one."""
        begun, ended = self.moments[0], self.moments[-1]
        assert self._records is not None
        last = self._records.records[self.moments[-2].records : ended.records]
        return Cost(
            ticks=ended.ticks - begun.ticks,
            hours=(ended.at_us - begun.at_us) / HOUR,
            seconds=ended.seconds - begun.seconds,
            location=ended.location - begun.location,
            files=ended.files - begun.files,
            requests=tuple(f"{one.op} {one.key}" for one in last),
        )

    def _ticked(self, clock: Growing, *, is_tick: bool) -> None:
        """Count a tick; the next file then appears during the wait that follows."""
        if self.hours or not is_tick:
            return
        clock.is_due = True
        if clock.written > WARM_TICKS:
            self.moments.append(self._now(clock, clock.written))

    def _is_done(self, clock: Growing) -> bool:
        if not self.hours:
            return len(self.moments) > self.ticks
        clock.is_due = False
        since_us = clock.slept_us - WARM_US
        if since_us >= self.hours * HOUR * len(self.moments):
            self.moments.append(self._now(clock, 0))
        return len(self.moments) > 1

    def _now(self, clock: Growing, ticks: int) -> Moment:
        assert self._ingester is not None
        assert self._records is not None
        return Moment(
            at_us=clock.slept_us,
            seconds=time.perf_counter(),
            ticks=ticks,
            location=usage_of(self._ingester.store),
            files=self._ingester.source.usage(),
            records=len(self._records.records),
        )


def busy(place: Place, given: argparse.Namespace, *, shards: int, timed: bool) -> Cost:
    """Return the cost of ticks with a new file each."""
    run = Run(shards=shards, timed=timed, ticks=given.ticks, rows=given.rows)
    return asyncio.run(run.measure(place))


def print_busy(place_of: Iterator[Place], given: argparse.Namespace) -> None:
    """Print the cost of a tick with a new file, for one and three shards."""
    cases = [(timed, shards) for timed in (False, True) for shards in (1, 3)]
    costs = [busy(next(place_of), given, shards=shards, timed=timed) for timed, shards in cases]
    rows = []
    for (timed, shards), cost in zip(cases, costs, strict=True):
        where, files = cost.location, cost.files
        counts = [where.put_count, where.get_count, where.list_count, where.delete_count]
        each = (count / cost.ticks for count in [*counts, files.get_count, files.list_count])
        dollars = f"{cost.dollars / cost.ticks * 1e6:.2f}"
        seconds = f"{cost.seconds / cost.ticks:.3f}"
        names = ["data" if timed else "clock", str(shards)]
        rows.append([*names, *(f"{count:.2f}" for count in each), dollars, seconds])
    print(f"Busy: {given.ticks} ticks of {given.rows} rows; requests and seconds a tick\n")
    head = ["times", "shards", "puts", "gets", "lists", "deletes", "files: gets", "lists"]
    print_table([*head, "$ a million ticks", "seconds"], rows)
    for row, cost in zip(rows, costs, strict=True) if given.trace else ():
        title = f"The last tick with times from the {row[0]} and {row[1]} shards:"
        print(title, *cost.requests, "", sep="\n")


def print_idle(place_of: Iterator[Place], hours: float) -> None:
    """Print the cost of an hour without new data."""
    cases = [(False, *case) for case in IDLE_CASES] + [(True, *IDLE_CASES[0])]
    rows = []
    for timed, interval, heartbeat in cases:
        run = Run(timed=timed, hours=hours, interval=interval, heartbeat=heartbeat)
        cost = asyncio.run(run.measure(next(place_of)))
        where, files = cost.location, cost.files
        counts = [where.put_count, where.get_count, where.list_count]
        each = (count / cost.hours for count in [*counts, files.get_count, files.list_count])
        names = ["data" if timed else "clock", f"{interval} s", f"{heartbeat} s"]
        year = f"{cost.dollars / cost.hours * HOURS_A_YEAR * SOURCES:,.0f}"
        rows.append([*names, *(f"{count:.0f}" for count in each), year])
    print(f"Idle: {hours:g} hours without new data, one shard; requests an hour\n")
    head = ["times", "--interval", "--heartbeat", "puts", "gets", "lists", "files: gets", "lists"]
    print_table([*head, f"$ a year, {SOURCES} sources"], rows)


@contextmanager
def places(*, on_s3: bool) -> Iterator[Iterator[Place]]:
    """Yield an iterator of new places: in memory and on the disk, or in an S3 server."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        root = Path(folder)
        if not on_s3:
            folders = (str(root / f"in{number}") for number in range(1_000))
            yield (Place(None, url, url) for url in folders)
            return
        from kit.s3_servers import KEYS, SeaweedServer

        os.environ.update(KEYS)
        with SeaweedServer(root) as server:
            yield (
                Place(
                    server.url(f"lake{number}"),
                    server.url(f"in{number}"),
                    server.source_url(f"in{number}"),
                )
                for number in range(1_000)
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--rows", type=int, default=100, help="of each tick")
    parser.add_argument("--hours", type=float, default=1.0, help="without data")
    parser.add_argument("--s3", action="store_true", help="location and files in SeaweedFS")
    parser.add_argument("--trace", action="store_true", help="print the requests of a tick")
    given = parser.parse_args()
    with places(on_s3=given.s3) as place_of:
        print_busy(place_of, given)
        print_idle(place_of, given.hours)


if __name__ == "__main__":
    main()
