"""The steps of a chaos run: kill, resume, and compare with a clean run and with the replay."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tidelog
from chaos.ingesters import NAME, create, kill_often, let_both_win, start_ingest
from chaos.maintainers import maintained
from chaos.scenario import Row, Scenario, replay, row_of, write_scenario
from tidelog.blocking.collections import Collection

TICK_BYTES = 3_000
FOLLOW_S = 300  # The follower has all changes long before, also on a busy machine.


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of a run, which show that it did something."""

    kills: int
    ticks: int
    minutes: int
    rows: int
    won: tuple[int, ...] = ()


def contents(
    collection: Collection, times: list[int], row_of: Callable[[dict[str, Any]], Row] = row_of
) -> list[Counter[Row]]:
    """Return a collection's contents at each time, as counted rows."""
    found: list[Counter[Row]] = []
    for time in times:
        rows = collection.snapshot(time).to_arrow().to_pylist()
        found.append(Counter(row_of(row) for row in rows))
    return found


def check_equal(url: str, clean_url: str, scenario: Scenario) -> int:
    """Compare the collections at every minute. Return the number of minutes."""
    with tidelog.connect(url) as lake, tidelog.connect(clean_url) as clean:
        upper = lake.collection(NAME).describe().upper
        assert upper == scenario.events[-1]["at"] + 1 == clean.collection(NAME).describe().upper
        times = scenario.minutes
        expected = replay(scenario, times)
        for time, here, there, truth in zip(
            times,
            contents(lake.collection(NAME), times),
            contents(clean.collection(NAME), times),
            expected,
            strict=True,
        ):
            assert here == truth, f"at {time}: {here - truth} too much, {truth - here} missing"
            assert there == truth, f"the clean run differs from the replay at {time}"
        for place in (lake, clean):
            errors = place.collection(NAME + "_errors").snapshot().to_arrow()
            assert errors.num_rows == scenario.bad_lines
    return len(times)


def run_killed(
    folder: Path,
    *,
    engine: str,
    kills: int,
    seed: int,
    span_s: float,
    tick_bytes: int = TICK_BYTES,
) -> Report:
    """Kill ingesters of a source at random moments, let one finish, and compare."""
    rng = random.Random(seed)
    scenario, url, clean_url = prepare(folder, seed)
    seen = kill_often(
        url, engine=engine, tick_bytes=tick_bytes, kills=kills, rng=rng, span_s=span_s
    )
    last = start_ingest(url, engine=engine, tick_bytes=tick_bytes).finish()
    assert last["ticks"] > 0, "the killed ingesters had done everything: kill earlier"
    clean = start_ingest(clean_url, engine="local", tick_bytes=tick_bytes).finish()
    assert clean["ticks"] * tick_bytes >= 40 * TICK_BYTES
    minutes = check_equal(url, clean_url, scenario)
    return Report(kills, seen + int(last["ticks"]), minutes, len(scenario.events))


def run_maintained(
    folder: Path,
    *,
    kills: int,
    seed: int,
    span_s: float,
    tick_bytes: int = TICK_BYTES,
) -> Report:
    """Kill ingesters while maintenance runs and is killed too, and compare twice.

    In the end the store has the objects that the states name, and after three sweeps no others.
    """
    rng = random.Random(seed)
    scenario, url, clean_url = prepare(folder, seed)
    with maintained(url, rng=rng, span_s=1.0) as beside:
        seen = kill_often(
            url, engine="local", tick_bytes=tick_bytes, kills=kills, rng=rng, span_s=span_s
        )
        last = start_ingest(url, engine="local", tick_bytes=tick_bytes).finish()
    assert not beside.said, beside.said[:3]
    start_ingest(clean_url, engine="local", tick_bytes=tick_bytes).finish()
    check_equal(url, clean_url, scenario)
    for verb in (("compact", "--full"), *[("collect", "--grace", "0s", "--sweep")] * 3):
        command = [sys.executable, "-m", "tidelog.cli.main", "--location", url, *verb]
        subprocess.run(command, check=True, capture_output=True)
    minutes = check_equal(url, clean_url, scenario)
    told = subprocess.run(
        [sys.executable, "-m", "tidelog.cli.main", "--location", url, "inspect", "--json"],
        check=True,
        capture_output=True,
    )
    shards = [json.loads(line) for line in told.stdout.splitlines()]
    for shard in shards:
        # A young object is a rollup, which is dead after a later one is named.
        assert not shard["objects"]["gone"] + shard["objects"]["dead"], shard
        assert len(shard["batches"]) <= 1
    left = {path.name for path in (folder / "lake" / "shard").rglob("*.parquet")}
    assert len(left) <= sum(batch["parts"] for shard in shards for batch in shard["batches"])
    return Report(kills + beside.kills, seen + int(last["ticks"]), minutes, len(scenario.events))


def run_followed(
    folder: Path, *, kills: int, seed: int, tick_bytes: int = TICK_BYTES, times: int = 50
) -> Report:
    """Follow a collection of three shards while ingesters and maintenance are killed.

    At random times, the first snapshot and the steps of the follower give the snapshot.
    """
    rng = random.Random(seed)
    scenario, url, _ = prepare(folder, seed, shards=3)
    kill = partial(kill_often, url, engine="local", tick_bytes=tick_bytes, rng=rng, span_s=0.5)
    with maintained(url, rng=rng, span_s=1.0) as beside:
        seen = kill(kills=1)
        follower = Follower(url, scenario.events[-1]["at"])
        follower.start()
        seen += kill(kills=kills - 1)
        last = start_ingest(url, engine="local", tick_bytes=tick_bytes).finish()
        follower.join(FOLLOW_S)
    assert not beside.said, beside.said[:3]
    assert follower.reached > scenario.events[-1]["at"], follower.reached
    drawn = sorted(rng.choices(range(follower.first, follower.reached), k=times))
    with tidelog.connect(url) as lake:
        for time, found in zip(drawn, contents(lake.collection(NAME), drawn), strict=True):
            assert follower.at(time) == found, f"at {time}"
    return Report(kills + beside.kills, seen + int(last["ticks"]), times, len(scenario.events))


class Follower(threading.Thread):
    """A thread that takes a snapshot, and all changes after it; ``reached`` is its upper."""

    def __init__(
        self, url: str, last: int, row_of: Callable[[dict[str, Any]], Row] = row_of
    ) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.last = last
        self.row_of = row_of
        self.began = threading.Event()
        self.first = 0
        self.reached = 0
        self.changes: list[tuple[int, Row, int]] = []

    def run(self) -> None:
        with tidelog.connect(self.url) as lake:
            collection = lake.collection(NAME)
            base = collection.snapshot()
            self.first = base.as_of
            self._add(
                {**row, "_time": base.as_of, "_diff": 1} for row in base.to_arrow().to_pylist()
            )
            self.began.set()
            for step in collection.listen(base.as_of):
                self._add(step.updates.to_pylist())
                self.reached = step.upper.time
                if step.upper.passed(self.last):
                    return

    def _add(self, rows: Iterable[dict[str, Any]]) -> None:
        self.changes += [(row["_time"], self.row_of(row), row["_diff"]) for row in rows]

    def at(self, time: int) -> Counter[Row]:
        """Return the contents at a time; a count below zero fails the comparison."""
        found: Counter[Row] = Counter()
        for when, row, diff in self.changes:
            if when <= time:
                found[row] += diff
        return Counter({row: count for row, count in found.items() if count})


def run_two(folder: Path, *, engine: str, seed: int, tick_bytes: int = TICK_BYTES) -> Report:
    """Run two ingesters of a source at once, and compare. Both must win commits."""
    scenario, url, clean_url = prepare(folder, seed)
    both = [start_ingest(url, engine=engine, tick_bytes=tick_bytes) for _ in range(2)]
    let_both_win(*both, rng=random.Random(seed))
    ends = [one.finish() for one in both]
    won = tuple(one.won for one in both)
    assert all(won), f"one ingester won nothing, so they did not contend: {won}"
    start_ingest(clean_url, engine="local", tick_bytes=tick_bytes).finish()
    minutes = check_equal(url, clean_url, scenario)
    ticks = sum(int(end["ticks"]) for end in ends)
    return Report(0, ticks, minutes, len(scenario.events), won)


def prepare(folder: Path, seed: int, *, shards: int = 1) -> tuple[Scenario, str, str]:
    """Write a scenario and make two locations with its source. Return their URLs."""
    scenario = write_scenario(folder / "events", events_count=3_500, seed=seed)
    assert scenario.size_bytes > 60 * TICK_BYTES, scenario.size_bytes
    url, clean_url = ((folder / name).as_uri() for name in ("lake", "clean"))
    for place in (url, clean_url):
        create(place, folder / "events", shards=shards)
    return scenario, url, clean_url
