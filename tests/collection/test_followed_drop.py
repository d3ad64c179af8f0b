"""A drop of a raw collection while an ingester of a source that reads it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from collection.test_followed import followed, raw_lake
from kit.sources import run_once
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import GoneError


@pytest.mark.parametrize("is_table", [False, True])
async def test_a_drop_of_the_raw_collection_stops_a_running_ingester(
    tmp_path: Path, *, is_table: bool
) -> None:
    """The states of a dropped collection stay until they are collected, so the catalog decides."""
    location, _ = await raw_lake("a")
    (tmp_path / "1.log").write_text("x\n")
    files = str(tmp_path / "*.log")
    await location.sources.create(SourceSpec(name="lines", files=files, format="text"))
    await run_once(await location.sources.ingester("lines"))
    of = "raw" if is_table else "lines"
    await followed(location, of=of)
    ingester = await location.sources.ingester("d")
    await run_once(ingester)
    await (location.tables if is_table else location.sources).drop(of)
    await location.clock.sleep(61_000_000)

    with pytest.raises(GoneError, match=f"'{of}', which the source 'd' reads, was dropped"):
        await run_once(ingester)
