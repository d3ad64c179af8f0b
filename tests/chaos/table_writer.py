"""A table of three shards that writers change while they are killed, and a follower of it.

``python -m chaos.table_writer URL SEED`` changes the table until it is killed. Each printed line
is an acknowledged upsert: its time and its row.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import tidelog
from chaos.checks import FOLLOW_S, Follower, Report, contents
from chaos.ingesters import NAME
from chaos.maintainers import maintained
from chaos.scenario import Row
from tidelog.core.frontier import TIME_MAX

TESTS = Path(__file__).parents[1]
KEYS = 60
ACKNOWLEDGED_MAX = 25  # Upserts of a writer before it is killed.


def change(url: str, seed: int) -> None:
    """Upsert and delete random keys until this process is killed."""
    dice = random.Random(seed)
    with tidelog.connect(url) as lake:
        table = lake.table(NAME)
        while True:
            key, value = dice.randrange(KEYS), dice.getrandbits(60)
            more = {"key": dice.randrange(KEYS, 2 * KEYS), "value": value}
            time = table.upsert([{"key": key, "value": value}, more])
            print(json.dumps([time, key, value]), flush=True)
            if dice.random() < 0.4:
                table.delete(keys=dice.sample(range(2 * KEYS), 5))


def kill_writers(url: str, *, kills: int, rng: random.Random) -> list[tuple[int, Row]]:
    """Kill writers one after another; return the time and the row of each printed upsert."""
    told: list[tuple[int, Row]] = []
    for _ in range(kills):
        command = [sys.executable, "-m", "chaos.table_writer", url, str(rng.getrandbits(32))]
        writer = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        )
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, ACKNOWLEDGED_MAX)):
            time, *row = json.loads(writer.stdout.readline())
            told.append((time, tuple(row)))
        # The writer is in the middle of a later change now.
        os.killpg(writer.pid, signal.SIGKILL)
        writer.communicate()
    return told


def row_of(row: dict[str, Any]) -> Row:
    return row["key"], row["value"]


def run_followed_table(folder: Path, *, kills: int, seed: int, times: int = 50) -> Report:
    """Follow the table while its writers and maintenance are killed.

    At random times, the first snapshot and the steps of the follower give the snapshot. Each
    acknowledged row is in the table at its time.
    """
    rng, url = random.Random(seed), (folder / "lake").as_uri()
    with tidelog.connect(url, create=True) as lake:
        lake.tables.create(NAME, "key bigint, value bigint", key=["key"], shards=3)
    with maintained(url, rng=rng, span_s=1.0) as beside:
        told = kill_writers(url, kills=1, rng=rng)
        follower = Follower(url, TIME_MAX, row_of)
        follower.start()
        follower.began.wait(FOLLOW_S)
        told += kill_writers(url, kills=kills - 1, rng=rng)
        with tidelog.connect(url) as lake:
            follower.last = lake.table(NAME).upsert([{"key": 0, "value": 0}])
            lake.table(NAME).upsert([{"key": 0, "value": 1}])
        follower.join(FOLLOW_S)
    assert not beside.said, beside.said[:3]
    assert follower.reached > follower.last
    drawn = sorted(rng.choices(range(follower.first, follower.reached), k=times))
    with tidelog.connect(url) as lake:
        for time, found in zip(drawn, contents(lake.table(NAME), drawn, row_of), strict=True):
            assert follower.at(time) == found, f"at {time}"
    for time, row in told:
        assert time < follower.first or follower.at(time)[row] == 1, f"{row} is missing at {time}"
    return Report(kills + beside.kills, len(told), times, len(follower.changes))


if __name__ == "__main__":
    change(sys.argv[1], int(sys.argv[2]))
