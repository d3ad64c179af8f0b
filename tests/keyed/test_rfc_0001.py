"""RFC 0001 of keyed logs, sentence by sentence, as in docs/internals/keyed-claims.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from kit.keyed_engine import FAST, keyed_logs, opened_log, rows_of, until, waiters_of
from kit.stores import Hold, InterposedStore
from tidelog.errors import (
    Fenced,
    LogFull,
    NameTaken,
    NoSuchLog,
    NoSuchSegment,
    SequenceRetired,
    UsageError,
)
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.port import KeyedScan
from tidelog.keyed.read import sources
from tidelog.keyed.values import Keys, Retention, Sealing
from tidelog.store.memory import MemoryStore
from tidelog.testing.recorded import RecordedStore
from tidelog.wal.append.batching import Batching


@pytest.fixture
def store() -> RecordedStore:
    return RecordedStore(MemoryStore())


@pytest.fixture
def logs(store: RecordedStore) -> KeyedLogs:
    return keyed_logs(store)


@pytest.fixture
async def log(logs: KeyedLogs) -> AsyncIterator[KeyedLog]:
    opened = await opened_log(logs)
    yield opened
    await opened.close()


async def values_of(scan: KeyedScan) -> list[bytes]:
    return [row[3] for row in await rows_of(scan)]


def data_gets(store: RecordedStore, since: int) -> list[str]:
    """Return the data objects that the reader fetched since then."""
    keys = [one.key for one in store.records[since:] if one.op == "get"]
    return [key for key in keys if key.endswith(".parquet") and not key.endswith(".keys.parquet")]


async def test_a_write_to_a_new_key_is_a_new_log(log: KeyedLog) -> None:
    """A key exists once a record has it, and a scan of a key returns only its records."""
    await log.append([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])

    assert await values_of(log.scan(b"a")) == [b"1", b"3"]
    assert await values_of(log.scan(b"b")) == [b"2"]
    assert await values_of(log.scan(b"c")) == []


async def test_sequences_are_of_one_counter_that_rises_by_one(log: KeyedLog) -> None:
    """The sequences of a key rise and have gaps, because all keys share one counter."""
    first = await log.append([(b"a", b"1"), (b"b", b"2")])
    second = await log.append([(b"a", b"3")])

    assert (first, second) == (1, 3)
    assert [row[1] for row in await rows_of(log.scan(b"a"))] == [1, 3]


async def test_a_restart_neither_loses_nor_repeats_a_sequence(logs: KeyedLogs) -> None:
    """After a restart, the next sequence is the end of the wal. The log stores no counter."""
    await logs.create("log")
    for expected in (1, 2, 3):
        log = await logs.open("log", batching=FAST)
        assert await log.append([(b"k", b"v")]) == expected
        await log.close()


async def test_one_writes_at_a_time_and_the_newest_wins(logs: KeyedLogs) -> None:
    """A newer writer fences the older one, or their records would interleave."""
    await logs.create("log")
    old = await logs.open("log", batching=FAST)
    await old.append([(b"k", b"1")])
    new = await logs.open("log", batching=FAST)
    await new.append([(b"k", b"2")])

    with pytest.raises(Fenced):
        await old.append([(b"k", b"3")])
    assert await values_of(old.scan(b"k")) == [b"1", b"2"]
    await new.close()


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_range_of_keys_is_read_in_the_order_of_bytes(
    log: KeyedLog, compacted: bool
) -> None:
    """Scans of ranges and prefixes, and the list of keys, follow the order of bytes."""
    keys = [b"", b"\x00", b"a", b"a\x00", b"a\xff", b"b", b"\xff", b"\xff\xff"]
    await log.append([(key, b"of " + key) for key in reversed(keys)])
    if compacted:
        await log.compact(full=True)

    found = [row[0] for row in await rows_of(log.scan(Keys.between(b"a", b"b")))]
    assert sorted(found) == [b"a", b"a\x00", b"a\xff"]
    assert sorted(row[0] for row in await rows_of(log.scan(Keys.prefix(b"\xff")))) == keys[-2:]
    assert sorted(row[0] for row in await rows_of(log.scan(Keys.between(b"", None)))) == keys
    pages = log.keys()
    listed = [key async for page in pages for key in page.column("key").to_pylist()]
    assert listed == keys


async def test_no_key_is_taken_for_another_with_more_bytes(log: KeyedLog) -> None:
    """A scan of a key never returns records of a longer key."""
    keys = [b"k", b"k\x00", b"k" + bytes(8), b"k\x00\x00\x00\x00\x00\x00\x00\x01"]
    await log.append([(key, key) for key in keys])
    await log.compact(full=True)

    for key in keys:
        assert await values_of(log.scan(key)) == [key]


async def test_a_count_of_what_is_compacted_asks_for_no_records(
    store: RecordedStore, log: KeyedLog
) -> None:
    """A count of compacted records reads the directory and fetches none of them."""
    await log.append([(b"k%d" % (n % 7), b"v" * 50) for n in range(700)])
    await log.compact(full=True)
    since = len(store.records)

    assert await log.count(b"k3") == 100
    assert await log.count(b"nobody") == 0
    assert data_gets(store, since) == []


async def test_an_approximate_count_says_between_what_it_lies(
    store: RecordedStore, log: KeyedLog
) -> None:
    """The bounds contain the exact count, and the call fetches no records for any range."""
    await log.append([(b"k%d" % (n % 7), b"v" * 50) for n in range(700)])
    await log.compact(full=True)
    exact = await log.count(b"k3", 100, 400)
    since = len(store.records)

    about = await log.count_approximate(b"k3", 100, 400)
    assert about.least <= exact <= about.most
    assert about.least <= about.value <= about.most
    assert (await log.count_approximate(b"k3")).is_exact
    assert data_gets(store, since) == []


async def test_lag_is_the_number_of_records_after_a_position(log: KeyedLog) -> None:
    """The number of records after a reader's position is its lag, as in the RFC's example."""
    await log.append([(b"k", b"%d" % n) for n in range(10)])
    current_seq = 4

    assert await log.count(b"k", current_seq) == 7


async def test_what_does_not_hold_a_key_is_not_read(store: RecordedStore, logs: KeyedLogs) -> None:
    """A scan skips a run by its directory, and a fragment by the keys in its link."""
    log = await opened_log(logs)
    await log.append([(b"old", b"1"), (b"both", b"1")])
    await log.compact(full=True)
    for n in range(5):
        await log.append([(b"new%d" % n, b"2"), (b"both", b"2")])
    await log.close()
    reader = await logs.reader("log")
    await reader.refresh()

    since = len(store.records)
    assert await values_of(reader.scan(b"new3")) == [b"2"]
    assert len(data_gets(store, since)) == 1
    since = len(store.records)
    assert await values_of(reader.scan(b"old")) == [b"1"]
    assert {key.split("/")[0] for key in data_gets(store, since)} == {"keyed"}
    since = len(store.records)
    assert await values_of(reader.scan(b"nobody")) == []
    assert data_gets(store, since) == []


async def test_the_tip_of_a_log_is_read_without_what_is_older(
    store: RecordedStore, logs: KeyedLogs
) -> None:
    """A read of the newest records fetches one run. Runs do not overlap in sequence."""
    await logs.create("log", sealing=Sealing(bytes=None))
    log = await logs.open("log", batching=FAST, maintenance=False)
    for n in range(4):
        await log.append([(b"k", b"%d" % n)] * 3)
        await log.seal()
        await log.compact()
    await log.close()
    reader = await logs.reader("log")
    assert (await reader.describe()).runs == 4
    since = len(store.records)

    assert await values_of(reader.scan(b"k", newest_first=True, rows=2)) == [b"3", b"3"]
    assert len(set(data_gets(store, since))) == 1


async def test_an_append_that_does_not_wait_is_read_at_once_and_flushed_later(
    log: KeyedLog,
) -> None:
    """With ``durable=False``, an append returns at once. A later flush makes it durable."""
    told: list[int] = []
    log.on_durable(told.append)
    first = await log.append([(b"k", b"1")], durable=False)

    assert await values_of(log.scan(b"k")) == [b"1"]
    assert await log.flush() == first + 1
    await asyncio.sleep(0)
    assert told[-1] == first + 1
    assert await log.durable_sequence() == first + 1


async def test_visibility_durable_shows_what_is_sure_alone() -> None:
    """A scan hides records that a crash could lose."""
    gate = Hold("put", "", is_open=True)
    logs = keyed_logs(InterposedStore(MemoryStore(), before=gate))
    await logs.create("log")
    log = await logs.open("log", visibility="durable", batching=FAST, maintenance=False)
    await log.append([(b"k", b"0")])
    gate.go_on.clear()
    first = await log.append([(b"k", b"1")], durable=False)

    assert first == 2
    assert await values_of(log.scan(b"k")) == [b"0"]
    gate.go_on.set()
    await log.flush()
    assert await values_of(log.scan(b"k")) == [b"0", b"1"]
    await log.close()


async def test_a_scan_that_was_drained_says_how_far_it_is_complete(log: KeyedLog) -> None:
    """The cursor of an idle key advances past the records of other keys."""
    await log.append([(b"a", b"1"), (b"b", b"1"), (b"b", b"2")])
    scan = log.scan(b"a")
    await scan.to_arrow()
    page = log.scan(b"b", rows=1)
    await page.to_arrow()

    assert scan.next_sequence == 4
    assert page.next_sequence == 3


async def test_followers_get_what_comes_to_their_keys(log: KeyedLog) -> None:
    """Followers of a key and of a prefix receive the records of their keys."""
    await log.append([(b"a1", b"old")])
    one, some = log.follow(b"a1", start=0), log.follow(Keys.prefix(b"a"))
    got: dict[str, list[bytes]] = {"one": [], "some": []}

    async def keep(name: str, scan: KeyedScan, count: int) -> None:
        async for table in scan:
            values: list[Any] = table.column("value").to_pylist()
            got[name] += values
            if len(got[name]) >= count:
                return

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(keep("one", one, 2))
        group.create_task(keep("some", some, 2))
        await until(lambda: len(waiters_of(log)) == 2)
        await log.append([(b"b", b"other")])
        await log.append([(b"a1", b"new"), (b"a2", b"too")])
    assert got == {"one": [b"old", b"new"], "some": [b"new", b"too"]}


async def test_no_room_hands_the_records_back(logs: KeyedLogs) -> None:
    """LogFull carries the records, which the log did not accept, so the caller can retry."""
    await logs.create("log")
    small = Batching(interval_us=50_000, pending_bytes=100, batch_bytes=100)
    log = await logs.open("log", batching=small, maintenance=False)
    records = [(b"k", b"x" * 90)]

    async def fill(call: Callable[[], Awaitable[int]]) -> None:
        for _ in range(50):
            await call()

    with pytest.raises(LogFull) as full:
        await fill(lambda: log.try_append(records, durable=False))
    assert full.value.records is records
    with pytest.raises(LogFull):
        await fill(lambda: log.append(records, durable=False, timeout_us=0))
    await log.flush()
    await log.append(records, timeout_us=5_000_000)
    await log.close()


async def test_arrow_tables_are_appended_in_their_order(log: KeyedLog) -> None:
    """A large table is appended in several batches, and its records keep their order."""
    count = 60_000
    keys = pa.array([b"k%d" % (n % 3) for n in range(count)], pa.binary())
    values = pa.array([b"%07d" % n * 40 for n in range(count)], pa.binary())

    assert await log.append_arrow(pa.table([keys, values], ["key", "value"])) == 1
    found = await rows_of(log.scan(b"k1"))
    assert [row[1] for row in found] == list(range(2, count + 1, 3))
    assert [row[3][:7] for row in found] == [b"%07d" % n for n in range(1, count, 3)]


async def test_segments_are_windows_over_all_keys(log: KeyedLog) -> None:
    """The compactor merges a sealed segment into one run. Retention removes it as a whole."""
    await log.append([(b"a", b"1"), (b"b", b"1")])
    sealed = await log.seal()
    await log.append([(b"c", b"2")])
    await log.compact(full=True)

    assert sealed is not None
    assert (sealed.id, sealed.start, sealed.limit) == (0, 1, 3)
    assert await log.seal() is not None
    assert await log.seal() is None
    keys = [
        key async for page in log.keys(segments=(0, 1)) for key in page.column("key").to_pylist()
    ]
    assert keys == [b"a", b"b"]
    with pytest.raises(NoSuchSegment):
        _ = [page async for page in log.keys(segments=(7, 8))]
    assert await log.retire(Retention(segments=2)) == 1
    with pytest.raises(SequenceRetired):
        await log.scan(b"a", 1).to_arrow()
    assert await values_of(log.scan(b"a")) == []
    assert await values_of(log.scan(b"c", 3)) == [b"2"]


async def test_segments_are_sealed_by_size(logs: KeyedLogs) -> None:
    """Maintenance seals large segments, during `compact` or in the background of a writer."""
    await logs.create("log", sealing=Sealing(bytes=20_000))
    log = await logs.open("log", batching=FAST)
    for n in range(40):
        await log.append([(b"k%d" % n, bytes(range(256)) * 8)])
    await log.compact()

    segments = await log.segments()
    assert len(segments) > 1
    assert all(one.runs == 1 for one in segments if one.is_compacted)
    assert [one.start for one in segments[1:]] == [one.limit for one in segments[:-1]]
    await log.close()


async def test_a_checkpoint_keeps_what_was_readable(logs: KeyedLogs, log: KeyedLog) -> None:
    """A checkpoint stays readable after its records are retired and collected."""
    await log.append([(b"k", b"1")])
    made = await log.create_checkpoint("before")
    await log.append([(b"k", b"2")])
    await log.seal()
    await log.retire(Retention(segments=1))
    await log.collect(after_us=0)

    assert made.next_sequence == 2
    reader = await logs.reader("log", checkpoint="before")
    assert await values_of(reader.scan(b"k")) == [b"1"]
    with pytest.raises(NameTaken):
        await log.create_checkpoint("before")
    await log.drop_checkpoint("before")
    assert await log.checkpoints() == []


async def test_a_fork_shares_what_was_stored_and_goes_its_own_way(
    store: RecordedStore, logs: KeyedLogs, log: KeyedLog
) -> None:
    """A fork copies no records. Later changes of the source do not affect it."""
    await log.append([(b"k", b"1"), (b"k", b"2")])
    await log.compact(full=True)
    await log.append([(b"k", b"3")])
    since = len(store.records)
    fork = await logs.fork("log", "fork")
    put = [one.key for one in store.records[since:] if one.op == "put"]
    assert put
    assert not [key for key in put if "/run/" in key or "/epoch/" in key]
    await log.append([(b"k", b"of the source")])
    assert await fork.append([(b"k", b"of the fork")]) == 4
    await log.seal()
    await log.retire(Retention(segments=1))
    await log.collect(after_us=0)

    assert await values_of(fork.scan(b"k")) == [b"1", b"2", b"3", b"of the fork"]
    with pytest.raises(UsageError, match="forks"):
        await logs.drop("log")
    await fork.close()
    await logs.drop("fork")
    await logs.drop("log")
    assert await logs.list() == []
    with pytest.raises(NoSuchLog):
        await logs.open("log")
    with pytest.raises(NameTaken):
        await logs.create("log")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [(b"k",)],
        [("k", b"v")],
        [(b"k", "v")],
        [(b"k", None)],
        b"kv",
        [(b"k" * 16_385, b"v")],
        "no records",
    ],
)
async def test_what_is_no_record_is_refused_before_anything_is_asked(
    store: RecordedStore, log: KeyedLog, wrong: object
) -> None:
    """An append of wrong records raises UsageError without a request."""
    since = len(store.records)

    with pytest.raises(UsageError):
        await log.append(wrong)  # type: ignore[arg-type]
    assert store.records[since:] == []


@pytest.mark.parametrize(
    ("start", "limit"), [(5, 2), (-1, None), (0, -1), (0, 2**63), (True, None), (0.5, None)]
)
async def test_ranges_that_are_none_are_refused(
    log: KeyedLog, start: int, limit: int | None
) -> None:
    """A wrong range raises UsageError at the call itself, not at the later read."""
    with pytest.raises(UsageError):
        log.scan(b"k", start, limit)
    with pytest.raises(UsageError):
        log.scan(Keys.between(b"b", b"a"))
    with pytest.raises(UsageError):
        log.scan(b"k", rows=0)


async def test_newest_first_holds_no_key_as_a_whole(
    log: KeyedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan returns a large key in pieces, between keys of few records."""
    monkeypatch.setattr(sources, "ROWS_AT_ONCE", 100)
    few = [(b"a", b"1"), (b"b", b"1"), (b"z", b"1")]
    await log.append([*few, *[(b"many", b"%d" % n) for n in range(1_000)], *few])
    await log.compact(full=True)

    tables = [table async for table in log.scan(Keys.all(), newest_first=True)]
    assert max(table.num_rows for table in tables) <= 100
    found = [row for table in tables for row in table.to_pylist()]
    many = [row["sequence"] for row in found if row["key"] == b"many"]
    assert many == list(range(1_003, 3, -1))
    assert [row["key"] for row in found if row["key"] != b"many"] == [
        *[b"a"] * 2, *[b"b"] * 2, *[b"z"] * 2,
    ]  # fmt: skip
