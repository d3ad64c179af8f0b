"""Reading shards: snapshots, listeners, and the holds that keep times readable.

The numbers T7 to T32 are those of the anchor notes' conformance scenarios.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from unittest.mock import patch

import pyarrow as pa
import pytest

from kit.shard_tables import schema_of
from kit.shards import Place, contents, in_memory, rows
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    UsageError,
)
from tidelog.persist.handle import listening


async def test_a_listener_follows_until_the_end(place: Place) -> None:
    """A listener returns each interval once and in order, with or without updates."""
    shard, listener = place.shard(), place.shard().listen(0, wait=True)
    told = []
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    for number in range(1, 6):
        waiting = asyncio.ensure_future(anext(listener))
        table = rows(("a", 1, number, 1)) if number % 2 else None
        await shard.compare_and_append(table, number, number + 1)
        told.append(await asyncio.wait_for(waiting, 60))
    await shard.compare_and_append(None, 6, None)
    told += [progress async for progress in listener]

    uppers = [Frontier.of(upper) for upper in (2, 3, 4, 5, 6, None)]
    assert [progress.lower for progress in told] == [Frontier.at(1), *uppers[:-1]]
    assert [progress.upper for progress in told] == uppers
    assert [progress.updates.num_rows for progress in told] == [1, 0, 1, 0, 1, 0]


async def test_the_first_write_places_the_first_holds() -> None:
    """Another holder cannot advance `since` before the holds of the shard's history."""
    place = in_memory()
    shard = place.shard()
    shard.first_holds = {"history": Frontier.at(0)}
    await shard.compare_and_append(None, 0, 5)
    other = place.shard()
    await other.hold("mine", 0)
    await other.move_hold("mine", 4)
    assert await place.shard().since() == Frontier.at(0)


async def test_another_schema_is_refused(place: Place) -> None:
    """A writer with another schema gets UsageError. It probably means another shard."""
    other = schema_of(["string", "string"], keys=1)

    await place.shard().compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    with pytest.raises(UsageError, match="it was opened with"):
        await place.shard(schema=other).compare_and_append(None, 1, 2)


async def test_a_listener_far_behind_returns_one_batch_at_a_time() -> None:
    """A listener that is far behind returns one batch at a time, in consecutive intervals."""
    shard = in_memory().shard()
    for n in range(6):
        await shard.compare_and_append(
            rows(("a", n, 3 * n, 1), ("b", n, 3 * n + 1, 1)), 3 * n, 3 * n + 3
        )
    listener = shard.listen(1)
    with patch.object(listening, "INTERVAL_BYTES", 0):
        told = [await anext(listener) for _ in range(5)]
    at_once = await anext(shard.listen(1))

    assert [progress.updates.num_rows for progress in told] == [2] * 5
    assert at_once.updates == pa.concat_tables(progress.updates for progress in told)
    assert told[0].lower == Frontier.at(2)
    assert told[-1].upper == Frontier.at(18)
    assert all(before.upper == after.lower for before, after in pairwise(told))
    for progress in told:
        times = progress.updates.column("_time").to_numpy().tolist()
        assert all(progress.lower <= Frontier.at(time) < progress.upper for time in times)


async def test_a_listener_hears_of_some_columns_and_rows(place: Place) -> None:
    """Updates that cancel without the other columns are left out."""
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 1, 1), ("b", 1, 1, 1)), 0, 2)
    keys = shard.listen(0, columns=["c0"])
    large = shard.listen(0, columns=["c0"], where="c1 >= 2")
    first, none = await anext(keys), await anext(large)
    await shard.compare_and_append(rows(("a", 1, 2, -1), ("a", 2, 2, 1), ("b", 7, 2, 1)), 2, 3)
    second, some = await anext(keys), await anext(large)

    assert first.updates.column_names == ["c0", "_time", "_diff"]
    assert first.updates.column("c0").to_pylist() == ["a", "b"]
    assert second.updates.to_pylist() == [{"c0": "b", "_time": 2, "_diff": 1}]
    assert none.updates.num_rows == 0
    assert some.updates.column("c0").to_pylist() == ["a", "b"]


async def test_a_listener_is_told_at_once_of_a_column_that_is_none() -> None:
    """A listener of a wrong column raises at once, instead of waiting forever."""
    with pytest.raises(UsageError, match="no column named 'nix'"):
        await anext(in_memory().shard().listen(0, columns=["nix"]))


async def test_a_hold_needs_no_schema(place: Place) -> None:
    """A reader without a schema can place a hold, also before the first write."""
    await place.shard(schema=None).hold("early", 0)
    writer = place.shard()
    writer.first_holds = {"history": Frontier.at(0)}
    await writer.compare_and_append(rows(("a", 1, 0, 1)), 0, 3)
    assert {*writer.state.holds} == {"early", "history"}
    assert await place.shard(schema=None).hold("late", 2) == Frontier.at(2)


async def test_arguments_of_another_kind_are_told_in_a_sentence() -> None:
    """Arguments from notebooks are often text, floats or None. Each raises UsageError."""
    shard = in_memory().shard()
    await shard.compare_and_append(rows(("x", 1, 0, 1)), 0, 1)
    snapshot = await shard.snapshot(0)

    for count in (1.5, "2", None, True, 0, -1):
        with pytest.raises(UsageError, match="split"):
            snapshot.splits(count)  # type: ignore[arg-type]
    for memory_bytes in (1.5, "2", None, -1):
        with pytest.raises(UsageError, match="memory_bytes must be a whole number"):
            async for _ in snapshot.to_batches(memory_bytes=memory_bytes):  # type: ignore[arg-type]
                pass
    others: list[object] = [None, "x", {"k": ["x"]}]
    for updates in others:
        with pytest.raises(UsageError, match="rows must be an Arrow table"):
            await shard.append(updates, 1, 2)


async def test_a_time_before_all_data_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A read before all data logs a warning: a time in the wrong unit looks like lost data."""
    place = in_memory()
    shard = place.shard(name="user.prices")
    await shard.compare_and_append(None, 0, 5)
    assert await contents(shard, 2) == {}
    await shard.compare_and_append(rows(("a", 1, 1_709_290_800_000, 1)), 5, 1_709_290_800_001)
    assert await contents(shard, 1_709_290_800_000) == {("a", 1): 1}
    assert not caplog.messages

    async with await place.shard(name="user.prices").lease() as reader:
        await reader.snapshot(1_709_290_800)
    expected = "before all data of the shard 'prices', which begins at 1709290800000"
    assert expected in caplog.text
    caplog.clear()
    assert await contents(shard, 1_709_290_800) == {}
    assert expected in caplog.text
