"""Processes of a source of three shards, and of one that follows it, killed at random moments.

The shards commit as one group. The model is the newest row of each key in the files. The follower
has the rows of the source at each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit.sources import compact, lake_of, rows_of, run_once, table_of
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import Location, open_location

SPAN_S, KILLS = 120.0, 8
KEYS = 40
FOLLOWING = ("--follow", "--interval", "100ms", "--max-bytes-per-tick", "2000")
COMMANDS = (
    ("ingest", "c", *FOLLOWING),
    ("ingest", "c", *FOLLOWING),
    ("ingest", "d", *FOLLOWING),
    ("compact", "--full"),
    ("collect", "--grace", "0s", "--sweep"),
)


@pytest.mark.parametrize("retain", ["forever", "0s"])
def test_no_row_is_lost_while_the_processes_of_a_group_are_killed(
    tmp_path: Path, retain: str
) -> None:
    """Two ingesters, a follower, merges and sweeps work at once, and one of them is killed often.

    A kill waits for some commits after the one before it.
    """
    dice = random.Random(retain)
    newest = asyncio.run(prepare(tmp_path, retain))
    running = [start(tmp_path, command) for command in COMMANDS]
    versions, seen, kills = states(tmp_path), 0, 0
    until = time.monotonic() + SPAN_S
    try:
        while kills < KILLS and time.monotonic() < until:
            newest |= add_file(tmp_path, dice)
            time.sleep(dice.uniform(0, 0.2))
            versions |= states(tmp_path)
            is_due = len(versions) > seen + dice.randrange(4)
            killed = dice.randrange(len(COMMANDS)) if is_due else -1
            for at, command in enumerate(COMMANDS):
                if at == killed or running[at].poll() is not None:
                    assert kill(running[at]), (tmp_path / "said").read_text()[-2000:]
                    running[at] = start(tmp_path, command)
            if is_due:
                kills, seen = kills + 1, len(versions)
    finally:
        for one in running:
            kill(one)

    assert kills == KILLS
    asyncio.run(check(tmp_path, newest))


def states(folder: Path) -> set[tuple[str, int]]:
    """Return the objects of groups, each with the time of its newest version."""
    return {(one.name, one.stat().st_mtime_ns) for one in (folder / "lake/consensus").glob("g*")}


async def prepare(folder: Path, retain: str) -> dict[int, int]:
    location = await lake_of(
        folder, schema="k bigint, v bigint", envelope="upsert", key=("k",), shards=3, retain=retain
    )
    settings = {"collection": "c"}
    await location.sources.create(
        SourceSpec(name="d", kind="collection", settings=settings, shards=3)
    )
    return add_file(folder, random.Random(0))


def add_file(folder: Path, dice: random.Random) -> dict[int, int]:
    """Write a file of some rows; return the newest value of each key in it."""
    number = len(list((folder / "in").iterdir()))
    rows = [(dice.randrange(KEYS), 1_000 * number + n) for n in range(dice.randrange(1, 30))]
    hidden = folder / "in" / "_next"
    hidden.write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows))
    hidden.rename(folder / "in" / f"{number:06d}.jsonl")
    return dict(rows)


def start(folder: Path, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    whole = [sys.executable, "-m", "tidelog.cli.main", "--location", str(folder / "lake"), *command]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            whole, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill a process; return False if it had failed before."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() in (0, -signal.SIGKILL)


async def check(folder: Path, newest: dict[int, int]) -> None:
    location = await open_location(str(folder / "lake"))
    for name in ("c", "d"):
        await run_once(await location.sources.ingester(name))
    expected = sorted(repr({"k": k, "v": v, "_diff": 1}) for k, v in newest.items())
    assert rows_of(await table_of(location, "c")) == expected
    assert rows_of(await table_of(location, "d")) == expected
    assert await times_that_differ(location) == []
    await compact(location)
    assert rows_of(await table_of(location, "d")) == expected


async def times_that_differ(location: Location) -> list[int]:
    """Return the common readable times at which the follower has other rows."""
    one, other = await location.collection("c"), await location.collection("d")
    await one.refresh()
    await other.refresh()
    assert one.upper == other.upper
    since = max(one.since.time, other.since.time)
    changes = (await one.changes(since=since)).column("_time").to_numpy()
    changed = sorted({int(time) for time in changes})
    times = random.Random(1).sample(changed, min(8, len(changed)))
    return [
        time
        for time in [since, *times]
        if rows_of(await one.consolidated(time)) != rows_of(await other.consolidated(time))
    ]
