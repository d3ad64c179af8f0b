"""The time and memory of reading a collection from the command line, next to DuckDB.

Json lines are ingested once with the envelope ``none``, and once with ``upsert`` by the key id.
Each line is a whole process, from start to exit. DuckDB reads a Parquet file of the same rows, in a
process of Python. Both write the rows to a file. This process itself stays small, because the peak
of a child starts at the size of its parent.

    python bench/read.py [--rows N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from figures import print_table

TIDELOG = str(Path(sys.executable).with_name("tidelog"))
FILES = 8
MAKE = """
import duckdb, sys
folder, rows = sys.argv[1], int(sys.argv[2])
select = '''SELECT i AS id, 'user-' || hash(i) % greatest(1, {rows} // 10) AS user,
    1700000000000 + i AS stamp, 'k' || hash(i + 1) % 5 AS kind,
    (hash(i + 2) % 100000) / 100 AS amount, hash(i + 3) % 2 = 0 AS ok,
    DATE '2024-01-01' + (i % 28)::INT AS day, repeat('x', 44) AS note
    FROM range({start}, {limit}) r(i) ORDER BY i'''
for n in range(8):
    part = select.format(rows=rows, start=rows * n // 8, limit=rows * (n + 1) // 8)
    duckdb.sql(f"COPY ({part}) TO '{folder}/{n}.json' (FORMAT json)")
whole = select.format(rows=rows, start=0, limit=rows)
duckdb.sql(f"COPY ({whole}) TO '{folder}/rows.parquet' (FORMAT parquet)")
"""
DUCK = "import duckdb, sys; duckdb.sql(sys.argv[1])"
SCHEMA = (
    "id bigint, user varchar, stamp bigint, kind varchar, amount double, ok boolean, day date, "
    "note varchar"
)


@dataclass(slots=True)
class Runs:
    """The cost of each run of a command: seconds, and MB at its peak."""

    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)


def run(words: Sequence[str]) -> tuple[float, float]:
    """Run a process that must succeed; return its seconds, and its peak in MB."""
    begun = time.perf_counter()
    null = os.open(os.devnull, os.O_WRONLY)
    actions = [(os.POSIX_SPAWN_DUP2, null, 1)]
    child = os.posix_spawn(words[0], list(words), os.environ, file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - begun
    os.close(null)
    if status:
        raise SystemExit(f"failed: {' '.join(words)}")
    return seconds, usage.ru_maxrss / 1_024


def make(folder: Path, rows: int) -> int:
    """Write the rows and ingest them; return the bytes of json."""
    run([sys.executable, "-c", MAKE, str(folder), str(rows)])
    source = [TIDELOG, "source", "create"]
    files = ["--files", f"{folder}/*.json", "--schema", SCHEMA]
    run([*source, "appended", *files])
    run([*source, "keyed", *files, "--envelope", "upsert", "--key", "id"])
    for name in ("appended", "keyed"):
        run([TIDELOG, "ingest", name, "--engine", "local"])
    return sum(path.stat().st_size for path in folder.glob("*.json"))


def works(folder: Path, rows: int) -> dict[str, tuple[list[str], list[str]]]:
    """Return for each kind of read tidelog's command, and DuckDB's of the same rows."""
    out, parquet = folder / "out", folder / "rows.parquet"
    where = f"id = {rows // 2}"
    asked = {
        "--limit 3": (["--limit", "3", "--format", "json"], "LIMIT 3", "json"),
        f"--where '{where}'": (["--where", where, "--format", "json"], f"WHERE {where}", "json"),
        "--format csv": (["--format", "csv"], "", "csv"),
        "--format json": (["--format", "json"], "", "json"),
        "--format parquet": (["--format", "parquet"], "", "parquet"),
    }
    found: dict[str, tuple[list[str], list[str]]] = {}
    for name in ("appended", "keyed"):
        for title, (options, clause, kind) in asked.items():
            sql = f"COPY (SELECT * FROM '{parquet}' {clause}) TO '{out}' (FORMAT {kind})"
            ours = [TIDELOG, "read", name, *options, "-o", str(out)]
            found[f"{name}: {title}"] = ours, [sys.executable, "-c", DUCK, sql]
    return found


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print the seconds and memory of each side."""
    size = make(folder, rows)
    asked = works(folder, rows)
    ours = {name: Runs() for name in asked}
    theirs = {name: Runs() for name in asked}
    for _ in range(rounds):
        for name, commands in asked.items():
            for command, side in zip(commands, (ours, theirs), strict=True):
                seconds, megabytes = run(command)
                side[name].seconds.append(seconds)
                side[name].megabytes.append(megabytes)
    print(f"{rows:,} rows, {size / 1e6:.0f} MB of json in {FILES} files; {rounds} rounds\n")
    middle: Callable[[list[float]], float] = statistics.median
    table = []
    for name in asked:
        took, base = ours[name], theirs[name]
        ratios = [a / b for a, b in zip(took.seconds, base.seconds, strict=True)]
        is_small = "--format" not in name
        table.append(
            [
                name,
                f"{middle(took.seconds):.2f}",
                f"{max(took.megabytes):.0f}",
                f"{middle(base.seconds):.2f}",
                f"{max(base.megabytes):.0f}",
                f"{middle(ratios):.2f}",
                "1.0 s, 250 MB" if is_small else "1.5 times",
            ]
        )
    head = ["read", "seconds", "peak MB", "DuckDB's seconds", "its peak MB", "times its", "aim"]
    print_table(head, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_800_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        os.environ["TIDELOG_LOCATION"] = (Path(folder) / "lake").as_uri()
        measure(Path(folder), given.rows, given.rounds)


if __name__ == "__main__":
    main()
