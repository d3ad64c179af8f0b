"""A user's own session on a cluster that ingests small sources, and prints each result.

``python -m cluster.own_session MASTER SHARED NAME=VALUE...``, in a directory that is not the
workers' working directory. So ``/proc/self/cwd`` is one path, but another directory for each
process, like a local disk on each machine of a cluster. It prints an object for each case.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import tidelog
from cluster.scene import NAME, spec_of, write_few
from tidelog.errors import TidelogError
from tidelog.location import open_location
from tidelog.spark import SparkEngine
from tidelog.spark.session import stop

APART = Path("/proc/self/cwd")
ROWS = 20


def ingest_few(spark: SparkSession, url: str, files: Path) -> dict[str, object]:
    """Ingest the files of a folder into a location on disk; return the result."""
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(spec_of(str(files)))
        try:
            done = lake.sources.ingest(NAME, engine=SparkEngine(spark, location_url=url))
            told: dict[str, object] = {"rows": done.rows}
        except TidelogError as error:
            told = {"kind": error.kind, "error": str(error)}
    left = [path.name for path in (Path(url) / "probe").glob("*")]
    return {**told, "bound": asyncio.run(bound_until(url)), "left": left}


async def bound_until(url: str) -> int:
    """Return the end of the newest binding; 0 if nothing was bound."""
    ingester = await (await open_location(url)).sources.ingester(NAME)
    return ingester.remap.state.upper_frontier.time


def main(master: str, shared: Path, settings: list[str]) -> None:
    builder = SparkSession.builder.master(master)
    for name, _, value in (setting.partition("=") for setting in settings):
        builder = builder.config(name, value)
        if name == "spark.pyspark.python":
            os.environ["PYSPARK_PYTHON"] = value  # PySpark's own setting without spark-submit.
    spark = builder.getOrCreate()
    for folder in (APART, shared):
        write_few(folder / "in", ROWS)
    for case, lake, files in (
        ("location apart", APART / "lake", shared / "in"),
        ("source apart", shared / "other", APART / "in"),
        ("shared", shared / "lake", shared / "in"),
    ):
        told = ingest_few(spark, str(lake), files)
        print(json.dumps({"case": case, **told}), flush=True)
    read = spark.read.format("tidelog").option("location", str(shared / "lake")).load(NAME)
    print(json.dumps({"case": "read", "rows": read.count()}), flush=True)
    stop(spark)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
