"""The model of keyed logs follows the port. Other tests compare engines with this model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from kit.clocks import StuckClock
from kit.keyed_model import MemoryKeyed, MemoryLake
from tidelog.errors import (
    Fenced,
    NameTaken,
    NoSuchCheckpoint,
    NoSuchLog,
    NoSuchSegment,
    SequenceRetired,
    UsageError,
)
from tidelog.keyed.port import KeyedReads
from tidelog.keyed.values import Keys, Retention, Sealing


async def values(log: KeyedReads, key: bytes, **options: object) -> list[bytes]:
    table = await log.scan(key, **options).to_arrow()  # type: ignore[arg-type]
    return [value for value in table["value"].to_pylist() if value is not None]


async def listed(pages: AsyncIterator[pa.Table]) -> list[dict[str, object]]:
    return [row async for page in pages for row in page.to_pylist()]


async def test_what_was_not_durable_may_be_given_again() -> None:
    """A sequence that no reader saw is assigned again after a crash."""
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
    """Segments are retired whole, never the active one; no scan starts in a retired one."""
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


async def test_bad_input_is_refused_before_anything_is_done() -> None:
    """The model refuses the same arguments as the engine."""
    log = MemoryKeyed()
    await log.append([(b"a", b"1"), (b"b", b"2")])
    await log.append([(b"a", b"3"), (b"", b"4")])
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
