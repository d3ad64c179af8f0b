"""Memory of compaction: bounded by the size of records in memory, not in the store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kit.keyed_engine import FAST, keyed_logs, opened_log, rows_of
from tidelog.keyed.format import part_file
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.maintenance import compactor, merge, plan
from tidelog.keyed.read import sources
from tidelog.keyed.values import Keys

AT_ONCE = 64 * 1024
VALUE = bytes(16 * 1024)  # These bytes compress to almost nothing.
KEYS = 7


async def _filled(appends: int, *, compact_each: int | None = None) -> KeyedLog:
    """Return a new handle of a log with large records that compress to few bytes."""
    logs = keyed_logs()
    log = await opened_log(logs)
    for number in range(appends):
        await log.append([(b"k%d" % (number % KEYS), VALUE), (b"m%03d" % number, VALUE)])
        if compact_each is not None and number % compact_each == compact_each - 1:
            await log.compact(full=True)
    await log.close()
    return await logs.open("log", batching=FAST, maintenance=False)


async def test_a_run_of_records_that_compress_well_is_no_larger_than_is_sorted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run is limited by the size of its records in memory: Arrow sorts at most 2 GiB."""
    for module in (plan, compactor):
        monkeypatch.setattr(module, "RUN_BYTES_MAX", AT_ONCE, raising=False)
    log = await _filled(40)
    held: list[int] = []

    def sort_records(records: pa.Table) -> pa.Table:
        held.append(records.nbytes)
        found: pa.Table = real(records)
        return found

    real: Any = compactor.__dict__["sort_records"]
    monkeypatch.setattr(compactor, "sort_records", sort_records)
    assert await log.compact(full=True) > 1
    assert len(held) > 1
    assert max(held) < AT_ONCE + 3 * len(VALUE)
    assert (await log.describe()).compacted == 81
    for number in range(KEYS):
        found = await rows_of(log.scan(b"k%d" % number))
        assert len(found) == len(range(number, 40, KEYS))
        assert all(row[-1] == VALUE for row in found)
    await log.close()


async def test_a_merge_of_records_that_compress_well_holds_no_more_than_is_sorted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The merge reads a range of keys in several tables if it is larger than estimated."""
    monkeypatch.setattr(merge, "RANGE_BYTES", AT_ONCE)
    log = await _filled(40)
    state: Any = log.state_handle.state
    with monkeypatch.context() as patched:
        patched.setattr(plan, "FAN_IN", 1_000)
        patched.setattr(plan, "LOOSE_MAX", 1)
        for number in range(5):
            await log.append(
                [(b"k%d" % at, VALUE) for at in range(KEYS)] + [(b"n%d" % number, b"")]
            )
            await log.compact()
    state = log.state_handle.state
    assert len(state.runs) >= 5
    found = merge.merged_records(log.state_handle.parts, log.state_handle.clock, state.runs)
    tables = [table async for table in found]
    assert max(table.nbytes for table in tables) <= 5 * AT_ONCE
    together = pa.concat_tables(tables).select(["key", "sequence"]).to_pylist()
    told = [(row["key"], row["sequence"]) for row in together]
    assert told == sorted(told)
    assert len(told) == 80 + 5 * (KEYS + 1)
    await log.close()


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_scan_of_large_values_gives_no_more_at_once_than_some_row_groups(
    monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    """Tables are limited to some row groups: 65,536 values of a mebibyte would be 64 GiB."""
    monkeypatch.setattr(part_file, "GROUP_BYTES", 4 * len(VALUE))
    log = await _filled(140)
    await log.compact(full=True)
    (run,) = log.state_handle.state.runs
    assert len(run.parts) == 1
    scans = (
        log.scan(b"k1", newest_first=newest_first),
        log.scan(Keys.prefix(b"k"), newest_first=newest_first),
        log.scan(b"k1", 5, rows=18, newest_first=newest_first),
    )
    for scan, count in zip(scans, (20, 140, 18), strict=True):
        tables = [table async for table in scan]
        found = pa.concat_tables(tables)
        rows: list[dict[str, Any]] = found.select(["key", "sequence"]).to_pylist()
        sequences = [row["sequence"] for row in rows if row["key"] == b"k1"]
        assert found.num_rows == count
        assert sequences == sorted(sequences, reverse=newest_first)
        # With many keys and oldest first, a table has up to about 8 MiB.
        most = 8 * 4 if newest_first or scan is not scans[1] else 140
        assert max(table.num_rows for table in tables) <= most
    limited = [table async for table in log.scan(b"k1", newest_first=newest_first)]
    monkeypatch.setattr(sources, "GROUPS_AT_ONCE", 2)
    fewer = [table async for table in log.scan(b"k1", newest_first=newest_first)]
    assert len(fewer) > len(limited)
    assert max(table.num_rows for table in fewer) <= 2 * 4
    assert pa.concat_tables(fewer).equals(pa.concat_tables(limited))
    await log.close()
