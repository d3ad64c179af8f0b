"""What compaction holds at once is bounded by what records take in memory, not in the store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kit.keyed_engine import FAST, keyed_logs, rows_of
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.upkeep import compactor, merge, plan

AT_ONCE = 64 * 1024
VALUE = bytes(16 * 1024)  # It compresses to almost nothing.
KEYS = 7


async def _filled(appends: int, *, compact_each: int | None = None) -> KeyedLog:
    """Return a fresh handle of a log that has large records, which are stored in few bytes."""
    logs = keyed_logs()
    await logs.create("log")
    log = await logs.open("log", batching=FAST, upkeep=False)
    for number in range(appends):
        await log.append([(b"k%d" % (number % KEYS), VALUE), (b"m%03d" % number, VALUE)])
        if compact_each is not None and number % compact_each == compact_each - 1:
            await log.compact(everything=True)
    await log.close()
    return await logs.open("log", batching=FAST, upkeep=False)


async def test_a_run_of_records_that_compress_well_is_no_larger_than_is_sorted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else records of some gigabytes are held, and Arrow cannot sort more than two of them."""
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
    assert await log.compact(everything=True) > 1
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
    """A range of keys that is larger than was thought is read in several."""
    monkeypatch.setattr(merge, "RANGE_BYTES", AT_ONCE)
    log = await _filled(40)
    state: Any = log.standing.state
    with monkeypatch.context() as patched:
        patched.setattr(plan, "FAN_IN", 1_000)
        patched.setattr(plan, "LOOSE_MAX", 1)
        for number in range(5):
            await log.append(
                [(b"k%d" % at, VALUE) for at in range(KEYS)] + [(b"n%d" % number, b"")]
            )
            await log.compact()
    state = log.standing.state
    assert len(state.runs) >= 5
    found = merge.merged_records(log.standing.parts, log.standing.clock, state.runs)
    tables = [table async for table in found]
    assert max(table.nbytes for table in tables) <= 5 * AT_ONCE
    together = pa.concat_tables(tables).select(["key", "sequence"]).to_pylist()
    told = [(row["key"], row["sequence"]) for row in together]
    assert told == sorted(told)
    assert len(told) == 80 + 5 * (KEYS + 1)
    await log.close()
