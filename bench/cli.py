"""Seconds of commands: whole processes, from start to exit.

A tick of 1,000 rows is ``ingest --once`` of one new file of that size, into an existing collection.
Spark's time includes the start of Spark.

    python bench/cli.py [--rounds N]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import print_table, seconds_of, side_by_side
from tidelog.spark.archive import archive_path
from tidelog.spark.java import find_launcher

TIDELOG = Path(sys.executable).with_name("tidelog")
ROWS = 1_000
AIMS = ("0.3", "1.0", "", "")


class Lake:
    """A location with one source, used only by the command line."""

    def __init__(self, folder: Path) -> None:
        self.files, self.numbers = folder / "files", itertools.count()
        self.files.mkdir()
        self.environment = {**os.environ, "TIDELOG_LOCATION": (folder / "lake").as_uri()}

    def run(self, *words: str) -> str:
        """Run a command that must succeed; return its output."""
        done = subprocess.run(
            [TIDELOG, *words], env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def timed(self, *words: str) -> float:
        return seconds_of(lambda: self.run(*words))

    def tick(self, engine: str) -> float:
        """Ingest one more file of rows."""
        number = next(self.numbers)
        rows = ({"id": number * ROWS + n, "at": number * ROWS + n} for n in range(ROWS))
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.files / f"{number:05d}.jsonl").write_text(text)
        begun = time.perf_counter()
        printed = self.run("ingest", "rows", "--once", "--engine", engine, "--json")
        seconds = time.perf_counter() - begun
        found = json.loads(printed)
        if (found["ticks"], found["rows"]) != (1, ROWS):
            raise SystemExit(f"not one tick of {ROWS} rows: {found}")
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        lake = Lake(Path(folder))
        files, schema = f"{lake.files}/*.jsonl", "id bigint, at bigint"
        made = "source", "create", "rows", "--files", files, "--schema", schema
        lake.run(*made, "--time-column", "at")
        lake.tick("local")
        works = {
            "tidelog --help": lambda: lake.timed("--help"),
            "tidelog read, ten rows of a small collection": lambda: lake.timed(
                "read", "rows", "--limit", "10"
            ),
            f"one tick of {ROWS:,} rows, local": lambda: lake.tick("local"),
            f"one tick of {ROWS:,} rows, Spark": lambda: lake.tick("spark"),
        }
        found = side_by_side(works, rounds)
    archive = "with" if archive_path(find_launcher(os.environ)).exists() else "without"
    print(
        f"{rounds} rounds; Spark starts {archive} a class archive (python -m tidelog.spark.warm)\n"
    )
    table = [
        [name, f"{statistics.median(s):.2f}", f"{min(s):.2f}", f"{max(s):.2f}", aim]
        for (name, s), aim in zip(found.items(), AIMS, strict=True)
    ]
    print_table(["command", "median s", "least", "most", "aim"], table)


if __name__ == "__main__":
    main()
