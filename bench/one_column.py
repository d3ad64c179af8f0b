"""The time that a read of one column of a shard takes, next to delta-rs and to Parquet itself.

A shard and a Delta table of the same rows are on this machine's disk. Each round reads a column by
each of them, in turn. A ratio is the median over the rounds of our time to the time of delta-rs, or
of Parquet if the package deltalake is not installed.

    python bench/one_column.py [--rows N] [--rounds N] [--column NAME] [--appends N]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

import tidelog
from figures import print_table, ratio, seconds_of, side_by_side

COLUMNS = ("k", "n", "text")


def made(start: int, rows: int) -> pa.Table:
    """Return rows with a rising key, a number and text."""
    rng = np.random.default_rng(start)
    words = pa.array([f"note {n} of many" for n in range(1_000)])
    numbers = np.arange(start, start + rows)
    columns = [pa.array(numbers), pa.array(rng.integers(0, 2**40, rows))]
    return pa.table([*columns, words.take(numbers % 1_000)], list(COLUMNS))


def write(folder: Path, rows: int, appends: int) -> None:
    each = rows // appends
    with tidelog.connect(str(folder / "lake"), create=True) as lake:
        shard = lake.shard("rows", schema=made(0, 1).schema, key=["k"])
        for time in range(appends):
            table = made(time * each, each)
            times, ones = np.full(each, time), np.ones(each, np.int64)
            table = table.append_column("_time", pa.array(times))
            shard.compare_and_append(table.append_column("_diff", pa.array(ones)), time, time + 1)
    if has_delta():
        from deltalake import write_deltalake

        for time in range(appends):
            write_deltalake(str(folder / "delta"), made(time * each, each), mode="append")


def has_delta() -> bool:
    return importlib.util.find_spec("deltalake") is not None


def ours(folder: Path, columns: list[str], rows: int, *, is_open: bool) -> float:
    """Return the seconds of a read; unless ``is_open``, they include the open of the location."""
    found: list[int] = []

    def read(lake: tidelog.Location) -> None:
        shard = lake.shard("rows")
        upper = shard.upper().time
        found.append(shard.snapshot(upper - 1, columns=columns).to_arrow().num_rows)

    def opened() -> None:
        with tidelog.connect(str(folder / "lake")) as lake:
            read(lake)

    if is_open:
        with tidelog.connect(str(folder / "lake")) as lake:
            taken = seconds_of(lambda: read(lake))
    else:
        taken = seconds_of(opened)
    check(found[0], rows)
    return taken


def delta(folder: Path, columns: list[str], rows: int) -> float:
    from deltalake import DeltaTable

    found: list[int] = []
    taken = seconds_of(
        lambda: found.append(
            DeltaTable(str(folder / "delta")).to_pyarrow_table(columns=columns).num_rows
        )
    )
    check(found[0], rows)
    return taken


def parquet(folder: Path, columns: list[str], rows: int) -> float:
    """Read the shard's own parts with Arrow, unchecked."""
    paths = [str(p) for p in (folder / "lake").rglob("*.parquet")]
    found: list[int] = []
    taken = seconds_of(
        lambda: found.append(pads.dataset(paths).to_table(columns=[*columns, "_diff"]).num_rows)
    )
    check(found[0], rows)
    return taken


def check(found: int, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"{found} rows were read of {wanted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--appends", type=int, default=1)
    parser.add_argument("--column", action="append", choices=COLUMNS)
    given = parser.parse_args()
    rows = given.rows // given.appends * given.appends
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name:
        folder = Path(name)
        write(folder, rows, given.appends)
        lines = []
        for columns in [[one] for one in given.column or COLUMNS] + [list(COLUMNS)]:
            works: dict[str, Callable[[], float]] = {
                "opened": partial(ours, folder, columns, rows, is_open=True),
                "closed": partial(ours, folder, columns, rows, is_open=False),
                "Parquet": partial(parquet, folder, columns, rows),
            }
            if has_delta():
                works["delta-rs"] = partial(delta, folder, columns, rows)
            side_by_side(works, 1)
            found = side_by_side(works, given.rounds)
            times = [f"{1_000 * statistics.median(found[one]):.0f}" for one in works]
            best = [f"{1_000 * min(found[one]):.0f}" for one in works]
            shown = [f"{t} ({b})" for t, b in zip(times, best, strict=True)]
            if not has_delta():
                shown.append("")
            other = "delta-rs" if has_delta() else "Parquet"
            lines.append(
                [", ".join(columns), *shown, f"{ratio(found[other], found['opened']):.1f}"]
            )
        print(f"{rows} rows in {given.appends} appends: median (least) of {given.rounds}, in ms")
        head = ["columns", "ours", "and opened", "our parts by Arrow", "delta-rs", "ratio"]
        print_table(head, lines)


if __name__ == "__main__":
    main()
