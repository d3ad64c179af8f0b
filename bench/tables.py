"""Tables in one process and in many, next to delta-rs and pyiceberg.

All sides have the same rows at one place: this machine's disk, or with --s3 an S3 server on
loopback. They take turns, and each read opens its table again. Sides whose package (deltalake, or
pyiceberg with SQLite) is not installed are left out. A table of pyiceberg has its catalog in an
SQLite file of the run, also with --s3. With --spark-delta, on the disk, Delta on Spark takes part
in one warm session, except in inserts of single rows.

The last column compares with the best of the others: its median over ours, or our rate over its
rate. Above 1, tidelog is ahead.

    python bench/tables.py [--s3 | --spark-delta FOLDER_OF_JARS] [--commits N] [--keys N]
        [--rounds N] [--processes N]
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs

import numpy as np
import pyarrow as pa

import tidelog
from bulk import COMMIT_ROWS, expect, has_delta, made
from figures import percentile, print_table, seconds_of, side_by_side
from kit.s3_servers import SeaweedServer
from log_throughput import plain_store, within
from tidelog.errors import ContentionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = made(0, 1).schema
logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # It warns of each lost race.
UPSERTED = 10_000
ICEBERG_ROWS_MAX = 50_000  # Into 20,000 rows, an upsert takes 2 s.
WINDOW = 20  # Commits that are measured after each length of history.
EARLY = 10
BEGIN_S = 300


@dataclass(slots=True)
class Side(ABC):
    """One table of one system, in a folder or below a prefix of S3; handles open at first use."""

    url: str
    catalog: Path
    key: bool = False
    _handle: Any = field(init=False, default=None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.catalog, self.key)

    @property
    def handle(self) -> Any:
        if self._handle is None:
            self._handle = self.opened()
        return self._handle

    @property
    def bare(self) -> str:
        return self.url.partition("?")[0]

    def options(self) -> dict[str, str]:
        """Return the parameters of the S3 server; none on disk."""
        return {name: each[0] for name, each in parse_qs(self.url.partition("?")[2]).items()}

    def reopened(self) -> Side:
        return type(self)(self.url, self.catalog, self.key)

    def stored(self) -> int:
        """Return the bytes of all stored objects."""
        pages = plain_store(self.url).list()
        return sum(entry["size"] for page in pages for entry in page)

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def opened(self) -> Any: ...

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Add rows, again until no other writer is in the way."""

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def version(self) -> int:
        """Return the newest version, as which `read` can read later."""

    @abstractmethod
    def read(self, version: int | None = None, *, below: int | None = None) -> pa.Table:
        """Return all rows of a version, or those whose k is below a number."""


class Tidelog(Side):
    """A table of tidelog."""

    def create(self) -> None:
        with tidelog.connect(self.url, create=True) as lake:
            lake.tables.create("rows", SCHEMA, key=["k"] if self.key else [])

    def opened(self) -> Any:
        return tidelog.connect(self.url).table("rows")

    def append(self, rows: pa.Table) -> None:
        while True:
            with suppress(ContentionError):
                self.handle.insert(rows)
                return

    def upsert(self, rows: pa.Table) -> None:
        self.handle.upsert(rows)

    def version(self) -> int:
        return int(self.handle.snapshot().as_of)

    def read(self, version: int | None = None, *, below: int | None = None) -> pa.Table:
        where = None if below is None else f"k < {below}"
        found: pa.Table = self.handle.snapshot(version, where=where).to_arrow()
        return found


class Delta(Side):
    """A Delta table of delta-rs, which tries a blind append again by itself."""

    def options(self) -> dict[str, str]:
        given = {f"aws_{name}": value for name, value in Side.options(self).items()}
        return {**given, "aws_allow_http": "true", "conditional_put": "etag"} if given else {}

    def create(self) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(self.bare, SCHEMA, storage_options=self.options())

    def opened(self, version: int | None = None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.bare, version=version, storage_options=self.options())

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake
        from deltalake.exceptions import CommitFailedError

        while True:
            with suppress(CommitFailedError):
                write_deltalake(self.handle, rows, mode="append")
                return

    def upsert(self, rows: pa.Table) -> None:
        merge = self.handle.merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def version(self) -> int:
        self.handle.update_incremental()
        return int(self.handle.version())

    def read(self, version: int | None = None, *, below: int | None = None) -> pa.Table:
        table = self.handle if version is None else self.opened(version)
        filters = None if below is None else [("k", "<", below)]
        found: pa.Table = table.to_pyarrow_table(filters=filters)
        return found


class Iceberg(Side):
    """An Iceberg table of pyiceberg; a writer who loses a race tries again."""

    def options(self) -> dict[str, str]:
        given = Side.options(self)
        return {f"s3.{name.replace('_', '-')}": value for name, value in given.items()} | (
            {"s3.access-key-id": given["access_key_id"]} if given else {}
        )

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        where = f"sqlite:///{self.catalog}?timeout=60"
        return SqlCatalog("bench", uri=where, warehouse=self.bare, **self.options())

    def create(self) -> None:
        catalog = self._catalog()
        catalog.create_namespace("bench")
        catalog.create_table("bench.rows", SCHEMA)

    def opened(self) -> Any:
        return self._catalog().load_table("bench.rows")

    def append(self, rows: pa.Table) -> None:
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import OperationalError

        while True:
            with suppress(CommitFailedException, OperationalError):
                self.handle.append(rows)
                return
            self.handle.refresh()

    def upsert(self, rows: pa.Table) -> None:
        self.handle.upsert(rows, join_cols=["k"])

    def version(self) -> int:
        return int(self.handle.refresh().current_snapshot().snapshot_id)

    def read(self, version: int | None = None, *, below: int | None = None) -> pa.Table:
        where = "true" if below is None else f"k < {below}"
        found: pa.Table = self.handle.scan(where, snapshot_id=version).to_arrow()
        return found


class SparkDelta(Side):
    """A Delta table with deletion vectors, in the Spark session of this process."""

    spark: ClassVar[SparkSession | None] = None

    @property
    def session(self) -> SparkSession:
        assert self.spark is not None, "kinds() leaves out this side without a session"
        return self.spark

    def opened(self) -> Any:
        return self.bare

    def create(self) -> None:
        self._write(SCHEMA.empty_table(), "errorifexists")

    def append(self, rows: pa.Table) -> None:
        self._write(rows, "append")

    def _write(self, rows: pa.Table, mode: str) -> None:
        writer = self.session.createDataFrame(rows).write.format("delta").mode(mode)
        writer.option("delta.enableDeletionVectors", "true").save(self.handle)

    def upsert(self, rows: pa.Table) -> None:
        self.session.createDataFrame(rows).createOrReplaceTempView("upserted")
        self.session.sql(f"""
            MERGE INTO delta.`{self.handle}` AS t USING upserted AS s ON t.k = s.k
            WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""").collect()

    def version(self) -> int:
        history = self.session.sql(f"DESCRIBE HISTORY delta.`{self.handle}`")
        return int(history.selectExpr("max(version)").collect()[0][0])

    def read(self, version: int | None = None, *, below: int | None = None) -> pa.Table:
        reader = self.session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        frame = reader.load(self.handle)
        return (frame if below is None else frame.where(f"k < {below}")).toArrow()


def kinds(*, spark: bool = True) -> dict[str, type[Side]]:
    """Return the sides whose packages are installed; with ``spark``, also the one on Spark."""
    found: dict[str, type[Side]] = {"tidelog": Tidelog}
    if spark and SparkDelta.spark is not None:
        found["Delta on Spark"] = SparkDelta
    if has_delta():
        found["delta-rs"] = Delta
    if importlib.util.find_spec("pyiceberg") and importlib.util.find_spec("sqlalchemy"):
        found["pyiceberg"] = Iceberg
    return found


_barrier: Barrier | None = None


def _begin_worker(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - a process of the pool gets it once
    _barrier = barrier


def insert_for(side: Side, seconds: float) -> float:
    """Insert rows one by one, beside the other processes; return the rows a second."""
    side.append(made(0, 1))
    if _barrier is not None:
        _barrier.wait(timeout=BEGIN_S)  # If a process fails, the others end too.
    begun = time.perf_counter()
    for number in count(1):
        side.append(made(number, 1))
        if (elapsed := time.perf_counter() - begun) >= seconds:
            return number / elapsed
    raise AssertionError


@dataclass(slots=True)
class Bench:
    """The measured lines: a name, and the values of each side in each round."""

    url: str
    folder: Path
    rounds: int
    lines: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def sides(self, name: str, *, key: bool = False, spark: bool = True) -> dict[str, Side]:
        """Create an empty table of each side."""
        found = {
            kind: make(within(self.url, f"{name}-{kind}"), self.folder / f"{name}.db", key)
            for kind, make in kinds(spark=spark).items()
        }
        for side in found.values():
            side.create()
        return found

    def measure(self, line: str, works: Mapping[str, Callable[[], object]]) -> None:
        timed = {name: partial(seconds_of, work) for name, work in works.items()}
        side_by_side(timed, 1)
        self.lines[f"{line}, s"] = side_by_side(timed, self.rounds)

    def commits(self, length: int) -> None:
        """Measure commits of many rows, then the reads of their table."""
        sides = self.sides("commits")
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        middle = {}
        for number in range(length + WINDOW):
            rows = made(number * COMMIT_ROWS, COMMIT_ROWS)
            for name, side in sides.items():
                seconds[name].append(seconds_of(partial(side.append, rows)))
                if number == length // 2:
                    middle[name] = side.version()
        for history in (EARLY, length):
            some = {name: each[history : history + WINDOW] for name, each in seconds.items()}
            for share in (0.5, 0.95):
                line = f"commit after {history}, p{share * 100:.0f}, s"
                self.lines[line] = {n: [percentile(each, share)] for n, each in some.items()}
        self.reads("commits", sides, (length + WINDOW) * COMMIT_ROWS)
        past = (length // 2 + 1) * COMMIT_ROWS
        self.measure(
            "read as of the middle",
            {n: partial(read, side, past, middle[n]) for n, side in sides.items()},
        )

    def reads(self, line: str, sides: dict[str, Side], rows: int) -> None:
        """Measure reads of all rows and of a few, and the stored bytes."""
        self.measure(f"read {line}", {n: partial(read, side, rows) for n, side in sides.items()})
        few = {n: partial(read, side, 100, below=100) for n, side in sides.items()}
        self.measure(f"read 100 rows of {line}", few)
        self.lines[f"{line}, MB stored"] = {n: [s.stored() / 1e6] for n, s in sides.items()}

    def upserts(self, rows: int) -> None:
        """Measure upserts of random keys, half of which exist, into many rows.

        pyiceberg takes seconds for each upsert, so it takes part with few rows only.
        """
        sides = self.sides("upserts", key=True)
        if rows > ICEBERG_ROWS_MAX:
            sides.pop("pyiceberg", None)
        for side in sides.values():
            side.append(made(0, rows))
        rng, total = np.random.default_rng(7), set(range(rows))

        def upserted() -> dict[str, float]:
            keys = rng.choice(2 * rows, UPSERTED, replace=False)
            total.update(keys.tolist())
            given = made(rows, UPSERTED).set_column(0, "k", pa.array(keys))
            return {n: seconds_of(partial(side.upsert, given)) for n, side in sides.items()}

        each = [upserted() for _ in range(self.rounds + 1)][1:]
        line = f"upsert {UPSERTED:,} keys into {rows:,}, s"
        self.lines[line] = {n: [one[n] for one in each] for n in sides}
        self.reads("upserted rows", sides, len(total))

    def inserts(self, processes: int, seconds: float) -> None:
        """Measure inserts of single rows, and how soon another handle reads them."""
        readable = self.sides("readable", spark=False)
        numbers = count()

        def inserted(side: Side) -> None:
            side.append(made(next(numbers), 1))
            side.reopened().read(below=1)

        works = {n: partial(inserted, side) for n, side in readable.items()}
        self.measure("insert, then read by a new handle", works)
        alone = self.sides("alone", spark=False)
        rates = {n: partial(insert_for, side, seconds) for n, side in alone.items()}
        self.lines["inserts a second, 1 process"] = side_by_side(rates, self.rounds)
        spawn = multiprocessing.get_context("spawn")
        together = self.sides("together", spark=False)
        with ProcessPoolExecutor(
            processes, spawn, _begin_worker, (spawn.Barrier(processes),)
        ) as pool:

            def rate(side: Side) -> float:
                return sum(pool.map(insert_for, [side] * processes, [seconds] * processes))

            rates = {n: partial(rate, side) for n, side in together.items()}
            line = f"inserts a second, {processes} processes"
            self.lines[line] = side_by_side(rates, self.rounds)

    def show(self) -> None:
        names = [*kinds()]
        rows = []
        for line, found in self.lines.items():
            medians = {name: statistics.median(each) for name, each in found.items()}
            cells = [f"{medians[name]:.4g}" if name in medians else "" for name in names]
            rows.append([line, *cells, *best_of(medians, is_rate="a second" in line)])
        print_table(["", *names, "best of the others", "times as good"], rows)


def best_of(medians: dict[str, float], *, is_rate: bool) -> list[str]:
    """Return the best of the others, and how often as good tidelog is."""
    others = {name: value for name, value in medians.items() if name != "tidelog"}
    if not others:
        return ["", ""]
    best = (max if is_rate else min)(others, key=others.__getitem__)
    theirs, ours = others[best], medians["tidelog"]
    return [best, f"{ours / theirs if is_rate else theirs / ours:.2f}"]


def read(side: Side, rows: int, version: int | None = None, *, below: int | None = None) -> None:
    """Read with a new handle; the number of rows must be right."""
    expect(side.reopened().read(version, below=below).num_rows, rows)


@contextmanager
def place(folder: Path, *, s3: bool) -> Iterator[str]:
    """Yield the URL of an empty place on the disk or on a server."""
    if not s3:
        yield (folder / "place").as_uri()
        return
    with SeaweedServer(folder / "server") as server:
        yield server.url("bench")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--s3", action="store_true", help="on an S3 server of the tests")
    parser.add_argument("--commits", type=int, default=100, help="the longer history, at least 10")
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows before the upserts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3, help="of inserts in each round")
    parser.add_argument("--spark-delta", type=Path, help="a folder of Delta's jars")
    given = parser.parse_args()
    if given.spark_delta:
        if given.s3:
            parser.error("--spark-delta needs tables on the disk: leave out --s3")
        from ingest_sides import delta_settings  # These need PySpark, which other runs do not.
        from tidelog.spark.session import session

        SparkDelta.spark = session(extra=delta_settings(given.spark_delta))
    print(f"sides: {', '.join(kinds())}; {given.rounds} rounds; S3: {given.s3}\n")
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name:
        folder = Path(name)
        with place(folder, s3=given.s3) as url:
            bench = Bench(url, folder, given.rounds)
            bench.commits(given.commits)
            bench.upserts(given.keys)
            bench.inserts(given.processes, given.seconds)
            bench.show()


if __name__ == "__main__":
    main()
