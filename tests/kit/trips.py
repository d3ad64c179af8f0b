"""`python -m kit.trips [TRIP]`: the files and calls of one append, one keyed scan and one tick.

A *stay* is a run of calls within one file. Give the name of a trip to list its stays. A resumption
of a coroutine is no call, and libraries do not count.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, Self

import tidelog
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.slot_protocol.shape import Shape

ROOT = str(Path(tidelog.__file__).parent)
HOUR_US = 3_600_000_000  # No roll-up comes between the appends.
FIRST_INSTRUCTIONS = 8  # A frame beyond these has run before: its call is a resumption.
Visit = tuple[str, list[str]]
Trip = Callable[["Trace"], Coroutine[None, None, None]]


class Trace:
    """The stays of all threads while the trace is on."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self.is_on = False

    def hook(self, frame: FrameType, event: str, _: Any) -> None:  # Any: an argument of sys.
        code = frame.f_code
        if not self.is_on or event != "call" or not code.co_filename.startswith(ROOT):
            return
        if frame.f_lasti > FIRST_INSTRUCTIONS:
            return
        if not self.visits or self.visits[-1][0] != code.co_filename:
            self.visits.append((code.co_filename, []))
        self.visits[-1][1].append(code.co_name)

    def __enter__(self) -> Self:
        self.is_on = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_on = False

    @property
    def figures(self) -> tuple[int, int, int]:
        """The numbers of files, of stays and of calls."""
        files = {path for path, _ in self.visits}
        return len(files), len(self.visits), sum(len(calls) for _, calls in self.visits)


async def append(trace: Trace) -> None:
    """Append one record to a log that this process has written before."""
    location = await open_location("memory://", create=True, store=MemoryStore())
    # On a busy machine the append must be answered before the writer looks for the next batch.
    log = await location.logs.create(
        "events",
        shape=Shape(rollup_interval_us=HOUR_US),
        batching=Batching(interval_us=100_000),
    )
    for body in (b"one", b"two"):
        await log.append([body])
    with trace:
        await log.append([b"three"])
    await log.close()


async def keyed_scan(trace: Trace) -> None:
    """Scan one key: a run has one record of it, and a loose fragment has another."""
    location = await open_location("memory://", create=True, store=MemoryStore())
    log = await location.keyed.create("orders")
    await log.append([(b"user-7", b"tea"), (b"user-9", b"jam")])
    await log.compact(full=True)
    await log.append([(b"user-7", b"milk")])
    await log.close()
    reader = await location.keyed.reader("orders", refresh_us=0)
    with trace:
        tables = [table async for table in reader.scan(b"user-7")]
    assert sum(table.num_rows for table in tables) == 2
    await reader.close()


async def ingest(trace: Trace) -> None:
    """Run the tick of an ingester that finds one new line of JSON; ticks before it had one each."""
    location = await open_location("memory://", create=True, store=MemoryStore())
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        rows.touch()
        spec = SourceSpec(name="s", files=folder, schema="k bigint, text varchar")
        await location.sources.create(spec)
        ingester = await location.sources.ingester("s")
        for number in range(3):
            with rows.open("a") as file:
                file.write(f'{{"k": {number}, "text": "new"}}\n')
            if number < 2:
                await ingester.tick(await ingester.source.head())
        with trace:
            tick = await ingester.tick(await ingester.source.head())
    assert tick is not None
    assert tick.rows == 1


TRIPS: dict[str, Trip] = {"append": append, "keyed-scan": keyed_scan, "ingest": ingest}


def traced(trip: Trip) -> Trace:
    """Return the trace of one trip, with all threads that it starts."""
    trace = Trace()
    threading.setprofile(trace.hook)
    sys.setprofile(trace.hook)
    try:
        asyncio.run(trip(trace))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return trace


def main(names: list[str]) -> None:
    print(f"{'trip':12} {'files':>5} {'stays':>5} {'calls':>5}")
    for name, trip in TRIPS.items():
        trace = traced(trip)
        print(f"{name:12} " + " ".join(f"{number:5}" for number in trace.figures))
        if name in names:
            for path, calls in trace.visits:
                print(f"    {path.removeprefix(ROOT)[1:]}: {' '.join(calls)}")


if __name__ == "__main__":
    main(sys.argv[1:])
