"""A user's own session on a cluster, in which small sources are ingested: what came of each.

``python -m cluster.own_session MASTER SHARED NAME=VALUE...``, in a directory that the workers do
not stand in: so ``/proc/self/cwd`` is one path, and another directory for each process, as a path
of local disks is on the machines of a cluster. Prints an object for each case.
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
    """Ingest what is in a folder to a location on disk; say what came of it."""
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
    """Return where the newest binding ends; 0 where nothing was bound."""
    ingester = await (await open_location(url)).sources.ingester(NAME)
    return ingester.remap.state.upper_frontier.time


def main(master: str, shared: Path, settings: list[str]) -> None:
    builder = SparkSession.builder.master(master)
    for name, _, value in (setting.partition("=") for setting in settings):
        builder = builder.config(name, value)
        if name == "spark.pyspark.python":
            os.environ["PYSPARK_PYTHON"] = value  # What PySpark goes by without spark-submit.
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
