"""The requests of followers of a keyed log, by the number of its keys.

All keys are in loose records. Each follower follows one key, and all followers are in one process.
A second `Location` appends. The requests must not depend on the number of keys.

    python bench/keyed_followers.py [--keys N N] [--followers N]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from dataclasses import dataclass

from figures import print_table
from tidelog.location import open_location
from tidelog.store.wrappers.metered import usage_of

APPENDS = 20
RECORDS = 5_000
BATCH = 10_000


@dataclass(frozen=True)
class Asked:
    """The requests of the followers' process: at the start, during appends, and idle."""

    begun: int
    begun_s: float
    busy: float
    busy_kb: float
    idle: float
    given: int


async def followed(keys: int, followers: int) -> Asked:
    """Return the followers' requests; units: requests, and requests a second."""
    with tempfile.TemporaryDirectory() as folder:
        lake = await open_location(folder, create=True)
        await (await lake.keyed.create("log")).close()
        log = await lake.keyed.open("log", maintenance=False)
        names = [b"key-%08d" % number for number in range(keys)]
        for at in range(0, keys, BATCH):
            await log.append([(name, b"v" * 100) for name in names[at : at + BATCH]])
        other = await open_location(folder)
        reader = await other.keyed.reader("log")
        given = [0] * followers
        before, begun = usage_of(other.store), time.perf_counter()

        async def follow(number: int) -> None:
            async for table in reader.follow(names[number * keys // followers], start=0):
                given[number] += table.num_rows

        tasks = [asyncio.create_task(follow(number)) for number in range(followers)]
        while min(given) == 0:  # noqa: ASYNC110 - what is waited for is many tasks' work
            await asyncio.sleep(0.01)
        begun_s, at_first = time.perf_counter() - begun, usage_of(other.store) - before
        dice, before, begun = random.Random(7), usage_of(other.store), time.perf_counter()
        for _ in range(APPENDS):
            await log.append([(dice.choice(names), b"new") for _ in range(RECORDS)])
            await asyncio.sleep(0.1)
        busy_s, busy = time.perf_counter() - begun, usage_of(other.store) - before
        before = usage_of(other.store)
        await asyncio.sleep(5)
        idle = usage_of(other.store) - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await reader.close()
        await log.close()
        return Asked(
            begun=at_first.requests_count,
            begun_s=begun_s,
            busy=busy.requests_count / busy_s,
            busy_kb=busy.read_bytes / 1e3 / APPENDS,
            idle=idle.requests_count / 5,
            given=sum(given) - followers,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--followers", type=int, default=1_000)
    given = parser.parse_args()
    lines = []
    for keys in given.keys:
        found = asyncio.run(followed(keys, given.followers))
        lines.append(
            [
                f"{keys:,}",
                f"{given.followers:,}",
                f"{found.begun}",
                f"{found.begun_s:.2f}",
                f"{found.busy:.1f}",
                f"{found.busy_kb:.1f}",
                f"{found.idle:.1f}",
                f"{found.given:,}",
            ]
        )
    head = ["keys", "followers", "requests to begin", "s", "requests/s while records come"]
    print_table([*head, "KB an append", "requests/s idle", "records given"], lines)


if __name__ == "__main__":
    main()
