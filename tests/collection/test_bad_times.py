"""Rows whose time is out of range or too far ahead: bad rows, reported with their text."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.sources import contents, lake_of, run_once

MAD = 2**62  # Microseconds: a year beyond Python's range.


@pytest.mark.parametrize("format", ["json", "json-array", "csv", "parquet"])
@pytest.mark.parametrize("kind", ["bigint", "timestamp"])
async def test_errors_show_the_text_of_a_row_with_an_impossible_time(
    tmp_path: Path, format: str, kind: str
) -> None:
    """The errors collection shows the text of a row with an impossible time, for the user."""
    mad = MAD if kind == "bigint" else ("2999-01-01 00:00:00" if format != "parquet" else MAD)
    fine = 5 if kind == "bigint" or format == "parquet" else "1970-01-02 00:00:00"
    rows: list[dict[str, object]] = [
        {"n": 90017, "at": fine},
        {"n": 4711, "at": mad},
        {"n": 18, "at": fine},
    ]
    _write(tmp_path / f"a.{format}", rows, kind)
    schema = f"n bigint, at {kind}"
    location = await lake_of(tmp_path, "a.*", format=format, schema=schema, time_column="at")

    await run_once(await location.sources.ingester("c", final=True))

    bad = await contents(location, "c_errors")
    assert len(bad) == 1
    assert "4711" in bad[0]
    assert "90017" not in bad[0]
    assert len(await contents(location)) == 2


def _write(path: Path, rows: list[dict[str, object]], kind: str) -> None:
    lines = [json.dumps(row) for row in rows]
    if path.suffix == ".json":
        path.write_text("".join(f"{line}\n" for line in lines))
    elif path.suffix == ".json-array":
        path.write_text(f"[{','.join(lines)}]")
    elif path.suffix == ".csv":
        path.write_text("".join(f"{n},{at}\n" for n, at in [("n", "at"), *map(dict.values, rows)]))
    else:
        dtype = pa.timestamp("us") if kind == "timestamp" else pa.int64()
        at = pa.array([row["at"] for row in rows], pa.int64()).cast(dtype)
        pq.write_table(pa.table({"n": [row["n"] for row in rows], "at": at}), path)


@pytest.mark.parametrize("format", ["json", "json-array", "csv", "parquet"])
async def test_a_bad_row_with_an_old_time_is_bad_and_not_late(tmp_path: Path, format: str) -> None:
    """A bad row does not also count as late, because late rows are a part of the accepted rows."""
    _write(tmp_path / f"a.{format}", [{"n": 1, "at": 1_000}], "bigint")
    schema = "n tinyint, at bigint"
    location = await lake_of(tmp_path, "?.*", format=format, schema=schema, time_column="at")
    await run_once(await location.sources.ingester("c", final=True))
    rows: list[dict[str, object]] = [
        {"n": 2, "at": 5},
        {"n": 999, "at": 6},
        {"n": 998, "at": 3_000},
        {"n": 3, "at": 2_000},
    ]
    _write(tmp_path / f"b.{format}", rows, "bigint")

    done = await run_once(await location.sources.ingester("c", final=True))

    assert (done.rows, done.bad, done.late) == (2, 2, 1)
