"""The model of keyed logs follows the port. Other tests compare engines with this model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from kit.clocks import StuckClock
from kit.keyed_model import MemoryKeyed, MemoryLake
from tidelog.errors import (
    Fenced,
    LogFull,
    NameTaken,
    NoSuchCheckpoint,
    NoSuchLog,
    NoSuchSegment,
    SequenceRetired,
    UsageError,
)
from tidelog.keyed.port import KeyedReads
from tidelog.keyed.query import Keys
from tidelog.keyed.values import Retention, Sealing


async def values(log: KeyedReads, key: bytes, **options: object) -> list[bytes]:
    table = await log.scan(key, **options).to_arrow()  # type: ignore[arg-type]
    return [value for value in table["value"].to_pylist() if value is not None]


async def listed(pages: AsyncIterator[pa.Table]) -> list[dict[str, object]]:
    return [row async for page in pages for row in page.to_pylist()]


@pytest.fixture
async def log() -> MemoryKeyed:
    """A log with sequences 1 to 4: the keys a, b, a, and the empty key."""
    log = MemoryKeyed()
    await log.append([(b"a", b"1"), (b"b", b"2")])
    await log.append([(b"a", b"3"), (b"", b"4")])
    return log


async def test_keys_are_logs_of_their_own(log: MemoryKeyed) -> None:
    """Scans follow the order of sequences. A drained scan states how far it is complete."""
    scan = log.scan(b"a")
    assert (await scan.to_arrow())["sequence"].to_pylist() == [1, 3]
    assert scan.next_sequence == 5
    assert await values(log, b"a", newest_first=True) == [b"3", b"1"]
    assert await values(log, b"a", start=2) == [b"3"]
    assert await values(log, b"") == [b"4"]
    assert await log.count(b"a", 0, 3) == 1
    some = log.scan(Keys.all(), rows=2)
    assert (await some.to_arrow()).num_rows == 2
    assert some.next_sequence == 3
    within = log.scan(Keys.between(b"a", b"b"), 0, 3)
    assert (await within.to_arrow())["key"].to_pylist() == [b"a"]
    assert within.next_sequence == 3
    assert [row["key"] for row in await listed(log.keys(after=b""))] == [b"a", b"b"]


async def test_what_was_not_durable_may_be_given_again() -> None:
    """After a crash, the log assigns an undurable sequence again.

    No reader saw the first record.
    """
    lake = MemoryLake()
    log = await lake.keyed.create("x")
    reader = await lake.keyed.reader("x")
    told: list[int] = []
    log.on_durable(told.append)
    assert await log.append([(b"a", b"kept")]) == 1
    assert await log.append([(b"a", b"lost")], durable=False) == 2

    assert await values(log, b"a") == [b"kept", b"lost"]
    assert await values(await lake.keyed.open("x", visibility="durable"), b"a") == [b"kept"]
    assert await values(reader, b"a") == []
    assert await reader.refresh() == 2
    assert lake.histories["x"].crash() == 1
    again = await lake.keyed.open("x")
    assert await again.append([(b"a", b"other")], durable=False) == 2
    assert await again.flush() == 3
    assert told == [2, 3]
    with pytest.raises(Fenced):
        await log.append([(b"a", b"late")])


async def test_segments_are_sealed_and_retired_whole() -> None:
    """Segments are sealed by size here.

    The active one is never retired, and a scan cannot start in a retired one.
    """
    clock = StuckClock()
    log = MemoryKeyed(clock=clock)
    await log.configure(Sealing(bytes=4))
    for _ in range(5):
        await log.append([(b"k", b"v")])
        clock.wall_us += 10

    assert [(one.id, one.start, one.limit) for one in await log.segments()] == [
        (0, 1, 3),
        (1, 3, 5),
        (2, 5, None),
    ]
    assert [row["records"] for row in await listed(log.keys(segments=(1, None)))] == [3]
    assert await log.retire(Retention(segments=2)) == 1
    assert await log.retire(Retention(age_us=10)) == 1
    assert await log.retire(Retention(bytes=1)) == 0
    assert [one.id for one in await log.segments()] == [2]
    assert await values(log, b"k") == [b"v"]
    assert await log.count(b"k", 5) == 1
    for start in (1, 4):
        with pytest.raises(SequenceRetired):
            await log.count(b"k", start)
    with pytest.raises(NoSuchSegment):
        log.keys(segments=(0, 2))
    assert await log.sequence_at(clock.wall_us - 10) == 5
    assert await log.sequence_at(clock.wall_us) == 6


async def test_followers_wait_without_looking_again(log: MemoryKeyed) -> None:
    """The cursor of a follower also advances past records of other keys."""
    following = log.follow(b"a", start=2)
    tables = aiter(following)
    assert (await anext(tables))["value"].to_pylist() == [b"3"]
    later = asyncio.ensure_future(anext(tables))
    await log.append([(b"b", b"other")])
    await asyncio.sleep(0)
    assert not later.done()
    assert following.next_sequence == 6
    await log.append([(b"a", b"new")])
    assert (await later)["value"].to_pylist() == [b"new"]
    await following.aclose()


async def test_a_full_log_hands_back_what_it_was_given(log: MemoryKeyed) -> None:
    """LogFull carries the refused records, so that the caller need not keep a copy."""
    log.weather.is_full = True
    with pytest.raises(LogFull) as found:
        await log.try_append([(b"a", b"5")])
    assert found.value.records == [(b"a", b"5")]
    with pytest.raises(LogFull):
        await log.append([(b"a", b"5")], timeout_us=2_000)
    waiting = asyncio.ensure_future(log.append([(b"a", b"5")]))
    await asyncio.sleep(0.002)
    assert not waiting.done()
    log.weather.is_full = False
    assert await waiting == 5


async def test_names_of_checkpoints_and_forks() -> None:
    """A fork diverges from its source, and a name in use raises NameTaken."""
    lake = MemoryLake()
    log = await lake.keyed.create("x")
    await log.append([(b"a", b"1")])
    fork = await lake.keyed.fork("x", "y")
    await fork.append([(b"a", b"2")])
    made = await log.create_checkpoint("c")

    assert (made.oldest, made.next_sequence) == (1, 2)
    assert await values(log, b"a") == [b"1"]
    assert await values(fork, b"a") == [b"1", b"2"]
    assert await lake.keyed.list() == ["x", "y"]
    with pytest.raises(NameTaken):
        await log.create_checkpoint("c")
    await log.drop_checkpoint("c")
    with pytest.raises(NoSuchCheckpoint):
        await log.drop_checkpoint("c")
    with pytest.raises(NameTaken):
        await lake.keyed.create("y")
    await lake.keyed.drop("y")
    with pytest.raises(NoSuchLog):
        await lake.keyed.open("y")


async def test_bad_input_is_refused_before_anything_is_done(log: MemoryKeyed) -> None:
    """The model refuses the same arguments as the engine."""
    for records in ([], b"ab", [("a", b"1")], [(b"a", "1")], [(b"x" * 16_385, b"1")], [(b"a",)]):
        with pytest.raises(UsageError):
            await log.append(records)  # type: ignore[arg-type]
    for start, limit in ((-1, None), (3, 2), (True, None)):
        with pytest.raises(UsageError):
            log.scan(b"a", start, limit)
    with pytest.raises(UsageError):
        log.scan(Keys.between(b"b", b"a"))
    with pytest.raises(UsageError):
        log.follow("a")  # type: ignore[arg-type]
    assert await log.next_sequence() == 5
