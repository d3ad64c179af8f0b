"""Reads of tables on Spark, next to plain Parquet and, with its jars, Delta.

All sides have the same rows on this machine's disk. They take turns in each round, in one warm
session. A read includes the open of the location or table. Four histories are read:

- appended: ten commits without a key, now and as of the fifth;
- upserted: ten commits by key, then an upsert of random keys, now and as of the time before it;
- compacted: the upserted rows after a compaction that keeps no history.

The side "to_spark" reads by a snapshot, and "source" by ``format("tidelog")`` with the option
``columns``. A ratio is the median over the rounds of the other's time to that of "to_spark": above
1, tidelog is faster. The aim is 0.9 for Parquet, and 2 for Delta as of an earlier version.

    python bench/spark_tables.py [--delta FOLDER_OF_JARS] [--rows N] [--rounds N] [--only HISTORY]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tidelog.aio
from bulk import made
from figures import print_table, ratio, seconds_of, side_by_side
from ingest_sides import delta_settings
from tidelog.spark.session import session, stop

COMMITS: Final = 10
UPSERTED: Final = 10_000
WARM_UP: Final = 2
HISTORIES: Final = {"appended": [], "upserted": ["k"], "compacted": ["k"]}
Asked = Callable[[DataFrame], int]
Query = tuple[list[str], Asked]  # The columns that the query needs, and its computation.


def queries(rows: int) -> dict[str, Query]:
    def filtered(frame: DataFrame) -> int:
        some = frame.where(f"k >= {rows // 4} and k < {rows // 4 + rows // 10}")
        return int(some.selectExpr("sum(n % 1000 + k)").collect()[0][0])

    return {
        "count(*)": (["k"], lambda frame: frame.count()),
        "sum of a column": (["n"], lambda frame: int(frame.selectExpr("sum(n)").collect()[0][0])),
        "two columns, filtered": (["k", "n"], filtered),
    }


@dataclass(slots=True)
class Side(ABC):
    """The tables of one system, in a folder."""

    spark: SparkSession
    folder: Path
    versions: dict[str, int] = field(default_factory=dict)

    @abstractmethod
    def append(self, name: str, rows: pa.Table) -> None: ...

    @abstractmethod
    def upsert(self, name: str, rows: pa.Table) -> None: ...

    @abstractmethod
    def compact(self, name: str) -> None: ...

    @abstractmethod
    def keep(self, name: str) -> None:
        """Note the newest version, which `frame` reads as the earlier one."""

    @abstractmethod
    def frame(self, name: str, columns: list[str], *, earlier: bool) -> DataFrame:
        """Open a table; return its contents now, or as of the earlier version."""


class Parquet(Side):
    """Plain files; a folder for each version has the rows of this version only."""

    def _files(self, name: str, version: str = "now") -> Path:
        folder = self.folder / f"parquet-{name}-{version}"
        folder.mkdir(exist_ok=True)
        return folder

    def append(self, name: str, rows: pa.Table) -> None:
        folder = self._files(name)
        path = folder / f"{len(list(folder.iterdir())):04}.parquet"
        pq.write_table(rows, path, compression="zstd")

    def upsert(self, name: str, rows: pa.Table) -> None:
        for path in self._files(name).iterdir():
            table = pq.read_table(path)
            stays = pc.invert(pc.is_in(table.column("k"), rows.column("k")))
            pq.write_table(table.filter(stays), path, compression="zstd")
        self.append(name, rows)

    def compact(self, name: str) -> None:
        pass

    def keep(self, name: str) -> None:
        shutil.copytree(self._files(name), self._files(name, "then"), dirs_exist_ok=True)

    def frame(self, name: str, columns: list[str], *, earlier: bool) -> DataFrame:
        return self.spark.read.parquet(str(self._files(name, "then" if earlier else "now")))


class Delta(Side):
    """Delta tables with deletion vectors."""

    def _path(self, name: str) -> str:
        return str(self.folder / f"delta-{name}")

    def _staged(self, rows: pa.Table) -> Path:
        path = self.folder / "staged.parquet"
        pq.write_table(rows, path)
        return path

    def append(self, name: str, rows: pa.Table) -> None:
        frame = self.spark.read.parquet(str(self._staged(rows)))
        writer = frame.write.format("delta").mode("append")
        writer.option("delta.enableDeletionVectors", "true").save(self._path(name))

    def upsert(self, name: str, rows: pa.Table) -> None:
        self.spark.sql(f"""
            MERGE INTO delta.`{self._path(name)}` AS t
            USING parquet.`{self._staged(rows)}` AS s ON t.k = s.k
            WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""").collect()

    def compact(self, name: str) -> None:
        self.spark.sql(f"OPTIMIZE delta.`{self._path(name)}`").collect()

    def keep(self, name: str) -> None:
        history = self.spark.sql(f"DESCRIBE HISTORY delta.`{self._path(name)}`")
        self.versions[name] = int(history.selectExpr("max(version)").collect()[0][0])

    def frame(self, name: str, columns: list[str], *, earlier: bool) -> DataFrame:
        reader = self.spark.read.format("delta")
        if earlier:
            reader = reader.option("versionAsOf", self.versions[name])
        return reader.load(self._path(name))


class ToSpark(Side):
    """Tables of tidelog, read by `to_spark` of a snapshot."""

    @property
    def url(self) -> str:
        return (self.folder / "lake").as_uri()

    def append(self, name: str, rows: pa.Table) -> None:
        with tidelog.connect(self.url, create=True) as lake:
            if name not in lake.tables.list():
                retain_ms = 0 if name == "compacted" else None
                lake.tables.create(name, rows.schema, key=HISTORIES[name], retain_ms=retain_ms)
            lake.table(name).insert(rows)

    def upsert(self, name: str, rows: pa.Table) -> None:
        with tidelog.connect(self.url) as lake:
            lake.table(name).upsert(rows)

    def compact(self, name: str) -> None:
        asyncio.run(self._compact(name))

    async def _compact(self, name: str) -> None:
        location = await tidelog.aio.connect(self.url)
        maintenance = location.maintenance
        async for _ in maintenance.compact(await maintenance.groups([name]), full=True):
            pass

    def keep(self, name: str) -> None:
        with tidelog.connect(self.url) as lake:
            self.versions[name] = int(lake.table(name).snapshot().as_of)

    def frame(self, name: str, columns: list[str], *, earlier: bool) -> DataFrame:
        with tidelog.connect(self.url) as lake:
            snapshot = lake.table(name).snapshot(self.versions[name] if earlier else None)
            return snapshot.to_spark(self.spark)


class Source(ToSpark):
    """The same tables, read by ``format("tidelog")`` with the columns of the query."""

    def frame(self, name: str, columns: list[str], *, earlier: bool) -> DataFrame:
        options = {"location": self.url, "columns": ",".join(columns)}
        if earlier:
            options["asOf"] = str(self.versions[name])
        return self.spark.read.format("tidelog").options(**options).load(name)


KINDS: Final[dict[str, type[Side]]] = {
    "to_spark": ToSpark,
    "source": Source,
    "Parquet": Parquet,
    "Delta": Delta,
}


@dataclass(slots=True)
class Bench:
    """The sides, and the measured lines: a name, and the seconds of each side in each round."""

    sides: dict[str, Side]
    rows: int
    rounds: int
    histories: list[str]
    lines: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def write(self) -> None:
        """Write the histories of all sides; "source" reads the tables of "to_spark"."""
        rng = np.random.default_rng(7)
        each = self.rows // COMMITS
        keys = rng.choice(self.rows + UPSERTED, min(UPSERTED, self.rows), replace=False)
        changed = made(self.rows, len(keys)).set_column(0, "k", pa.array(keys))
        for side in (side for side in self.sides.values() if type(side) is not Source):
            for name in self.histories:
                for number in range(COMMITS):
                    if name == "appended" and number == COMMITS // 2:
                        side.keep(name)
                    side.append(name, made(number * each, each))
                if name != "appended":
                    side.keep(name)
                    side.upsert(name, changed)
                if name == "compacted":
                    side.compact(name)
        self.sides["source"].versions = self.sides["to_spark"].versions

    def measure(self, name: str, *, earlier: bool) -> None:
        for what, (columns, query) in queries(self.rows).items():
            line = f"{name}{', as of earlier' if earlier else ''}: {what}"
            results: set[int] = set()

            def work(side: Side, found: set[int], needed: list[str], asked: Asked) -> float:
                def read() -> None:
                    found.add(asked(side.frame(name, needed, earlier=earlier)))

                return seconds_of(read)

            works = {
                kind: partial(work, side, results, columns, query)
                for kind, side in self.sides.items()
            }
            side_by_side(works, WARM_UP)
            self.lines[line] = side_by_side(works, self.rounds)
            if len(results) > 1:
                raise SystemExit(f"{line}: the results differ: {results}")
            print(line, {n: f"{statistics.median(s):.3f}" for n, s in self.lines[line].items()})

    def show(self) -> None:
        others = [name for name in self.sides if name != "to_spark"]
        rows = []
        for line, found in self.lines.items():
            medians = [f"{statistics.median(seconds):.3f}" for seconds in found.values()]
            ratios = [f"{ratio(found['to_spark'], found[name]):.2f}" for name in others]
            rows.append([line, *medians, *ratios])
        print()
        print_table(["seconds", *self.sides, *[f"{name} / to_spark" for name in others]], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=Path, help="a folder of Delta's jars")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=HISTORIES, help="read this history only")
    given = parser.parse_args()
    spark = session(extra=delta_settings(given.delta) if given.delta else {})
    kinds = {n: k for n, k in KINDS.items() if n != "Delta" or given.delta}
    if not given.delta:
        print("Delta takes no part: --delta names a folder of its jars")
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name:
            sides = {kind: make(spark, Path(name)) for kind, make in kinds.items()}
            histories = [given.only] if given.only else list(HISTORIES)
            bench = Bench(sides, given.rows, given.rounds, histories)
            bench.write()
            print(f"{given.rows:,} rows; PySpark {spark.version}; {given.rounds} rounds\n")
            for history in histories:
                bench.measure(history, earlier=False)
                if history != "compacted":
                    bench.measure(history, earlier=True)
            bench.show()
    finally:
        stop(spark)


if __name__ == "__main__":
    main()
