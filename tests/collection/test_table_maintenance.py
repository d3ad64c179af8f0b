"""Maintenance of tables: merges, retention, holds, scrubs and inspection."""

from __future__ import annotations

from collections import Counter

import pytest

from kit.clocks import StuckClock
from kit.stores import keys_in
from kit.tables import SCHEMA, new_lake, numbers_in, some_rows
from tidelog.collection.maintenance import GroupScrub, ShardFacts
from tidelog.collection.table_handle import Table
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, UsageError
from tidelog.location import Location
from tidelog.persist.format import part

MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def _objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store each part as an object, so that there is something to read and to delete."""
    monkeypatch.setattr(part, "INLINE_BYTES", -1)


async def filled(
    clock: StuckClock, *, inserts: int = 4, retain_ms: int | None = None
) -> tuple[Location, Table, list[int]]:
    """Return a table of two shards with some inserts, one a minute, and their times."""
    lake = await new_lake(clock)
    table = await lake.tables.create("t", SCHEMA, shards=2, retain_ms=retain_ms)
    times = []
    for n in range(inserts):
        clock.wall_us += 60_000_000
        times.append(await table.insert(some_rows(*range(8 * n, 8 * n + 8))))
    return lake, table, times


async def compacted(lake: Location) -> None:
    async for _ in lake.maintenance.compact(await lake.maintenance.groups(["t"]), full=True):
        pass


async def collected(lake: Location) -> None:
    groups = await lake.maintenance.groups(["t"])
    async for _ in lake.maintenance.collect(groups, after_us=0, sweeps=True):
        pass


async def test_merges_take_unapplied_commits_and_keep_each_time() -> None:
    """After a full merge and a collection, the table has one batch a shard, and all its times."""
    lake, table, times = await filled(StuckClock())
    await compacted(lake)
    for _ in range(3):
        await collected(lake)

    reader = await lake.collection("t")
    for n, time in enumerate(times):
        assert await numbers_in(reader, time) == Counter(range(8 * n + 8))
    assert [len(shard.state.batches) for shard in reader.shards] == [1, 1]
    parts = [key for key in await keys_in(lake.store, "shard/s") if "/part/" in key]
    assert len(parts) == 2
    assert await numbers_in(table) == Counter(range(32))


async def test_sweeps_keep_the_parts_of_unapplied_commits() -> None:
    """Sweeps before the apply delete none of the objects that only the transactions name."""
    lake, _, times = await filled(StuckClock())
    for _ in range(4):
        await collected(lake)

    assert await numbers_in(await lake.collection("t"), times[-1]) == Counter(range(32))


async def test_a_retention_set_later_gives_up_times() -> None:
    """`retain` moves the hold of each shard, also if the shards have none of the commits."""
    lake, table, times = await filled(StuckClock())
    await lake.collections.retain("t", MINUTE_MS)

    assert (await numbers_in(table, times[-2])).total() == 24
    with pytest.raises(AsOfBeforeSince, match="is readable since"):
        await table.snapshot(times[-2] - 1)
    assert (await lake.table("t")).info.retain_ms == MINUTE_MS
    await lake.collections.retain("t", None)
    assert (await lake.table("t")).info.retain_ms is None


async def test_compaction_enforces_the_retention_of_a_table() -> None:
    """No writer of a table moves its hold, so each compaction does."""
    lake, table, times = await filled(StuckClock(), retain_ms=MINUTE_MS)
    assert (await numbers_in(table, times[0])).total() == 8
    await compacted(lake)

    assert (await numbers_in(table, times[-2])).total() == 24
    with pytest.raises(AsOfBeforeSince):
        await table.snapshot(times[0])


async def test_holds_of_a_table_reach_unapplied_times() -> None:
    """A hold can be placed and moved at any complete time, and not past the newest contents."""
    lake, table, times = await filled(StuckClock(), retain_ms=0)
    assert await table.hold("mine", times[1]) == Frontier.at(times[1])
    await compacted(lake)
    assert (await numbers_in(table, times[1])).total() == 16
    with pytest.raises(AsOfBeforeSince):
        await table.snapshot(times[0])

    await table.move_hold("mine", times[3])
    with pytest.raises(UsageError, match="newest contents"):
        await table.move_hold("mine", times[3] + 1)
    assert await table.drop_hold("mine")
    assert (await numbers_in(table, times[3])).total() == 32


async def scrubbed(lake: Location) -> list[GroupScrub]:
    groups = await lake.maintenance.groups(["t"])
    return [found async for found in lake.maintenance.scrub(groups)]


async def inspected(lake: Location) -> list[ShardFacts]:
    groups = await lake.maintenance.groups(["t"])
    return [found async for found in lake.maintenance.inspect(groups)]


async def test_a_scrub_reads_unapplied_parts() -> None:
    """A scrub reads each acknowledged row, and reports a part that is missing."""
    lake, _, _ = await filled(StuckClock())
    found = await scrubbed(lake)
    assert (sum(one.found.rows for one in found), [one.found.is_clean for one in found]) == (
        32,
        [True, True],
    )

    lost = next(key for key in await keys_in(lake.store, "shard/s") if "/part/" in key)
    await lake.store.delete([lost])
    damages = [damage for one in await scrubbed(lake) for damage in one.found.damages]
    assert [(damage.path, damage.why) for damage in damages] == [(lost, "the object is missing")]


async def test_inspection_counts_unapplied_parts_as_live() -> None:
    """The facts about a shard of a table have its unapplied commits, and the upper of the table."""
    lake, _, times = await filled(StuckClock())
    facts = await inspected(lake)

    assert {one.upper for one in facts} == {times[-1] + 1}
    assert sum(one.updates for one in facts) == 32
    uses = Counter[str]()
    for one in facts:
        uses.update({use.value: count for use, count in one.usage.objects.items() if count})
    parts = [key for key in await keys_in(lake.store, "shard/s") if "/part/" in key]
    assert uses["live"] >= len(parts)
    assert uses.keys() <= {"live", "gone"}


async def test_tidying_the_location_applies_the_commits_of_tables() -> None:
    """`tidy` applies the commits of all tables, and reports their transactions by a plain name."""
    lake, table, times = await filled(StuckClock())
    names = [found.name async for found in lake.maintenance.tidy()]

    assert names == ["(tables)"]
    assert (await lake.table_transactions.refresh()).pending == ()
    await table.refresh()
    assert {shard.state.upper for shard in table.shards} == {times[-1] + 1}
