"""CPU seconds of a fresh process until its first use of tidelog, and the modules that it loads.

A warm-up round fills the page cache. Set PYTHONPATH to measure another checkout.

    python bench/start.py [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import print_table, side_by_side

CONNECT = "import tidelog; lake = tidelog.connect(url, create=True)\n"
LOG = CONNECT + "name = f'log{os.getpid()}'; lake.logs.create(name).close()\n"
APPEND = LOG + "with lake.log(name) as log: log.append([b'a'])\n"
ROWS = (
    "import pyarrow as pa; shard = lake.shard('s', schema=pa.schema([('k', pa.int64())]))\n"
    "shard.append(pa.table({'k': [1], '_time': [0], '_diff': [1]}), 0, 1)\n"
)
READ = CONNECT + "lake.shard('s').snapshot(0).to_arrow()\n"
COMMAND = "from tidelog.cli.main import main; assert main({words}) == 0\n"
PROGRAMS = {
    "import tidelog": "import tidelog\n",
    "connect": CONNECT,
    "connect, open a log, append": APPEND,
    "connect, read a shard": READ,
    "tidelog --help": COMMAND.format(words=["--help"]),
    "tidelog read --help": COMMAND.format(words=["read", "--help"]),
    "tidelog shard read": COMMAND.format(words=["shard", "read", "s", "--as-of", "0"]),
}
END = "\nprint(time.process_time(), len(sys.modules), file=sys.stderr)"


def start(program: str, url: str) -> tuple[float, int]:
    """Run a program in a fresh process; return its CPU seconds and its modules."""
    begin = f"import os, sys, time; url = os.environ['TIDELOG_LOCATION'] = {url!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + program + END], check=True, capture_output=True, text=True
    )
    seconds, modules = done.stderr.split()[-2:]
    return float(seconds), int(modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        url = (Path(folder) / "lake").as_uri()
        start(CONNECT + ROWS, url)
        modules = {name: start(program, url)[1] for name, program in PROGRAMS.items()}
        works = {
            name: lambda program=program: start(program, url)[0]
            for name, program in PROGRAMS.items()
        }
        found = side_by_side(works, rounds)
    print(f"{rounds} rounds of fresh processes, in turn\n")
    table = [
        [name, f"{statistics.median(s):.2f}", f"{min(s):.2f}", f"{max(s):.2f}", str(modules[name])]
        for name, s in found.items()
    ]
    print_table(["program", "median CPU s", "least", "most", "modules"], table)


if __name__ == "__main__":
    main()
