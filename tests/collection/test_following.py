"""Followers of a collection: each change once, over several shards, merges and restarts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import tidelog
from kit.sources import run_once
from tidelog.collection import reading
from tidelog.collection.collection import Collection
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, AsOfNotComplete
from tidelog.location import Location, open_location
from tidelog.persist.handle.port import Progress
from tidelog.persist.maintenance.compactor import compact

TICKS = 24


async def made(folder: Path, *, shards: int = 3) -> Location:
    lake = await open_location(str(folder / "lake"), create=True)
    spec = SourceSpec(
        name="c",
        files=str(folder / "in/*.csv"),
        format="csv",
        schema="k bigint, v bigint",
        envelope="upsert",
        key=("k",),
        shards=shards,
    )
    (folder / "in").mkdir()
    (folder / "in/0.csv").write_text("k,v\n1,1\n")
    await lake.sources.create(spec)
    return lake


async def tick(folder: Path, number: int) -> None:
    """Ingest one more file in a new handle of the location, as a restarted ingester does."""
    drawn = random.Random(number)
    rows = "".join(f"{drawn.randrange(40)},{drawn.randrange(9)}\n" for _ in range(12))
    (folder / f"in/{number}.csv").write_text(f"k,v\n{rows}")
    lake = await open_location(str(folder / "lake"))
    await run_once(await lake.sources.ingester("c"))


async def reopened(folder: Path) -> Collection:
    collection = await (await open_location(str(folder / "lake"))).collection("c")
    await collection.refresh()
    return collection


async def maintain(folder: Path, stop: asyncio.Event) -> None:
    """Merge all batches of each shard and delete replaced objects at once, again and again."""
    while not stop.is_set():
        for shard in (await reopened(folder)).all_shards:
            await compact(shard, full=True)
            await shard.collect(after_us=0)
        await asyncio.sleep(0)


def counted(*tables: pa.Table, until: int | None = None) -> Counter[tuple[int, int]]:
    """Return the count of each row in contents or changes, up to a time."""
    found: Counter[tuple[int, int]] = Counter()
    for table in tables:
        for row in table.to_pylist():
            if until is None or row.get("_time", until) <= until:
                found[row["k"], row["v"]] += row["_diff"]
    return +found


async def steps_until(
    collection: Collection, since: int, last: int, **selection: Any
) -> list[Progress]:
    found: list[Progress] = []
    async for step in collection.listen(since, **selection):
        found.append(step)
        if step.upper.passed(last):
            return found
    return found


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_snapshot_and_the_steps_after_it_give_each_later_snapshot(
    tmp_path: Path, shards: int
) -> None:
    """Merges delete the parts that a slow follower has not read, and the ingester restarts."""
    lake = await made(tmp_path, shards=shards)
    await tick(tmp_path, 0)
    collection = await lake.collection("c")
    first = await collection.snapshot()
    base = await collection.consolidated(first.as_of)
    stop, steps = asyncio.Event(), list[Progress]()

    async def follow() -> None:
        async for step in collection.listen(first.as_of):
            steps.append(step)
            await asyncio.sleep(0)

    with patch("tidelog.persist.format.part.INLINE_BYTES", 0):
        follower = asyncio.create_task(follow())
        others = asyncio.create_task(maintain(tmp_path, stop))
        for number in range(1, TICKS):
            await tick(tmp_path, number)
        last = (await (await lake.collection("c")).snapshot()).as_of
        while not steps or not steps[-1].upper.passed(last):
            await asyncio.sleep(0.01)
            assert not follower.done()
        stop.set()
        await others
        follower.cancel()

    ends = [step.upper for step in steps]
    assert [step.lower for step in steps] == [Frontier.at(first.as_of + 1), *ends[:-1]]
    changes = pa.concat_tables([step.updates for step in steps])
    assert len({row["_time"] for row in changes.to_pylist()}) > TICKS / 2
    drawn = random.Random(shards)
    for time in [last, *(drawn.randint(first.as_of, last) for _ in range(20))]:
        expected = await collection.consolidated(time)
        assert counted(base, changes, until=time) == counted(expected)


async def test_a_follower_that_restarts_after_any_step_misses_nothing(tmp_path: Path) -> None:
    """A new follower starts at the upper of the last step, minus one."""
    lake = await made(tmp_path)
    for number in range(6):
        await tick(tmp_path, number)
    collection = await lake.collection("c")
    last = await collection.resolve_as_of(None)
    whole = await steps_until(collection, 0, last)

    assert len(whole) > 3
    for end, step in enumerate(whole[:-1], 1):
        again = await steps_until(collection, step.upper.time - 1, last)
        joined = [*whole[:end], *again]
        assert counted(*(each.updates for each in joined)) == counted(
            await collection.consolidated()
        )
        assert sum(each.updates.num_rows for each in joined) == sum(
            each.updates.num_rows for each in whole
        )


async def test_a_follower_goes_on_after_a_merge_and_a_collection_at_any_piece(
    tmp_path: Path,
) -> None:
    """The parts that it has not read are deleted; it continues after its last step."""
    lake = await made(tmp_path, shards=1)
    collection = await lake.collection("c")
    with patch("tidelog.persist.format.part.INLINE_BYTES", 0):
        for number in range(5):
            await tick(tmp_path, number)
        last = await collection.resolve_as_of(None)
        real: Any = vars(reading)["changes_in_pieces"]
        reads = 0

        async def overtaken(*given: Any) -> AsyncGenerator[pa.Table, None]:
            nonlocal reads
            reads += 1
            async for piece in real(*given):
                yield piece
                if reads == 1:
                    (shard, *_) = (await reopened(tmp_path)).shards
                    await compact(shard, full=True)
                    await shard.collect(after_us=0)

        with patch.object(reading, "changes_in_pieces", overtaken):
            steps = await steps_until(collection, 0, last)

    assert reads > 1
    expected = counted(await collection.consolidated())
    assert counted(*(step.updates for step in steps)) == expected


async def test_columns_and_a_condition_select_the_changes(tmp_path: Path) -> None:
    """A step has the changes of a collection with only these rows and columns."""
    lake = await made(tmp_path)
    for number in range(3):
        await tick(tmp_path, number)
    collection = await lake.collection("c")
    last = await collection.resolve_as_of(None)
    selection: dict[str, Any] = {"columns": ["k"], "where": "v > 4"}

    steps = await steps_until(collection, 0, last, **selection)

    expected = await collection.changes(0, last, **selection)
    assert expected.num_rows
    assert pa.concat_tables([step.updates for step in steps]).equals(expected)


async def test_a_follower_can_start_now(tmp_path: Path) -> None:
    """``now`` is the newest complete time, since a follower cannot start after it."""
    await made(tmp_path)
    await tick(tmp_path, 0)
    collection = await reopened(tmp_path)

    assert await collection.resolve_start("now") == await collection.resolve_as_of("now")
    assert await collection.resolve_start("now") <= collection.upper.time - 1


async def test_a_start_that_is_not_readable_is_refused(tmp_path: Path) -> None:
    """A follower never begins with a gap."""
    lake = await made(tmp_path)
    await tick(tmp_path, 0)
    collection = await lake.collection("c")
    with pytest.raises(AsOfNotComplete, match="since="):
        await anext(collection.listen("2999-01-01"))
    await lake.collections.retain("c", 0)
    await tick(tmp_path, 1)
    with pytest.raises(AsOfBeforeSince):
        await anext(collection.listen(0))


def test_a_blocking_follower_gets_the_steps(tmp_path: Path) -> None:
    """A loop in a plain program gets each step; leaving the loop ends the follower."""

    async def prepare() -> None:
        await made(tmp_path)
        await tick(tmp_path, 0)

    asyncio.run(prepare())
    with tidelog.connect(str(tmp_path / "lake")) as lake:
        collection = lake.collection("c")
        for step in collection.listen(0):
            assert counted(step.updates) == counted(collection.consolidated())
            break
