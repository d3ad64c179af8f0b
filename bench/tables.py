"""Tables next to delta-rs and pyiceberg: commits, upserts, reads, and writers of single rows.

All sides have the same rows on this machine's disk, and take turns in each round. delta-rs and
pyiceberg take part if the packages ``deltalake`` and ``pyiceberg[sql-sqlite]`` are installed; the
catalog of pyiceberg is a SQLite file. A ratio is the median over the rounds of our time to the best
other one: below 1, tidelog is faster.

    python bench/tables.py [--rows N] [--commits N] [--rounds N] [--inserts N] [--processes N]
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import shutil
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import tidelog
from figures import percentile, print_table, seconds_of, side_by_side

SCHEMA = "k bigint, n bigint, v double, text varchar"
COMMIT_ROWS = 1_000
UPSERT_ROWS = 10_000
TRIES_MAX = 10_000


def made(keys: np.ndarray[Any, np.dtype[np.int64]], seed: int) -> pa.Table:
    """Return rows with some keys, a random number, a random float and text."""
    rng = np.random.default_rng(seed)
    words = pa.array([f"note {n} of many" for n in range(10_000)])
    columns = [
        pa.array(keys),
        pa.array(rng.integers(0, 2**40, len(keys))),
        pa.array(rng.random(len(keys))),
        words.take(rng.integers(0, 10_000, len(keys))),
    ]
    return pa.table(columns, ["k", "n", "v", "text"])


def some_keys(count: int, among: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).choice(among, count, replace=False)


class Side(ABC):
    """A table in a folder. A handle stays open, as in a program that writes again and again."""

    name: ClassVar[str]

    def __init__(self, folder: Path, *, keyed: bool = False, create: bool = False) -> None:
        self.folder = folder / self.name
        self.keyed = keyed
        if create:
            self.folder.mkdir(parents=True)
            self.create()
        self.open()

    @abstractmethod
    def create(self) -> None:
        """Create the table."""

    @abstractmethod
    def open(self) -> None:
        """Open the table."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Add rows in one commit."""

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None:
        """Replace or add rows by their key in one commit."""

    @abstractmethod
    def version(self) -> Any:
        """Return the present version, for `read`."""

    @abstractmethod
    def read(self, version: Any = None, key: int | None = None) -> int:
        """Return the number of rows, all of which are read, also in a new handle."""

    def stored_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


class Tidelog(Side):
    """A table of tidelog."""

    name = "tidelog"

    def create(self) -> None:
        with tidelog.connect(str(self.folder), create=True) as lake:
            lake.tables.create("t", SCHEMA, key=["k"] if self.keyed else [])

    def open(self) -> None:
        self.table = tidelog.connect(str(self.folder)).table("t")

    def append(self, rows: pa.Table) -> None:
        self.table.insert(rows)

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def version(self) -> int:
        return self.table.snapshot().as_of

    def read(self, version: int | None = None, key: int | None = None) -> int:
        with tidelog.connect(str(self.folder)) as lake:
            where = None if key is None else f"k = {key}"
            return lake.table("t").snapshot(version, where=where).to_arrow().num_rows


class Delta(Side):
    """A Delta table, written by delta-rs."""

    name = "delta-rs"

    def create(self) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.folder), made(np.arange(0), 0))

    def open(self) -> None:
        from deltalake import DeltaTable

        self.table = DeltaTable(str(self.folder))

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.table, rows, mode="append")

    def upsert(self, rows: pa.Table) -> None:
        merge = self.table.merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def version(self) -> int:
        self.table.update_incremental()
        return int(self.table.version())

    def read(self, version: int | None = None, key: int | None = None) -> int:
        from deltalake import DeltaTable

        table = DeltaTable(str(self.folder), version=version)
        filters = None if key is None else [("k", "=", key)]
        return int(table.to_pyarrow_table(filters=filters).num_rows)


class Iceberg(Side):
    """An Iceberg table, written by pyiceberg."""

    name = "pyiceberg"

    @property
    def catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", self.folder.as_uri()
        return SqlCatalog("bench", uri=uri, warehouse=warehouse)

    def create(self) -> None:
        catalog = self.catalog
        catalog.create_namespace("bench")
        catalog.create_table("bench.t", made(np.arange(0), 0).schema)

    def open(self) -> None:
        self.table = self.catalog.load_table("bench.t")

    def append(self, rows: pa.Table) -> None:
        from pyiceberg.exceptions import CommitFailedException

        # Its own tries are few; a program with other writers tries again.
        for _ in range(TRIES_MAX):
            try:
                self.table.append(rows)
            except CommitFailedException:
                self.table.refresh()
            else:
                return
        raise SystemExit("pyiceberg lost every race")

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows, join_cols=["k"])

    def version(self) -> int:
        return int(self.table.refresh().current_snapshot().snapshot_id)

    def read(self, version: int | None = None, key: int | None = None) -> int:
        table = self.catalog.load_table("bench.t")
        where = {} if key is None else {"row_filter": f"k == {key}"}
        return int(table.scan(snapshot_id=version, **where).to_arrow().num_rows)


Kind = type[Tidelog] | type[Delta] | type[Iceberg]
PACKAGES: dict[Kind, str] = {Tidelog: "tidelog", Delta: "deltalake", Iceberg: "pyiceberg"}
SIDES = [side for side, package in PACKAGES.items() if importlib.util.find_spec(package)]


class Bench:
    """The measured lines, each with the values of each side by its name."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self.lines: list[list[str]] = []

    def sides(self, name: str, *, keyed: bool = False) -> dict[str, Side]:
        folder = self.folder / name
        return {side.name: side(folder, keyed=keyed, create=True) for side in SIDES}

    def measure(
        self, name: str, works: Mapping[str, Callable[[], float]], unit: str = "ms"
    ) -> None:
        """Run the works in turn, and add a line of their medians."""
        self.add(name, side_by_side(works, self.rounds), unit)

    def add(self, name: str, found: dict[str, list[float]], unit: str = "ms") -> None:
        factor = 1_000 if unit == "ms" else 1
        shown = [
            f"{factor * statistics.median(found[side.name]):,.1f}" if side.name in found else ""
            for side in SIDES
        ]
        ours = found[Tidelog.name]
        others = [values for name, values in found.items() if name != Tidelog.name]
        best = min(others, key=statistics.median) if others else ours
        ratio = statistics.median(a / b for a, b in zip(ours, best, strict=True))
        self.lines.append([f"{name}, {unit}", *shown, f"{ratio:.2f}" if others else ""])

    def commits(self, count: int) -> None:
        """Measure commits of 1,000 rows, early and late in the history, and reads after them."""
        sides = self.sides("commits")
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        middles: dict[str, Any] = {}
        for number in range(count):
            rows = made(np.arange(number * COMMIT_ROWS, (number + 1) * COMMIT_ROWS), number)
            for name, side in sides.items():
                seconds[name].append(seconds_of(partial(side.append, rows)))
                if number == count // 2:
                    middles[name] = side.version()
        last = max(10, count // 6)
        for title, first, limit in (("first", 1, last + 1), ("last", count - last, count)):
            some = {name: found[first:limit] for name, found in seconds.items()}
            self.add(f"commit of 1,000 rows, the {title} {last} of {count}: p50", some)
            p95 = {name: [percentile(found, 0.95)] for name, found in some.items()}
            self.add("the same: p95", p95)
        for title, wanted in (
            ("open and read all", {name: {} for name in sides}),
            ("open and read as of the middle", {n: {"version": middles[n]} for n in sides}),
            ("open and read one key", {name: {"key": 7 * COMMIT_ROWS + 7} for name in sides}),
        ):
            works = {
                name: partial(seconds_of, partial(side.read, **wanted[name]))
                for name, side in sides.items()
            }
            self.measure(f"{title} after {count} commits", works)
        found = {name: [side.stored_bytes() / 1e6] for name, side in sides.items()}
        self.add("bytes stored then", found, "MB")

    def upserts(self, rows: int) -> None:
        """Measure upserts of 10,000 random keys; pyiceberg would take minutes for each."""
        sides = self.sides("upserts", keyed=True)
        sides.pop(Iceberg.name, None)
        for side in sides.values():
            side.append(made(np.arange(rows), 0))
        numbers = iter(range(1, 10**9))

        def upserted(side: Side, seed: int) -> float:
            given = made(some_keys(UPSERT_ROWS, rows, seed), seed)
            return seconds_of(partial(side.upsert, given))

        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(self.rounds):
            seed = next(numbers)
            for name, side in sides.items():
                found[name].append(upserted(side, seed))
        self.add(f"upsert 10,000 keys into {rows:,} rows", found)
        for name, side in sides.items():
            if side.read() != rows:
                raise SystemExit(f"{name} lost or doubled rows")

    def readable(self) -> None:
        """Measure the time from an insert of one row to its read in a new handle."""
        sides, number = self.sides("readable"), iter(range(10**9))

        def work(side: Side) -> float:
            key = next(number)

            def until_read() -> None:
                side.append(made(np.array([key]), key))
                if side.read(key=key) != 1:
                    raise SystemExit(f"{side.name} does not read its own insert")

            return seconds_of(until_read)

        self.measure("insert one row, and read it", {n: partial(work, s) for n, s in sides.items()})

    def inserts(self, each: int, processes: int) -> None:
        """Measure single-row inserts of some processes; the unit is the time of one row."""
        found: dict[str, list[float]] = {side.name: [] for side in SIDES}
        for number in range(self.rounds):
            for side in SIDES:
                folder = self.folder / f"inserts{processes}.{number}"
                table = side(folder, create=True)
                seconds = _inserted(side, folder, each, processes)
                if table.read() != each * processes:
                    raise SystemExit(f"{side.name} lost or doubled rows")
                found[side.name].append(seconds / (each * processes))
                shutil.rmtree(folder)
        what = "one process" if processes == 1 else f"{processes} processes"
        self.add(f"one insert of a row, {what}", found)

    def show(self) -> None:
        print_table(["", *(side.name for side in SIDES), "ratio to the best other"], self.lines)


def _inserted(side: Kind, folder: Path, each: int, processes: int) -> float:
    """Return the seconds in which processes insert rows, without their start."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1)
    work = [
        context.Process(target=_insert_rows, args=(side, folder, number, each, ready))
        for number in range(processes)
    ]
    for process in work:
        process.start()
    ready.wait()

    def joined() -> None:
        for process in work:
            process.join()

    seconds = seconds_of(joined)
    if any(process.exitcode for process in work):
        raise SystemExit(f"a writer of {side.name} failed")
    return seconds


def _insert_rows(side: Kind, folder: Path, number: int, each: int, ready: Any) -> None:
    table = side(folder)
    rows = [made(np.array([number * each + n]), n) for n in range(each)]
    ready.wait()
    for row in rows:
        table.append(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inserts", type=int, default=20, help="of each process")
    parser.add_argument("--processes", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        bench = Bench(Path(folder), given.rounds)
        bench.commits(given.commits)
        bench.upserts(given.rows)
        bench.readable()
        for processes in dict.fromkeys((1, given.processes)):
            bench.inserts(given.inserts, processes)
        bench.show()


if __name__ == "__main__":
    main()
