"""The requests of a source that is followed, idle or busy, and their dollars a month.

    PYTHONPATH=tests:. python bench/idle.py           # a source without new rows
    PYTHONPATH=tests:. python bench/idle.py --busy    # a row before each tick, merges included

The clock is simulated. The store is in memory and counts requests, at S3's prices. The source takes
times from the clock and has one output shard. The idle case covers four hours, the busy one 300
ticks.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from figures import print_table
from kit.clocks import SwiftClock
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore

SECOND = 1_000_000
HOURS = 4
HOURS_A_MONTH = 730
CASES = ((5, 60), (60, 60), (60, 3_600))  # Seconds: --interval and --heartbeat.
BUSY_INTERVALS = (1, 60)  # Seconds.
BUSY_TICKS = 300


class Growing(SwiftClock):
    """A simulated clock; a file gets a new row while the ingester waits after a tick."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.is_due = False

    async def sleep(self, duration_us: int) -> None:
        if self.is_due:
            self.is_due = False
            with self.file.open("a") as lines:
                lines.write('{"k": 1}\n')
        await super().sleep(duration_us)


@dataclass(frozen=True, slots=True)
class Case:
    """A source that is followed for some hours, with or without a new row before each tick."""

    hours: float
    interval: int
    heartbeat: int
    is_busy: bool

    async def run(self, folder: Path) -> Summary:
        """Return the results of a run."""
        file = folder / "1.jsonl"
        clock, store = Growing(file), MemoryStore(name="memory://")
        file.write_text('{"k": 1}\n')
        location = await open_location("memory://", create=True, clock=clock, store=store)
        await location.sources.create(SourceSpec(name="s", files=str(folder), schema="k bigint"))
        begun_us = clock.monotonic_us()

        def ticked(_: object) -> None:
            clock.is_due = self.is_busy

        return await run_ingest(
            await location.sources.ingester("s"),
            follow=True,
            interval_us=self.interval * SECOND,
            heartbeat_us=self.heartbeat * SECOND,
            on_tick=ticked,
            stop=lambda: clock.monotonic_us() - begun_us >= self.hours * 3_600 * SECOND,
            merges=self.is_busy,
        )

    def line(self) -> list[str]:
        """Return the figures: per hour if the source is idle, per tick if it is busy."""
        with tempfile.TemporaryDirectory() as folder:
            done = asyncio.run(self.run(Path(folder)))
        counts = (done.store.list_count, done.store.get_count, done.store.put_count)
        of, places = (done.ticks, 2) if self.is_busy else (self.hours, 0)
        asked = [f"{count / of:,.{places}f}" for count in counts]
        month = done.dollars / self.hours * HOURS_A_MONTH
        return [f"{self.interval} s", f"{self.heartbeat} s", *asked, f"{month:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", action="store_true")
    is_busy = parser.parse_args().busy
    if is_busy:
        cases = [
            Case(BUSY_TICKS * interval / 3_600, interval, 60, is_busy)
            for interval in BUSY_INTERVALS
        ]
    else:
        cases = [Case(HOURS, *seconds, is_busy) for seconds in CASES]
    first = "lists a tick" if is_busy else "lists an hour"
    names = ["--interval", "--heartbeat", first, "gets", "puts", "$ a month"]
    print_table(names, [case.line() for case in cases])


if __name__ == "__main__":
    main()
