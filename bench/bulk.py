"""Bulk writes, reads and compaction in one process, next to delta-rs and plain Parquet.

All sides have the same rows on this machine's disk, and take turns in each round. A read includes
the open of the location or table. delta-rs takes part if the package deltalake is installed. A
ratio is the median over the rounds of our time to the other's: below 1, tidelog is faster.

After the table, one write and one read of all rows print the seconds of each stage. Stages run in
several threads, so their sum can exceed the whole time.

    python bench/bulk.py [--rows N] [--commits N] [--rounds N] [--keyless | --shuffled]
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

import tidelog
from figures import print_table, seconds_of, side_by_side
from tidelog.persist.format import part, updates
from tidelog.persist.read import opened, sweep
from tidelog.store.local.store import LocalStore

COLUMNS = ["k", "n", "v", "text"]
COMMIT_ROWS = 1_000
Works = Mapping[str, Callable[[], float]]
Stages = dict[str, list[tuple[Any, str]]]

WRITE_STAGES: Stages = {
    "check": [(updates, "check_updates")],
    "sort": [(updates, "sort_updates")],
    "hash": [(part, "sums_of")],
    "encode": [(part, "encode_parquet")],
    "checksum": [(xxhash, "xxh3_128_digest")],
    "write": [(LocalStore, "put")],
}
READ_STAGES: Stages = {
    "fetch": [(LocalStore, "get")],
    "checksum": [(xxhash, "xxh3_128_digest")],
    "decode": [(opened.OpenPart, "read"), (part, "decode_parquet")],
    "consolidate": [(updates, "sum_up"), (updates, "accumulate"), (sweep, "merge")],
    "concatenate": [(pa, "concat_tables")],
}


def made(start: int, rows: int, *, shuffled: bool = False) -> pa.Table:
    """Return rows with a unique number, a random number, a random float and text."""
    rng = np.random.default_rng(start)
    numbers = np.arange(start, start + rows)
    if shuffled:
        rng.shuffle(numbers)
    words = pa.array([f"note {n} of many" for n in range(10_000)])
    columns = [
        pa.array(numbers),
        pa.array(rng.integers(0, 2**40, rows)),
        pa.array(rng.random(rows)),
        words.take(rng.integers(0, 10_000, rows)),
    ]
    return pa.table(columns, COLUMNS)


def stamped(table: pa.Table, time_: int) -> pa.Table:
    """Return rows as updates at one time."""
    times, ones = np.full(table.num_rows, time_), np.ones(table.num_rows, np.int64)
    return table.append_column("_time", pa.array(times)).append_column("_diff", pa.array(ones))


def has_delta() -> bool:
    return importlib.util.find_spec("deltalake") is not None


def expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"{found} rows were read of {wanted}")


class Tidelog:
    """A shard of a location in a folder."""

    def __init__(self, folder: Path, key: list[str]) -> None:
        self.path = str(folder / "lake")
        self.key = key

    def write(self, table: pa.Table, commits: int = 1) -> float:
        each = [stamped(some, n) for n, some in enumerate(_shares(table, commits))]

        def work() -> None:
            with tidelog.connect(self.path, create=True) as lake:
                shard = lake.shard("rows", schema=table.schema, key=self.key)
                for n, some in enumerate(each):
                    shard.compare_and_append(some, n, n + 1)

        return seconds_of(work)

    def read(self, rows: int, **selection: Any) -> float:
        def work() -> None:
            with tidelog.connect(self.path) as lake:
                shard = lake.shard("rows")
                snapshot = shard.snapshot(shard.upper().time - 1, **selection)
                expect(snapshot.to_arrow().num_rows, rows)

        return seconds_of(work)

    def read_key(self, key: int) -> float:
        return self.read(1, where=f"k = {key}")

    def compact(self) -> float:
        with tidelog.connect(self.path) as lake:
            shard = lake.shard("rows")
            return seconds_of(lambda: shard.compact(full=True))


class Delta:
    """A Delta table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "delta")

    def write(self, table: pa.Table, commits: int = 1) -> float:
        from deltalake import write_deltalake

        def work() -> None:
            for some in _shares(table, commits):
                write_deltalake(self.path, some, mode="append")

        return seconds_of(work)

    def read(self, rows: int, **selection: Any) -> float:
        from deltalake import DeltaTable

        def work() -> None:
            found = DeltaTable(self.path).to_pyarrow_table(**selection)
            expect(found.num_rows, rows)

        return seconds_of(work)

    def read_key(self, key: int) -> float:
        return self.read(1, filters=[("k", "=", key)])

    def compact(self) -> float:
        from deltalake import DeltaTable

        return seconds_of(DeltaTable(self.path).optimize.compact)


class Parquet:
    """A folder of plain Parquet files, without a log or checksums."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "parquet"
        self.folder.mkdir(parents=True)

    def write(self, table: pa.Table, commits: int = 1) -> float:
        def work() -> None:
            for n, some in enumerate(_shares(table, commits)):
                pq.write_table(some, self.folder / f"{n:06}.parquet", compression="zstd")

        return seconds_of(work)

    def read(self, rows: int, **selection: Any) -> float:
        return seconds_of(lambda: expect(pq.read_table(self.folder, **selection).num_rows, rows))

    def read_key(self, key: int) -> float:
        return self.read(1, filters=pc.field("k") == key)


Side = Tidelog | Delta | Parquet


def _shares(table: pa.Table, count: int) -> list[pa.Table]:
    each = table.num_rows // count
    return [table.slice(n * each, each) for n in range(count)]


@dataclass(slots=True)
class Bench:
    """The measured lines; each line has the seconds of each side by its name."""

    folder: Path
    rounds: int
    key: list[str]
    shuffled: bool
    lines: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def sides(self, name: str) -> dict[str, Side]:
        folder = self.folder / name
        found: dict[str, Side] = {"tidelog": Tidelog(folder, self.key)}
        if has_delta():
            found["delta-rs"] = Delta(folder)
        return {**found, "Parquet": Parquet(folder)}

    def measure(self, name: str, works: Works) -> None:
        side_by_side(works, 1)
        self.lines[name] = side_by_side(works, self.rounds)

    def at_once(self, rows: int) -> None:
        """Measure a write of all rows at once, and reads of them."""
        table = made(0, rows, shuffled=self.shuffled)

        def written(name: str) -> float:
            shutil.rmtree(self.folder / "new", ignore_errors=True)
            return self.sides("new")[name].write(table)

        sides = self.sides("large")
        self.measure("write at once", {name: partial(written, name) for name in sides})
        for side in sides.values():
            side.write(table)
        self.measure("read all", {n: partial(s.read, rows) for n, s in sides.items()})
        for column in ("n", "text"):
            narrow = {n: partial(s.read, rows, columns=[column]) for n, s in sides.items()}
            self.measure(f"read column {column}", narrow)
        self.measure("read one key", {n: partial(s.read_key, rows // 2) for n, s in sides.items()})

    def commits(self, count: int) -> None:
        """Measure reads after many small commits, compaction, and reads after that."""
        rows = count * COMMIT_ROWS
        sides = self.sides("small")
        for side in sides.values():
            side.write(made(0, rows, shuffled=self.shuffled), count)
        name = f"open and read after {count} commits"
        self.measure(name, {n: partial(s.read, rows) for n, s in sides.items()})

        def compacted(name: str) -> float:
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            shutil.copytree(self.folder / "small", self.folder / "copy")
            copy = Tidelog(self.folder / "copy", self.key), Delta(self.folder / "copy")
            return copy[name != "tidelog"].compact()

        logs = {name: side for name, side in sides.items() if not isinstance(side, Parquet)}
        works = {name: partial(compacted, name) for name in logs}
        self.measure(f"compact {count} commits", works)
        for side in logs.values():
            side.compact()
        self.measure(
            "open and read after that", {n: partial(s.read, rows) for n, s in logs.items()}
        )

    def show(self) -> None:
        lines = []
        for name, found in self.lines.items():
            others = [found.get("delta-rs", []), found.get("Parquet", [])]
            seconds = [f"{statistics.median(s):.3f}" if s else "" for s in others]
            ratios = [f"{_ratio(found['tidelog'], s):.2f}" if s else "" for s in others]
            ours = f"{statistics.median(found['tidelog']):.3f}"
            lines.append([name, ours, seconds[0], ratios[0], seconds[1], ratios[1]])
        head = ["seconds", "tidelog", "delta-rs", "ratio", "Parquet", "ratio"]
        print_table(head, lines)


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


@contextmanager
def timed(stages: Stages) -> Iterator[dict[str, float]]:
    """Count the seconds of each stage, over all threads, while the block runs."""
    seconds = dict.fromkeys(stages, 0.0)
    lock = threading.Lock()

    def add(stage: str, begun: float) -> None:
        with lock:
            seconds[stage] += time.perf_counter() - begun

    def counted(stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def work(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                add(stage, begun)

        return work

    def awaited(stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def work(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return await call(*given, **named)
            finally:
                add(stage, begun)

        return work

    with ExitStack() as stack:
        for stage, places in stages.items():
            for place, name in places:
                wrap = awaited if place is LocalStore else counted
                stack.enter_context(patch.object(place, name, wrap(stage, getattr(place, name))))
        yield seconds


def print_stages(folder: Path, rows: int, key: list[str], *, shuffled: bool) -> None:
    """Print the seconds of each stage of one write and one read."""
    side = Tidelog(folder, key)
    table = made(0, rows, shuffled=shuffled)
    works: list[tuple[str, Stages, Callable[[], float]]] = [
        ("write", WRITE_STAGES, partial(side.write, table)),
        ("read", READ_STAGES, partial(side.read, rows)),
    ]
    for name, stages, work in works:
        with timed(stages) as seconds:
            whole = work()
        parts = [f"{seconds[stage]:.3f}" for stage in stages]
        print_table([f"stages of one {name}", "whole", *stages], [["", f"{whole:.3f}", *parts]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--keyless", action="store_true", help="a shard without a key")
    kind.add_argument("--shuffled", action="store_true", help="rows in random order of the key")
    given = parser.parse_args()
    key = [] if given.keyless else ["k"]
    print("" if has_delta() else "The package deltalake is not installed: no lines of delta-rs.")
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name:
        bench = Bench(Path(name), given.rounds, key, given.shuffled)
        bench.at_once(given.rows)
        bench.commits(given.commits)
        print(f"{given.rows:,} rows, key {key or 'none'}; medians of {given.rounds} rounds\n")
        bench.show()
        print_stages(Path(name, "stages"), given.rows, key, shuffled=given.shuffled)


if __name__ == "__main__":
    main()
