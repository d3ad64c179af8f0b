"""A streaming query from one table into another, killed at its puts; and a check of the target.

``python -m chaos.table_stream URL CHECKPOINT`` runs the query until nothing is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import tidelog

FOLDER = Path(__file__).parent
COLUMNS = "a bigint, b varchar"
ROWS = 20
TIMES = 3  # Inserts before each run; each is a micro-batch.
STARTS = 4
NOT_STARTED = "Python worker failed to connect back"
PUTS = 9  # A run of three micro-batches has at least as many puts.


def copy(url: str, checkpoint: str) -> None:
    """Copy the new rows of the table ``given`` into ``copied``."""
    from kit.spark_queries import run_available
    from tidelog.spark.datasource import register_source
    from tidelog.spark.session import session, stop

    spark = session(quick=True)
    register_source(spark)
    reader = spark.readStream.format("tidelog").option("kind", "changes").option("location", url)
    rows = reader.option("maxTimesPerTrigger", "1").load("given").select("a", "b")
    writer = rows.writeStream.format("tidelog").option("location", url)
    run_available(writer.option("checkpointLocation", checkpoint), "copied")
    stop(spark)


def run(url: str, checkpoint: Path, count: Path, *, die_at: int, lands: bool) -> int:
    """Run the query in a process that dies at a put; return its exit status."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(FOLDER / "dying"), str(FOLDER.parent), *sys.path]),
        "DIE_COUNT": str(count),
        "DIE_AT": str(die_at),
        **({"DIE_AFTER": "1"} if lands else {}),
    }
    command = [sys.executable, "-m", "chaos.table_stream", url, str(checkpoint)]
    for _ in range(STARTS):
        process = subprocess.run(
            command,
            env=environment,
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
        )
        # Spark waits ten seconds for a worker of its own, which is too short on a busy machine.
        if process.returncode in (0, -signal.SIGKILL) or NOT_STARTED not in process.stderr:
            break
    assert process.returncode in (0, -signal.SIGKILL), process.stderr[-3_000:]
    return process.returncode


def rows_in(url: str, name: str) -> Counter[tuple[int, str]]:
    with tidelog.connect(url) as lake:
        found = lake.table(name).snapshot().to_arrow().to_pylist()
    return Counter((row["a"], row["b"]) for row in found)


def rows_of(number: int) -> list[tuple[int, str]]:
    return [(key, f"{number}.{key}") for key in range(ROWS)]


def insert(url: str, number: int) -> None:
    with tidelog.connect(url) as lake:
        lake.table("given").insert([{"a": key, "b": text} for key, text in rows_of(number)])


def compact(url: str) -> None:
    command = [sys.executable, "-m", "tidelog.cli.main", "--location", url, "compact", "given"]
    subprocess.run(command, check=True, capture_output=True)


def check_killed(folder: Path, *, kills: int) -> int:
    """Kill the query at its puts, one run after the other; compare the target with all inserts.

    Returns the number of runs that were killed.
    """
    url, count = str(folder / "lake"), folder / "puts"
    with tidelog.connect(url, create=True) as lake:
        lake.tables.create("given", COLUMNS, shards=2)
        lake.tables.create("copied", COLUMNS, shards=2)
    killed = 0
    for number in range(kills):
        for time in range(TIMES):
            insert(url, TIMES * number + time)
        if number % 3 == 2:
            compact(url)
        count.write_bytes(b"")
        die_at, lands = 1 + number // 2 % PUTS, number % 2 == 1
        killed += run(url, folder / "check", count, die_at=die_at, lands=lands) != 0
    assert run(url, folder / "check", count, die_at=0, lands=False) == 0

    given = Counter(row for number in range(TIMES * kills) for row in rows_of(number))
    assert rows_in(url, "given") == given
    assert rows_in(url, "copied") == given
    return killed


if __name__ == "__main__":
    copy(*sys.argv[1:])
