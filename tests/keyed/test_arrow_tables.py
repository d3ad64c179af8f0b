"""Appends of Arrow tables: any chunks, more data than one Arrow array, and bad records."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from kit.keyed_engine import keyed_logs
from tidelog.errors import UsageError
from tidelog.keyed.write.arrow import BATCH_BYTES, batches_of


def _chunked(large: bool) -> pa.Table:
    """Return a table with 2.3 GiB of values in 64 MiB of memory."""
    value = pa.array([bytes(64 * 1024 * 1024 - 1)], pa.large_binary() if large else pa.binary())
    chunks: Any = [value] * 37
    if large:
        chunks = [value.take(pa.array([0] * 37))]
    return pa.table(
        {"key": pa.array([b"%d" % n for n in range(37)]), "value": pa.chunked_array(chunks)}
    )


@pytest.mark.parametrize("large", [False, True])
def test_a_table_of_more_than_two_gibibytes_is_cut_into_batches(large: bool) -> None:
    """A table over 2 GiB is cut into batches, because an Arrow binary array holds no more."""
    found = batches_of(_chunked(large))
    assert [keys.to_pylist() for keys, _ in found] == [[b"%d" % n] for n in range(37)]
    assert {(str(v.type), len(v)) for _, v in found} == {("binary", 1)}


def test_batches_are_cut_by_the_bytes_that_records_have() -> None:
    """Batches have a bounded size for any mix of records and chunks."""
    values = [b"x"] * 500 + [bytes(BATCH_BYTES // 2)] * 5 + [b"y"] * 500
    table = pa.table({"value": values, "key": [b"%d" % n for n in range(len(values))]})
    for one in (table, pa.concat_tables([table.slice(n, 1) for n in range(table.num_rows)])):
        found = batches_of(one)
        assert [v for _, part in found for v in part.to_pylist()] == values
        sizes = [sum(len(v or b"") for v in part.to_pylist()) for _, part in found]
        assert max(sizes) <= BATCH_BYTES
        assert all(a + b > BATCH_BYTES // 2 for a, b in pairwise(sizes))
        assert len(found) <= 6


@pytest.mark.parametrize(("key", "value"), [(16_385, 1), (1, 64 * 1024 * 1024 + 1)])
async def test_one_bad_record_refuses_the_whole_table(key: int, value: int) -> None:
    """A bad record refuses the whole table, even if earlier records would fill a batch."""
    logs = keyed_logs()
    log = await logs.create("log")
    rows = [(b"k", bytes(BATCH_BYTES))] * 2 + [(bytes(key), bytes(value))]
    table = pa.table({"key": [row[0] for row in rows], "value": [row[1] for row in rows]})
    with pytest.raises(UsageError, match="must have at most"):
        await log.append_arrow(table)
    assert await log.next_sequence() == 1
    await log.close()
