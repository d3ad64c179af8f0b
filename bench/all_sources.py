"""The ticks a second that one process sustains for many sources of several shards each.

    python bench/all_sources.py [--sources N] [--shards N] [--seconds N] [--rows N]

A command ``tidelog ingest --all --follow`` runs as a process of its own, on a location on a disk.
Each second, each source gets a json file with new keys. A gap is the time between two ticks of a
source. At the end, all rows of all sources must be there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import tidelog
from figures import percentile, print_table

WARM_S = 5.0
INTERVAL_S = 0.2


@dataclass
class Ticks:
    """The reports of the process: the times and the rows of its ticks, by source."""

    at: dict[str, list[float]] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)

    def take(self, line: str, now: float) -> None:
        """Take a line of progress."""
        told = json.loads(line) if line.startswith("{") else {}
        if "tick" in told and told["rows"]:
            self.at.setdefault(told["source"], []).append(now)
            self.rows.setdefault(told["source"], []).append(told["rows"])


def write_file(folder: Path, number: int, rows: int) -> float:
    """Put a file into a source's folder at once; return the time."""
    first = number * rows
    lines = (json.dumps({"n": n, "code": f"c{n % 97}"}) for n in range(first, first + rows))
    made = folder.parent / f"{folder.name}-{number}.part"
    made.write_text("\n".join(lines) + "\n")
    made.rename(folder / f"{number:06}.jsonl")
    return time.monotonic()


def follow(
    process: subprocess.Popen[str], folders: Sequence[Path], seconds: int, rows: int
) -> Ticks:
    """Give each source a file a second, and read what the process reports."""
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    ticks, number, begun = Ticks(), 1, time.monotonic()
    while time.monotonic() < begun + seconds + WARM_S:
        due = begun + number
        for folder in folders:
            write_file(folder, number, rows)
        number += 1
        while time.monotonic() < due:
            for line in process.stderr.readlines():
                ticks.take(line, time.monotonic())
            time.sleep(0.01)
    while time.monotonic() < begun + number + WARM_S:
        for line in process.stderr.readlines():
            ticks.take(line, time.monotonic())
        time.sleep(0.01)
    return ticks


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--sources", type=int, default=10)
    asked.add_argument("--shards", type=int, default=3)
    asked.add_argument("--seconds", type=int, default=60)
    asked.add_argument("--rows", type=int, default=100)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / f"s{n}" for n in range(given.sources)]
        lake = str(Path(place) / "lake")
        create(lake, folders, given.shards, given.rows)
        before = cpu_of_children()
        ticks = run(lake, folders, given.seconds, given.rows)
        cpu = cpu_of_children() - before
        check(lake, folders, given.rows)
    # The first ticks have the files that were there before, and start the process.
    late = [one[2:] for one in ticks.at.values()]
    gaps = [b - a for one in late for a, b in pairwise(one)]
    rates = [(len(one) - 1) / (one[-1] - one[0]) for one in late]
    head = ["sources", "shards", "ticks/s, median", "ticks/s, least", "gap p50", "gap p99", "CPU"]
    row = [str(given.sources), str(given.shards), f"{statistics.median(rates):.2f}"]
    row += [
        f"{min(rates):.2f}",
        f"{percentile(gaps, 0.5):.2f} s",
        f"{percentile(gaps, 0.99):.2f} s",
    ]
    print_table(head, [[*row, f"{cpu / (given.seconds + 2 * WARM_S):.2f} cores"]])


def create(url: str, folders: Sequence[Path], shards: int, rows: int) -> None:
    """Create the sources, with a file each."""
    with tidelog.connect(url, create=True) as lake:
        for folder in folders:
            folder.mkdir()
            write_file(folder, 0, rows)
            lake.sources.create(
                tidelog.SourceSpec(
                    name=folder.name,
                    files=str(folder),
                    schema="n bigint, code varchar",
                    envelope="upsert",
                    key=("n",),
                    shards=shards,
                )
            )


def run(url: str, folders: Sequence[Path], seconds: int, rows: int) -> Ticks:
    """Ingest all sources in another process while files appear."""
    command = [sys.executable, "-m", "tidelog.cli.main", "--location", url, "ingest", "--all"]
    command += ["--follow", "--interval", str(INTERVAL_S), "--json", "--engine", "local"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        return follow(process, folders, seconds, rows)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def check(url: str, folders: Sequence[Path], rows: int) -> None:
    """Check that each source has the rows of all of its files."""
    with tidelog.connect(url) as lake:
        for folder in folders:
            found = lake.collection(folder.name).snapshot().to_arrow().num_rows
            if found != (wanted := rows * len(list(folder.iterdir()))):
                sys.exit(f"{folder.name} has {found} rows of {wanted}")


def cpu_of_children() -> float:
    """Return the seconds of CPU of all ended child processes."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main()
