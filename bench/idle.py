"""What a source costs that is followed and brings nothing: requests, and dollars a month.

    PYTHONPATH=tests python bench/idle.py

Four hours of a clock that does not wait, over a store in memory that counts requests, at S3's
prices. The source has times from the clock and one output shard.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from figures import print_table
from kit.clocks import SwiftClock
from tidelog.collection.create import SourceSpec
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import Summary
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore

SECOND = 1_000_000
HOURS = 4
HOURS_A_MONTH = 730
CASES = ((5, 60), (60, 60), (60, 3_600))  # Seconds: --interval and --heartbeat.


async def idle(folder: Path, *, interval: int, heartbeat: int) -> Summary:
    """Follow a source of one line for some hours."""
    clock = SwiftClock()
    (folder / "1.jsonl").write_text('{"k": 1}\n')
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=clock, store=store)
    await location.create_source(SourceSpec(name="s", files=str(folder), schema="k bigint"))
    ingester = await location.ingester("s")
    begun_us = clock.monotonic_us()
    return await run_ingest(
        ingester,
        follow=True,
        interval_us=interval * SECOND,
        heartbeat_us=heartbeat * SECOND,
        on_tick=lambda _: None,
        stop=lambda: clock.monotonic_us() - begun_us >= HOURS * 3_600 * SECOND,
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    for interval, heartbeat in CASES:
        with tempfile.TemporaryDirectory() as folder:
            done = asyncio.run(idle(Path(folder), interval=interval, heartbeat=heartbeat))
        store = done.store
        counts = (store.list_count, store.get_count, store.put_count)
        asked = [f"{count / HOURS:,.0f}" for count in counts]
        month = done.dollars / HOURS * HOURS_A_MONTH
        rows.append([f"{interval} s", f"{heartbeat} s", *asked, f"{month:.2f}"])
    names = ["--interval", "--heartbeat", "lists an hour", "gets", "puts", "$ a month"]
    print_table(names, rows)


if __name__ == "__main__":
    main()
