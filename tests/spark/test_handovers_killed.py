"""Five handovers in a row, while real processes are killed, and each kind of reader reads.

The expected contents are computed from the files and the times of their lines.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tidelog
from kit.killed_roles import Roles
from tidelog import RenditionSpec, SourceSpec
from tidelog.errors import AsOfBeforeSince, TidelogError

Rows = Counter[tuple[int, int]]
Diffs = dict[int, Rows]
KILLS = 4  # For each handover.
TIMES = 20  # Random times for each handover, in Python.
FRAMES = 2  # The same, in Spark.
PATIENCE_S = 120
PAUSE_S = 0.2  # Between two files.
KEYS = 12
# How each rendition decides rows: by its key, if it has one, and by the rows that delete.
KEPT: dict[str, tuple[str, bool]] = {
    "c": ("", False),
    "r1": ("k", False),
    "r2": ("k", False),
    "r3": ("", False),
    "r4": ("k", True),
    "r5": ("k,v", False),
}
SPECS = (
    RenditionSpec(name="r1", shards=3, envelope="upsert", key=("k",)),
    RenditionSpec(name="r2", shards=1, copy=True),
    RenditionSpec(name="r3", shards=2, envelope="none"),
    RenditionSpec(name="r4", envelope="upsert", key=("k",), delete_when="v % 3 = 0"),
    RenditionSpec(name="r5", shards=4, envelope="upsert", key=("k", "v"), delete_when=""),
)


@dataclass(slots=True)
class Seen:
    """All that the readers got, to be compared at the end."""

    snapshots: list[tuple[int, Rows]] = field(default_factory=list)
    frames: list[tuple[int, Rows]] = field(default_factory=list)
    changes: list[tuple[int, int, Diffs]] = field(default_factory=list)
    steps: list[tuple[int, Diffs]] = field(default_factory=list)  # With their uppers.
    batches: dict[int, Diffs] = field(default_factory=dict)
    since: int = 0  # Where the listener began.


class Files:
    """The files of the source: each has two lines, and a later file has greater values."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.root, self.dice = root, dice
        self.lines: list[tuple[str, int, int, int]] = []  # Path, address, k and v.
        (root / "in").mkdir()

    def add(self) -> None:
        name, text = f"{len(self.lines):06d}.jsonl", ""
        for _ in range(2):
            k, v = self.dice.randrange(KEYS), len(self.lines) // 3
            self.lines.append((name, len(text), k, v))
            text += json.dumps({"k": k, "v": v}) + "\n"
        (self.root / name).write_text(text)
        (self.root / name).rename(self.root / "in" / name)


def counted(table: pa.Table) -> Rows:
    """Return the rows of contents."""
    return Counter((row["k"], row["v"]) for row in table.to_pylist())


def by_time(rows: list[dict[str, Any]]) -> Diffs:
    """Return updates by their time, consolidated."""
    found: Diffs = defaultdict(Counter)
    for row in rows:
        found[row["_time"]][row["k"], row["v"]] += row["_diff"]
    return nonzero(found)


def nonzero(found: Diffs) -> Diffs:
    kept = {t: Counter({r: n for r, n in rows.items() if n}) for t, rows in found.items()}
    return {t: rows for t, rows in kept.items() if rows}


def plus(rows: Rows, found: Diffs, *, after: int, until: int) -> Rows:
    """Return contents, with the updates of some times."""
    total = Counter(rows)
    for moment, more in found.items():
        if after < moment <= until:
            total.update(more)
    return Counter({row: n for row, n in total.items() if n})


@dataclass(slots=True)
class Truth:
    """The lines with their times, in the order of ingestion, and the first times of renditions."""

    lines: list[tuple[int, str, int, int, int]]
    begins: list[tuple[int, str]]

    def at(self, moment: int) -> Rows:
        """Return the contents at a time, computed from the lines alone."""
        name = [name for begins, name in self.begins if begins <= moment][-1]
        key, deletes = KEPT[name]
        rows: Rows = Counter()
        newest: dict[tuple[int, ...], tuple[int, int]] = {}
        for at, _, _, k, v in self.lines:
            if at > moment:
                break
            if not key:
                rows[k, v] += 1
            elif deletes and v % 3 == 0:
                newest.pop((k,), None)
            else:
                newest[(k, v) if key == "k,v" else (k,)] = (k, v)
        rows.update(newest.values())
        return rows

    def differences(self, after: int, until: int) -> Diffs:
        """Return the differences at each time after one, up to another."""
        moments = sorted({line[0] for line in self.lines} | {one for one, _ in self.begins})
        found, before = {}, self.at(after)
        for moment in (one for one in moments if after < one <= until):
            rows = self.at(moment)
            change = Counter(rows)
            change.subtract(before)
            found[moment], before = change, rows
        return nonzero(found)


def truth_of(lake: tidelog.Location, files: Files) -> Truth:
    """Ask for the time of each line, and for the handovers."""
    timed, bound = [], None
    for name, address, k, v in files.lines:
        if bound is None or bound.path != name or not bound.start <= address < bound.limit:
            bound = lake.sources.get_binding("r5", name, address)
        timed.append((bound.time, name, address, k, v))
    history, _ = lake.renditions.history("c")
    return Truth(sorted(timed), [(one.time, one.rendition) for one in history if one.diff > 0])


def listen(url: str, seen: Seen, until: list[int], failed: list[TidelogError]) -> None:
    """Follow the collection until it is complete up to a time that is given later."""
    try:
        with tidelog.connect(url) as lake:
            for step in lake.collection("c").listen(seen.since):
                seen.steps.append((step.upper.time, by_time(step.updates.to_pylist())))
                if until and step.upper.time > until[0]:
                    return
    except TidelogError as error:  # The test shows it.
        failed.append(error)


class Readers:
    """The readers that look at random times, while the processes run."""

    def __init__(self, url: str, spark: SparkSession, seen: Seen, dice: random.Random) -> None:
        self.url, self.spark, self.seen, self.dice = url, spark, seen, dice

    def read_some(self, lake: tidelog.Location, old: Any, number: int) -> None:
        """Read once with a handle that is new, or as old as the scenario, or with Spark."""
        handle = old if number % 2 else lake.collection("c")
        facts = handle.describe()
        first, last = max(facts.since or 0, self.seen.since), (facts.upper or 0) - 1
        moment, other = sorted(self.dice.randint(first, last) for _ in range(2))
        try:
            if len(self.seen.snapshots) < number + 1:
                rows = counted(handle.snapshot(moment).to_arrow())
                self.seen.snapshots.append((moment, rows))
            found = handle.changes(moment, other)
            self.seen.changes.append((moment, other, by_time(found.to_pylist())))
            if number % (TIMES // FRAMES) == 0:
                frame = self.spark.read.format("tidelog").option("location", self.url)
                read = frame.option("asOf", str(other)).load("c").select("k", "v").collect()
                self.seen.frames.append((other, Counter((row[0], row[1]) for row in read)))
        except AsOfBeforeSince:
            pass  # Retention was faster: the next look is at another time.
        except PySparkException as error:
            if "TIDELOG_AS_OF_BEFORE_SINCE" not in str(error):
                raise

    @contextmanager
    def streaming(self, checkpoint: Path) -> Iterator[Callable[[], None]]:
        """Run a query from the beginning on; yield a function that takes all remaining changes."""

        def keep(frame: DataFrame, number: int) -> None:
            rows = [row.asDict() for row in frame.collect()]
            self.seen.batches[number] = by_time(rows)  # A batch that runs again replaces itself.

        reader = self.spark.readStream.format("tidelog").option("kind", "changes")
        rows = reader.option("location", self.url).load("c").select("k", "v", "_time", "_diff")
        writer = rows.writeStream.trigger(processingTime="3 seconds").foreachBatch(keep)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()  # Its first batch has the contents before all that follows.
            yield query.processAllAvailable
        finally:
            query.stop()


def hand_over(
    lake: tidelog.Location, spec: RenditionSpec, roles: Roles, files: Files, look: Callable[[], int]
) -> None:
    """Create a rendition, and hand over to it, until the kills and the looks are done."""
    lake.renditions.create(spec, of="c")
    looks = look()
    kills, wanted = roles.kills + KILLS, looks + TIMES
    follow = ("--follow", "--interval", "0.2", "--max-bytes-per-tick", "400", "--engine", "local")
    roles.start("latter", "ingest", spec.name, *follow)
    roles.start("handover", "collection", "handover", "c", "--to", spec.name, "--wait", once=True)
    until = time.monotonic() + PATIENCE_S
    while not roles.is_done("handover") or roles.kills < kills or looks < wanted:
        assert time.monotonic() < until, [one.said.read_text() for one in roles.running.values()]
        files.add()
        roles.tend(kills)
        looks = look()
        time.sleep(PAUSE_S)
    roles.end("latter", "handover")


def check(seen: Seen, truth: Truth, last: int) -> None:
    """Compare all that the readers got with the contents that the lines give."""
    expected = truth.differences(seen.since, last)
    for moment, rows in [*seen.snapshots, *seen.frames]:
        assert rows == truth.at(moment), moment
    for since, until, found in seen.changes:
        between = {moment: rows for moment, rows in expected.items() if since < moment <= until}
        assert found == between, (since, until)
    at_first = truth.at(seen.since)
    assert at_first
    whole: Diffs = {}
    for upper, found in seen.steps:
        assert not whole.keys() & found.keys()
        whole |= found
        assert plus(at_first, whole, after=0, until=upper) == truth.at(upper - 1)
    assert {moment: rows for moment, rows in whole.items() if moment <= last} == expected
    streamed: Diffs = {}
    for found in seen.batches.values():
        assert not streamed.keys() & found.keys()
        streamed |= found
    begun = min(streamed)  # The stream begins with the contents at one time.
    assert streamed.pop(begun) == truth.at(begun)
    later = {moment: rows for moment, rows in streamed.items() if moment <= last}
    assert later == {moment: rows for moment, rows in expected.items() if moment > begun}


@pytest.mark.parametrize("seed", [27])
def test_each_reader_crosses_five_handovers_at_their_exact_times(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Ingesters, handovers, merges and collections are killed; retention passes early times."""
    dice, url, seen = random.Random(seed), str(tmp_path / "lake"), Seen()
    files, roles = Files(tmp_path, dice), Roles(url, tmp_path, dice)
    spec = SourceSpec(
        name="c",
        files=str(tmp_path / "in"),
        schema="k bigint, v bigint",
        retain="30s",
        keep_bindings=True,
    )
    until: list[int] = []
    failed: list[TidelogError] = []
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(spec)
        files.add()
        lake.sources.ingest("c")
        old = lake.collection("c")
        seen.since = int(old.describe().upper or 0) - 1
        listener = threading.Thread(target=listen, args=(url, seen, until, failed), daemon=True)
        readers = Readers(url, spark, seen, dice)

        def look() -> int:
            readers.read_some(lake, old, len(seen.snapshots))
            return len(seen.snapshots)

        try:
            with readers.streaming(tmp_path / "check") as finish:
                listener.start()
                follow = ("--follow", "--interval", "0.2", "--max-bytes-per-tick", "400")
                roles.start("active", "ingest", "c", *follow, "--engine", "local")
                roles.start("merges", "compact", "--full", "--follow", "--interval", "0.5")
                roles.start("collect", "collect", "--grace", "20s", "--follow", "--interval", "1")
                for one in SPECS:
                    hand_over(lake, one, roles, files, look)
                roles.end("active")
                lake.sources.ingest("c")
                last = int(lake.collection("c").describe().upper or 0) - 1
                until.append(last - 1)
                listener.join(60)
                finish()
        finally:
            roles.end()
        assert (failed, roles.faults) == ([], [])
        assert not listener.is_alive()
        assert roles.kills == KILLS * len(SPECS)
        assert len(seen.snapshots) >= TIMES * len(SPECS)
        truth = truth_of(lake, files)
        assert [name for _, name in truth.begins] == list(KEPT)
        check(seen, truth, last)
        assert min(len(seen.frames), len(seen.changes), len(seen.steps), len(seen.batches)) > 4
        begun = min(moment for found in seen.batches.values() for moment in found)
        assert min(one for one, _ in truth.begins[1:]) > begun
