"""Costs of reading a part: requests and bytes."""

from __future__ import annotations

import asyncio
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from kit.clocks import OneThread
from kit.keyed_parts import EVER, Parts, table_of
from tidelog.keyed.format.part import EncodedPart, RunPart
from tidelog.keyed.format.part_file import encode_part
from tidelog.keyed.format.records import KEYED_RECORDS, int64_array, sort_records
from tidelog.keyed.read import run_objects
from tidelog.keyed.read.part_reader import RunPartReader
from tidelog.keyed.read.run_objects import DirectoryCache
from tidelog.testing import DelayedStore, RecordedStore

KEYS, EACH = 2_000, 100
FIRST_US = 1_700_000_000_000_000


@cache
def shuffled(keys: int = KEYS, each: int = EACH) -> EncodedPart:
    """Return a part with shuffled keys and 200 bytes of text in each record."""
    rng = np.random.default_rng(1)
    rows = keys * each
    chosen = rng.permutation(np.repeat(np.arange(keys), each))
    names = pa.array([b"key-%08d" % number for number in range(keys)], pa.binary())
    marks = rng.bytes(20 * rows).hex()
    filler = " the quick brown fox jumps over the lazy dog, and a dog more, and so on" * 2
    values = [
        f'{{"id":{n},"mark":"{marks[40 * n : 40 * n + 40]}","text":"{filler}"}}'[:200].encode()
        for n in range(rows)
    ]
    times = FIRST_US + np.cumsum(rng.integers(0, 2_000, rows))
    columns = [
        names.take(pa.array(chosen)),
        int64_array(np.arange(1, rows + 1)),
        int64_array(times),
        pa.array(values, pa.binary()),
    ]
    table = sort_records(pa.Table.from_arrays(columns, schema=KEYED_RECORDS))
    return encode_part(table, path="run/a.parquet")


async def test_a_key_of_a_hundred_records_takes_two_requests_and_64_kilobytes() -> None:
    """A read of 100 records takes at most two requests and 64 KiB, wherever the key lies."""
    parts = Parts()
    part = await parts.put(shuffled())
    await parts.reader.find(part, b"key-00000000")
    parts.asked()
    for number in range(0, KEYS, 7):
        found = await parts.reader.read_key(part, b"key-%08d" % number, 0, EVER)
        asked = parts.asked()

        assert found.num_rows == EACH
        assert len(asked) <= 2, number
        assert sum(size for _, size in asked) <= 64 * 1024, number


async def test_a_key_costs_the_directory_besides_when_nothing_was_read() -> None:
    """A cold read of a key takes one more request for the directory. It skips the part's footer."""
    parts = Parts()
    part = await parts.put(shuffled())
    await parts.reader.read_key(part, b"key-00000777", 0, EVER)
    asked = parts.asked()

    assert asked[0] == (part.directory, part.directory_bytes)
    assert len(asked) <= 3
    assert part.directory_bytes < 20 * KEYS


async def test_an_absent_key_and_counts_of_whole_keys_cost_nothing() -> None:
    """The directory answers existence and counts; keys beyond the bounds need no request."""
    parts = Parts()
    part = await parts.put(shuffled())
    assert await parts.reader.find(part, b"zebra") is None
    assert not parts.asked()
    await parts.reader.find(part, b"key-00000000")
    parts.asked()

    assert await parts.reader.find(part, b"key-0000077") is None
    assert (await parts.reader.read_key(part, b"key-0000077", 0, EVER)).num_rows == 0
    assert await parts.reader.count_key(part, b"key-0000077", 5, 9) == 0
    assert await parts.reader.count_key(part, b"key-00000777", 0, EVER) == EACH
    assert await parts.reader.count_key(part, b"key-00000777", EVER - 1, EVER) == 0
    assert await parts.reader.bound_key(part, b"key-00000777", 0, 500) <= (0, EACH)
    assert sum([t.num_rows async for t in parts.reader.keys(part, b"", None)]) == KEYS
    assert not parts.asked()


async def test_a_count_of_some_costs_a_page_of_sequences_at_each_end() -> None:
    """A count in a range reads one page of sequences at each end."""
    parts = Parts()
    part = await parts.put(hot())
    await parts.reader.find(part, b"hot")
    parts.asked()

    counted = await parts.reader.count_key(part, b"hot", 4_001, 90_001)
    asked = parts.asked()
    assert counted == 43_000
    assert len(asked) == 2
    assert all(size < 9 * 1_024 for _, size in asked)
    least, most = await parts.reader.bound_key(part, b"hot", 4_001, 90_001)
    assert least <= counted <= most
    assert most - least <= 2 * 1_024
    assert not parts.asked()


async def test_the_newest_records_of_a_large_key_cost_no_more_than_those_of_a_small_one() -> None:
    """A read of the newest records of a large key does not read the others."""
    parts = Parts()
    part = await parts.put(hot())
    await parts.reader.find(part, b"hot")
    parts.asked()
    for start, limit in ((0, EVER), (0, 80_001), (70_001, EVER)):
        found = await parts.reader.read_key(
            part, b"hot", start, limit, rows_max=50, newest_first=True
        )
        asked = parts.asked()

        assert found.num_rows == 50
        assert len(asked) <= 3
        assert sum(size for _, size in asked) < 128 * 1024


@cache
def hot() -> EncodedPart:
    """Return a part with one key of 50,000 records, and two keys of one record."""
    records = [(b"hot", 2 * n + 1, FIRST_US + n, b"value %d" % n) for n in range(50_000)]
    records += [(key, 2 * n, FIRST_US + n, b"") for n, key in enumerate((b"a", b"z"), start=1)]
    return encode_part(sort_records(table_of(records)), path="run/hot.parquet")


async def test_concurrent_readers_of_a_directory_share_one_request() -> None:
    """A thousand followers that start together share one request for a directory."""
    parts = Parts()
    part = await parts.put(shuffled())
    # The store answers late, so that all callers ask before the first answer.
    slow = RecordedStore(
        DelayedStore(parts.inner, clock=OneThread(), delay_us=lambda op, key: 1_000)
    )
    reader = RunPartReader(slow, OneThread(), DirectoryCache())
    found = await asyncio.gather(*(reader.find(part, b"key-%08d" % n) for n in range(50)))

    assert None not in found
    assert len(slow.records) == 1


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read every directory in pieces, like one of more than a megabyte."""
    monkeypatch.setattr(run_objects, "WHOLE_BYTES_MAX", 0)


@pytest.mark.usefixtures("large")
async def test_a_large_directory_is_read_by_its_footer_and_a_piece() -> None:
    """A lookup in a large directory reads its footer and one piece."""
    parts = Parts()
    part = await parts.put(many_keys())
    await parts.reader.find(part, b"key-00012345")
    cold = parts.asked()
    await parts.reader.find(part, b"key-00012346")
    await parts.reader.find(part, b"key-00012346x")

    assert [path for path, _ in cold] == [part.directory] * 2
    assert sum(size for _, size in cold) < part.directory_bytes
    assert not parts.asked()


@pytest.mark.usefixtures("large")
async def test_what_is_kept_of_directories_is_bounded() -> None:
    """The cache evicts the least recently used piece, and reads it again on demand."""
    parts = Parts()
    part = await parts.put(many_keys())
    cache = DirectoryCache(700_000)
    reader = parts.cold(cache)
    for number in range(0, 30_000, 5_000):
        assert await reader.find(part, b"key-%08d" % number) is not None
        assert 0 < cache.used_bytes <= 700_000
    first = len(parts.asked())
    assert await reader.find(part, b"key-00000000") is not None

    assert first == 1 + 4
    assert [path for path, _ in parts.asked()] == [part.directory]


@cache
def many_keys() -> EncodedPart:
    keys = pa.array([b"key-%08d" % number for number in range(30_000)], pa.binary())
    numbers = int64_array(np.arange(1, 30_001))
    values = pa.array([b"v"] * 30_000, pa.binary())
    table = pa.Table.from_arrays([keys, numbers, numbers, values], schema=KEYED_RECORDS)
    return encode_part(table, path="run/many.parquet")


async def test_a_scan_of_all_reads_row_groups_together() -> None:
    """A scan reads row groups together. One request for each would take as long as the transfer."""
    parts = Parts()
    part = await parts.put(shuffled())
    tables = [t async for t in parts.reader.scan_keys(part, b"", None, 0, EVER)]
    asked = parts.asked()

    assert sum(table.num_rows for table in tables) == part.rows
    assert max(table.num_rows for table in tables) <= 65_536
    assert max(table.nbytes for table in tables) <= 10 * 1024 * 1024
    assert len(asked) <= 2 + len(tables)
    assert len(tables) <= 6


async def test_a_time_outside_of_a_part_costs_nothing() -> None:
    """A time outside a part's bounds needs no request, because the state stores these bounds."""
    parts = Parts()
    part: RunPart = await parts.put(shuffled())

    assert await parts.reader.first_at(part, 0) == 1
    assert await parts.reader.first_at(part, part.last_us + 1) is None
    assert not parts.asked()
