"""Holds of DataFrames: planned parts stay for the requested time, in spite of merges."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from kit.sources import changes, changes_spec, ingest, write_files
from tidelog.core.clock import SystemClock
from tidelog.errors import HoldExpired, PartMissing, ReadOvertaken, UsageError
from tidelog.location import Location, open_location
from tidelog.persist.format import part
from tidelog.spark.options import ReadSettings, read_settings
from tidelog.spark.scan import Scan
from tidelog.spark.scan_plan import choose_pin, load_tables, plan_scans, why_missing


@pytest.fixture
async def lake(tmp_path: Path) -> Location:
    """A location with a collection ``c`` of several batches, each an object of its own."""
    location = await open_location(str(tmp_path / "lake"), create=True)
    files = write_files(tmp_path / "in", "json", changes(240))
    await location.sources.create(changes_spec(files))
    with patch.object(part, "INLINE_BYTES", 0):
        await ingest(location, "c", bytes_max=4_000)
    return location


async def merge_all(lake: Location) -> None:
    """Merge everything, and delete the replaced parts at once."""
    for shard in (await lake.collection("c")).all_shards:
        await shard.compact(full=True)
        await shard.collect(after_us=0)


async def read(lake: Location, scans: list[Scan]) -> int:
    tables = [table for scan in scans for table in await load_tables(scan, lake.store)]
    return sum(table.num_rows for table in tables)


async def test_what_is_held_is_read_after_it_was_merged_and_deleted(lake: Location) -> None:
    """A held plan stays readable after its parts were merged and collected."""
    pin = await choose_pin(ReadSettings(location_url=lake.url, name="c", hold_ms=3_600_000))
    scans = await plan_scans(pin)
    before = await read(lake, scans)
    await merge_all(lake)
    assert before == await read(lake, scans) > 0


async def test_what_is_not_held_is_told_to_be_overtaken_and_what_is_lost_to_be_lost(
    lake: Location,
) -> None:
    """Without a hold, a merged part is reported as overtaken, and a lost one as missing."""
    pin = await choose_pin(ReadSettings(location_url=lake.url, name="c"))
    scans = await plan_scans(pin)
    await merge_all(lake)
    with pytest.raises(PartMissing) as missing:
        await read(lake, scans)
    told = await why_missing(pin, missing.value)
    assert isinstance(told, ReadOvertaken)
    assert "option('hold', '6h')" in str(told)
    again = await plan_scans(pin)
    await lake.store.delete([p.path for scan in again for p in scan.parts if p.path is not None])
    with pytest.raises(PartMissing) as lost:
        await read(lake, again)
    assert await why_missing(pin, lost.value) is lost.value


async def test_a_term_that_is_over_is_refused(lake: Location) -> None:
    """A DataFrame whose hold has expired plans nothing."""
    pin = await choose_pin(ReadSettings(location_url=lake.url, name="c", hold_ms=60_000))
    assert pin.until_us is not None
    late = pin.until_us + 1
    with (
        patch.object(SystemClock, "now_us", lambda _: late),
        pytest.raises(HoldExpired, match="longer option 'hold'"),
    ):
        await plan_scans(pin)


def test_the_option_is_a_duration() -> None:
    """The option ``hold`` is a duration, like retention."""
    told = {"location": "memory://", "path": "c", "hold": "6h"}
    assert read_settings(told, {}).hold_ms == 6 * 3_600_000
    with pytest.raises(UsageError, match="not a duration"):
        read_settings({**told, "hold": "long"}, {})
