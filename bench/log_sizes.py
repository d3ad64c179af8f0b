"""The bytes that a slot log stores in addition to records: its manifest, and a fence.

    python bench/log_sizes.py [--streams N ...]

Streams are open, and have the short ids ``0``, ``1``, ... and no meta. Each open leaves one fence
forever. The figures are bytes, so they do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from figures import print_table
from tidelog.core.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log, open_log

CLOCK: Final = SystemClock()
SLOTS: Final = "epoch/"


async def made(store: MemoryStore) -> Log:
    return await create_log(store, name="bench", clock=CLOCK, writer="bench", protocol="slot")


async def manifest_bytes(streams_count: int) -> int:
    """Return the size of the manifest of a log with ``streams_count`` open streams, no records."""
    store = MemoryStore()
    async with await made(store) as log:
        await asyncio.gather(*(log.open_stream(b"%d" % n) for n in range(streams_count)))
    return len((await store.get(MANIFEST)).data)


async def fence_bytes() -> list[int]:
    """Return the sizes of the objects that three opens leave, without the record of each."""
    store = MemoryStore()
    await made(store)
    found: list[int] = []
    for _ in range(3):
        known = {entry.key async for entry in store.list(SLOTS)}
        async with await open_log(store, name="bench", clock=CLOCK, writer="bench") as log:
            await log.append([b"one"])
            last = (await log.fragments())[-1]
        found += [
            entry.size_bytes
            async for entry in store.list(SLOTS)
            if entry.key not in known and entry.key != last.path
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="*", default=[0, 100, 10_000])
    given = parser.parse_args()
    print("## What lies besides records\n")
    rows = [
        [f"the manifest, {count:,} streams open", f"{asyncio.run(manifest_bytes(count)):,}"]
        for count in given.streams
    ]
    sizes = asyncio.run(fence_bytes())
    rows.append([f"a fence ({len(sizes)} of {len(sizes)} opens)", f"{max(sizes):,}"])
    print_table(["what", "bytes"], rows)


if __name__ == "__main__":
    main()
