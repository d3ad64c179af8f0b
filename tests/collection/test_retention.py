"""Retention of a collection: old times stay readable for that long, and not much longer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kit.sources import collect, compact, lake_of, run_once, table_of
from tidelog.collection.catalog.retention import (
    RetentionPlan,
    history_at,
    parse_retention_ms,
    plan_retention,
    retention_text,
)
from tidelog.collection.hold_all import drop_hold, place_hold
from tidelog.collection.ingest.engine import TickParts
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source.binding import Binding
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, NoSuchCollection, UsageError
from tidelog.location import Location
from tidelog.persist.handle.together import hold_together
from tidelog.persist.states.state import State

KEYS = 3


async def fed(folder: Path, days: int, **asked: Any) -> Location:
    """Return a location whose source took a file each day. Each row retracts the one before it."""
    schema = "k bigint, v bigint, at bigint"
    given = {"envelope": "upsert", "key": ("k",), "time_column": "at", "schema": schema, **asked}
    location = await lake_of(folder, **given)
    for day in range(days):
        await feed(location, folder, day)
    return location


async def feed(location: Location, folder: Path, day: int) -> None:
    row = {"k": day % KEYS, "v": day, "at": 1_000 * day}
    bad = "{" if day % 4 == 0 else ""
    (folder / "in" / f"{day:03}.jsonl").write_text(f"{json.dumps(row)}\n{bad}\n")
    await run_once(await location.sources.ingester("c"))


async def contents(location: Location, day: int) -> list[tuple[int, int]]:
    found = await table_of(location, as_of=1_000 * day)
    return sorted((row["k"], row["v"]) for row in found.to_pylist())


def wanted(day: int) -> list[tuple[int, int]]:
    return sorted((d % KEYS, d) for d in range(max(0, day - KEYS + 1), day + 1))


async def test_each_tick_gives_up_what_is_older(tmp_path: Path) -> None:
    """Newer rows and newer bad rows stay after merges and collection."""
    location = await fed(tmp_path, 20, retain="5s")
    await compact(location)
    await collect(location)
    for day in range(14, 20):
        assert await contents(location, day) == wanted(day)
    for name in ("c", "c_errors"):
        with pytest.raises(AsOfBeforeSince):
            await (await location.collection(name)).consolidated(13_999)
    kept = await (await location.collection("c")).describe()
    assert kept.since == 19_000 - 5_000
    assert kept.updates < 2 * KEYS + 2 * 5, "what was taken back before is gone"
    assert (await (await location.collection("c_errors")).describe()).rows == 1


async def test_all_is_kept_unless_told(tmp_path: Path) -> None:
    """The default keeps every time forever, even after merges."""
    location = await fed(tmp_path, 12)
    await compact(location)
    for day in range(12):
        assert await contents(location, day) == wanted(day)


async def test_it_may_be_set_and_changed_later(tmp_path: Path) -> None:
    """A change takes effect at once, without an ingester. Times given up do not return."""
    location = await fed(tmp_path, 12)
    running = await location.sources.ingester("c")
    await location.collections.retain("c", 4_000)
    with pytest.raises(AsOfBeforeSince):
        await contents(location, 6)
    assert await contents(location, 7) == wanted(7)

    await location.collections.retain("c", None)
    assert (await location.sources.find("c"))[0].retain_ms is None
    await feed(location, tmp_path, 12)
    assert await contents(location, 7) == wanted(7), "what is left is kept for ever again"
    await location.collections.retain("c", 9_000)
    assert await contents(location, 7) == wanted(7)
    with pytest.raises(AsOfBeforeSince):
        await contents(location, 6)

    # A running ingester applies the newest retention.
    row = {"k": 1, "v": 40, "at": 40_000}
    (tmp_path / "in" / "100.jsonl").write_text(json.dumps(row) + "\n")
    await run_once(running)
    with pytest.raises(AsOfBeforeSince):
        await contents(location, 11)
    assert (40 % KEYS, 40) in await contents(location, 40)


async def test_a_longer_retention_keeps_what_can_still_be_read(tmp_path: Path) -> None:
    """A shorter retention moves only the hold `history`. Times under other holds stay."""
    location = await fed(tmp_path, 12)
    collection = await location.collection("c")
    await collection.hold("audit", 2_000)
    await location.collections.retain("c", 2_000)
    assert await contents(location, 3) == wanted(3)

    await location.collections.retain("c", None)
    await collection.drop_hold("audit")
    for day in (12, 13):
        await feed(location, tmp_path, day)

    assert await contents(location, 3) == wanted(3)
    await location.collections.retain("c", 6_000)
    await feed(location, tmp_path, 14)
    with pytest.raises(AsOfBeforeSince):
        await contents(location, 7)
    assert await contents(location, 8) == wanted(8)


async def test_a_plan_says_which_times_a_retention_gives_up_and_what_holds_them(
    tmp_path: Path,
) -> None:
    """The plan changes nothing itself."""
    location = await fed(tmp_path, 12)
    collection = await location.collection("c")
    await collection.hold("audit", 2_000)
    states = [await shard.refresh() for shard in collection.all_shards]

    assert plan_retention(states, None) == RetentionPlan(0, None)
    assert not plan_retention(states, None).gives_up
    assert not plan_retention(states, 20_000).gives_up
    plan = plan_retention(states, 5_000)
    assert (plan.since, plan.kept, plan.holders, plan.gives_up) == (0, 6_000, ("audit",), True)
    assert plan_retention([State()], 5) == RetentionPlan(0, None)


async def test_a_hold_keeps_the_times_that_a_tick_under_way_would_give_up(tmp_path: Path) -> None:
    """A tick ends with the retention that it began with. See docs/guides/retention.md."""
    location = await fed(tmp_path, 6, retain="2s")
    shards = (await location.collection("c")).all_shards
    await place_hold(shards, "keep", None)

    compute = Ingester._compute

    async def retain_then(ingester: Ingester, binding: Binding) -> TickParts:
        computed = await compute(ingester, binding)
        await location.collections.retain("c", None)
        return computed

    for day in range(6, 12):
        row = {"k": day % KEYS, "v": day, "at": 1_000 * day}
        (tmp_path / "in" / f"{day:03}.jsonl").write_text(f"{json.dumps(row)}\n")
    ingester = await location.sources.ingester("c")
    with patch.object(Ingester, "_compute", retain_then):
        await run_once(ingester)
    await location.collections.retain("c", None)
    await drop_hold((await location.collection("c")).all_shards, "keep")
    await feed(location, tmp_path, 12)

    for day in range(3, 13):
        assert await contents(location, day) == wanted(day)


async def test_nothing_is_too_little_to_keep(tmp_path: Path) -> None:
    """With a retention of zero, the newest contents stay readable."""
    location = await fed(tmp_path, 3, retain="0s")
    assert await contents(location, 2) == wanted(2)
    empty = await fed(tmp_path / "empty", 0)
    await empty.collections.retain("c", 0)
    with pytest.raises(NoSuchCollection):
        await location.collections.retain("d", 0)


async def test_deletions_outlast_a_short_memory(tmp_path: Path) -> None:
    """Deletions outlast a short retention: the ingester needs them to recognise late rows."""
    location = await fed(tmp_path, 4, retain="0s", delete_when="v < 0")
    gone = {"k": 0, "v": -1, "at": 5_000}
    late = {"k": 0, "v": 7, "at": 4_500}
    for number, row in enumerate((gone, late)):
        (tmp_path / "in" / f"2{number}.jsonl").write_text(json.dumps(row) + "\n")
        await run_once(await location.sources.ingester("c"))
        await compact(location)
    found = await table_of(location)
    assert 0 not in found.column("k").to_pylist()


@pytest.mark.parametrize("text", ["", "7", "-1d", "1e3s", "never", "for ever", "1 fortnight"])
def test_what_is_no_retention_is_refused(text: str) -> None:
    """A wrong retention raises at creation, because times given up cannot be restored."""
    with pytest.raises(UsageError, match="forever"):
        parse_retention_ms(text, what="--retain")
    with pytest.raises(UsageError, match="retain="):
        SourceSpec(name="c", files="in", retain=text).check()


def test_retentions_are_written_as_they_are_read() -> None:
    """The displayed text of a retention is valid input."""
    for text in ("forever", "7d", "90s", "36h", "0s"):
        known = parse_retention_ms(text, what="it")
        assert parse_retention_ms(retention_text(known), what="it") == known
    assert parse_retention_ms(" Forever ", what="it") is None
    assert history_at(5, 100).time == 0
    assert history_at(101, 100).time == 0
    assert history_at(102, 100).time == 1


async def test_a_hold_of_all_times_is_placed_while_retention_moves(tmp_path: Path) -> None:
    """The call has no time of its own, so it takes the times that are readable then."""
    location = await fed(tmp_path, 6, retain="2s")
    collection, days = await location.collection("c"), iter((6, 7))

    async def slow(*given: Any, **options: Any) -> list[Frontier]:
        for day in days:
            await feed(location, tmp_path, day)
        return await hold_together(*given, **options)

    with patch("tidelog.collection.hold_all.hold_together", slow):
        placed = await collection.hold("mine")
    for day in range(8, 12):
        await feed(location, tmp_path, day)
    await compact(location)

    assert placed == Frontier.at(7_000 - 2_000)
    assert await contents(location, 5) == wanted(5)
