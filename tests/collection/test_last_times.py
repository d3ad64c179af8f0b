"""The last times of an int64: they must not block the ingestion of other rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.sources import contents, lake_of, run_once


@pytest.mark.parametrize("lateness", ["0s", "10s"])
@pytest.mark.parametrize("before_last", [0, 1, 2])
async def test_a_row_of_the_last_time_stops_no_source(
    tmp_path: Path, lateness: str, before_last: int
) -> None:
    """The last time is a bad row even with `max_ahead="any"`: a binding needs a later time."""
    asked = {"time_column": "at", "max_ahead": "any", "lateness": lateness}
    location = await lake_of(tmp_path, "*.jsonl", **asked)
    for n, at in enumerate((5, 2**63 - 2 - before_last, 7, 8, 9)):
        (tmp_path / f"{n}.jsonl").write_text(json.dumps({"n": n, "at": at}) + "\n")
        await run_once(await location.sources.ingester("c", final=True))

    found = [json.loads(row.replace("'", '"'))["n"] for row in await contents(location)]
    bad = await contents(location, "c_errors")
    assert found == [0, 2, 3, 4]
    assert len(bad) == 1
