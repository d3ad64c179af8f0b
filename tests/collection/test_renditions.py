"""Renditions: a collection is computed again, and readers change over at one exact time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kit.renditions import counted, holds, rows_at
from kit.sources import collect, compact, ingest, lake_of, reopened, write_numbers
from tidelog.collection import handover
from tidelog.collection.collection import Collection
from tidelog.collection.hold_all import place_hold
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    AsOfBeforeSince,
    HandoverRefused,
    NameTaken,
    NoSuchCollection,
    RenditionSucceeded,
    SchemaEvolved,
    UsageError,
)
from tidelog.location import Location
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.persist.states.transition import difference


async def fill(lake: Location, folder: Path, *numbers: int, names: tuple[str, ...]) -> int:
    """Add a file of numbers, let each rendition ingest it, and return the upper of the first."""
    write_numbers(folder / "in" / f"{numbers[0]:04d}.jsonl", *numbers)
    for name in names:
        await ingest(lake, name)
    collection = await lake.collection("c")
    await collection.refresh()
    return collection.upper.time


async def with_two(folder: Path, **changes: Any) -> Location:
    """Return a lake whose source ``c`` has some rows, and a second rendition with the same rows."""
    lake = await lake_of(folder)
    await fill(lake, folder, 1, 2, 3, names=("c",))
    await fill(lake, folder, 4, 5, names=("c",))
    await lake.renditions.create(RenditionSpec(name="c2", **changes), of="c")
    await ingest(lake, "c2")
    return lake


async def test_readers_read_the_second_rendition_from_the_handover_on(tmp_path: Path) -> None:
    """Before its time, contents are those of the first. A handle from before changes over too."""
    lake = await with_two(tmp_path, schema="n bigint", shards=2)
    old = await lake.collection("c")
    await old.refresh()

    time = await lake.renditions.handover("c", to="c2")

    await fill(lake, tmp_path, 6, names=("c2",))
    assert await rows_at(lake, time - 1) == Counter({(n, 1_000 * n): 1 for n in range(1, 6)})
    assert await rows_at(lake) == Counter({(n,): 1 for n in range(1, 7)})
    assert counted(await old.consolidated()) == await rows_at(lake)
    assert counted(await old.consolidated(time - 1)) == await rows_at(lake, time - 1)


async def test_a_resharded_rendition_has_the_same_updates_at_the_same_times(tmp_path: Path) -> None:
    """The times come from the clock, and both renditions obey the same bindings."""
    lake = await with_two(tmp_path, shards=8)
    await lake.renditions.create(RenditionSpec(name="c3", shards=1), of="c")
    await fill(lake, tmp_path, 6, 7, names=("c2", "c", "c3"))
    await fill(lake, tmp_path, 8, names=("c3", "c", "c2"))

    catalog = await lake.controller.catalog()
    sums = []
    for name in ("c", "c2", "c3"):
        handle = lake.collections.of_rendition(catalog, catalog.rendition(name))
        await handle.refresh()
        sums.append(sums_by_interval(handle))
    assert sums[0] == sums[1] == sums[2]
    assert len(sums[0]) >= 4
    assert [len(catalog.rendition(name).shards) for name in ("c", "c2", "c3")] == [1, 8, 1]
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0
    assert (await lake.renditions.describe("c2")).shares_bindings


def sums_by_interval(handle: Collection) -> list[tuple[Frontier, str]]:
    """Return the sum T of all shards in each interval between commits."""
    first = handle.states[0]
    found = []
    for commit in first.commits:
        ends = Frontier.at(commit.lower), Frontier.of(commit.upper)
        total = [difference(state, *ends) for state in handle.states]
        assert all(one is not None for one in total)
        left = total[0]
        for one in total[1:]:
            assert left is not None
            assert one is not None
            left = left + one
        found.append((ends[1], str(left)))
    return found


async def test_changes_across_the_handover_add_up(tmp_path: Path) -> None:
    """A snapshot before it and the changes since equal the snapshot after it, at each time."""
    lake = await with_two(tmp_path, envelope="upsert", key=("n",))
    time = await lake.renditions.handover("c", to="c2")
    newest = await fill(lake, tmp_path, 4, 6, names=("c2",)) - 1
    collection = await lake.collection("c")

    for since in (time - 2, time - 1, time, newest):
        for until in {time - 1, time, time + 1, newest}:
            if since > until:
                continue
            before = await rows_at(lake, since)
            for row in (await collection.changes(since, until)).to_pylist():
                assert since < row["_time"] <= until
                before[row["n"], row["at"]] += row["_diff"]
            assert +before == await rows_at(lake, until), (since, until)


async def test_equal_rows_do_not_change_at_the_handover(tmp_path: Path) -> None:
    """The changes at its time are consolidated: only differences are emitted."""
    lake = await with_two(tmp_path, shards=3)
    time = await lake.renditions.handover("c", to="c2")
    newest = await fill(lake, tmp_path, 9, names=("c2",)) - 1
    collection = await lake.collection("c")

    told = (await collection.changes(time - 1, newest)).to_pylist()

    assert [(row["n"], row["_diff"]) for row in told] == [(9, 1)]


async def test_a_listener_crosses_the_handover(tmp_path: Path) -> None:
    """It began before the handover. Its steps add up to the newest contents."""
    lake = await with_two(tmp_path, envelope="upsert", key=("n",))
    collection = await lake.collection("c")
    start = await collection.resolve_as_of(None)
    found, lower = await rows_at(lake, start), Frontier.at(start + 1)

    async with aclosing(collection.listen(start)) as steps:
        time = await (await reopened(tmp_path)).renditions.handover("c", to="c2")
        newest = await fill(lake, tmp_path, 2, 8, names=("c2",)) - 1
        async for step in steps:
            assert step.lower == lower
            lower = step.upper
            for row in step.updates.to_pylist():
                found[row["n"], row["at"]] += row["_diff"]
            if step.upper.passed(newest):
                break

    assert time <= newest
    assert +found == await rows_at(lake, newest)


async def test_the_bad_rows_cross_the_handover_too(tmp_path: Path) -> None:
    """A reader of NAME_errors changes over at the same time."""
    lake = await lake_of(tmp_path)
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1, "at": "late"}\n{"n": 2, "at": "no"}\n')
    await ingest(lake, "c")
    await lake.renditions.create(RenditionSpec(name="c2", schema="n bigint, at varchar"), of="c")
    await ingest(lake, "c2")

    time = await lake.renditions.handover("c", to="c2")
    await fill(lake, tmp_path, 3, names=("c2",))

    assert sum((await rows_at(lake, time - 1, "c_errors")).values()) == 2
    assert sum((await rows_at(lake, None, "c_errors")).values()) == 1
    errors = await lake.collection("c_errors")
    told = (await errors.changes(time - 1)).to_pylist()
    assert [(row["file"], row["_diff"]) for row in told] == [
        ("a.jsonl", -1),
        ("a.jsonl", -1),
        ("0003.jsonl", 1),
    ]
    assert await rows_at(lake) == Counter({(1, "late"): 1, (2, "no"): 1})


async def test_a_read_with_columns_that_the_other_rendition_lacks_is_refused(
    tmp_path: Path,
) -> None:
    """Rows with missing columns would be wrong rows."""
    lake = await with_two(tmp_path, schema="n bigint")
    old = await lake.collection("c")
    start = await old.resolve_as_of(None)
    reading = old.reading(ALL_ROWS)
    await lake.renditions.handover("c", to="c2")
    newest = await fill(lake, tmp_path, 9, names=("c2",)) - 1
    await old.refresh()

    with pytest.raises(SchemaEvolved, match=r"'at' as int64.*lacks it"):
        [piece async for piece in old.changes_of(reading, start, newest)]
    narrow = await (await lake.collection("c")).changes(start, newest, columns=["n"])
    assert narrow.to_pylist()[-1]["n"] == 9


async def test_handovers_that_cannot_be_exact_are_refused(tmp_path: Path) -> None:
    """Each refusal names the condition, and changes nothing."""
    lake = await with_two(tmp_path)
    upper = await fill(lake, tmp_path, 6, names=("c",))
    await lake_with_another(lake, tmp_path)

    for given, said in (
        ({"to": "c2"}, "c2' is complete up to"),
        ({"to": "c2", "at": upper - 1}, "it is complete: pass at least"),
        ({"to": "c"}, "now, or did before"),
        ({"to": "d"}, "'d' is a rendition of 'd', not of 'c'"),
    ):
        with pytest.raises(HandoverRefused, match=said):
            await lake.renditions.handover("c", **given)
    with pytest.raises(NoSuchCollection, match="did you mean 'c2'"):
        await lake.renditions.handover("c", to="c22")
    assert len((await lake.renditions.history("c"))[0]) == 1

    await ingest(lake, "c2")
    time = await lake.renditions.handover("c", to="c2")
    assert time == upper
    assert await lake.renditions.handover("c", to="c2") == time
    with pytest.raises(HandoverRefused, match="now, or did before"):
        await lake.renditions.handover("c", to="c")


async def lake_with_another(lake: Location, folder: Path) -> None:
    (folder / "other").mkdir()
    await lake.sources.create(
        SourceSpec(name="d", files=str(folder / "other"), schema="n bigint, at bigint")
    )


async def test_names_of_renditions_are_unique(tmp_path: Path) -> None:
    """A rendition has a source of its name, so both share one set of names."""
    lake = await with_two(tmp_path)

    for name in ("c", "c2"):
        with pytest.raises(NameTaken, match="already exists"):
            await lake.renditions.create(RenditionSpec(name=name), of="c")
    spec = SourceSpec(name="c2", files=str(tmp_path / "in"), schema="n bigint")
    with pytest.raises(NameTaken):
        await lake.sources.create(spec)
    with pytest.raises(UsageError, match="'c2' is a rendition of 'c': drop it with"):
        await lake.sources.drop("c2")


async def test_the_bad_rows_of_a_rendition_are_not_hidden(tmp_path: Path) -> None:
    """`NAME_errors` are the bad rows of the rendition `NAME`, so no other has that name."""
    lake = await with_two(tmp_path)
    spec = SourceSpec(name="x_errors", files=str(tmp_path / "in"), schema="n bigint")
    await lake.sources.create(spec)
    await lake.renditions.create(RenditionSpec(name="y_errors"), of="c")

    for name in ("x", "y", "c2_errors"):
        with pytest.raises(NameTaken, match=f"'{name}' conflicts with"):
            await lake.renditions.create(RenditionSpec(name=name), of="c")
        with pytest.raises(NameTaken, match=f"'{name}' conflicts with"):
            await lake.sources.create(
                SourceSpec(name=name, files=str(tmp_path / "in"), schema="n bigint")
            )


async def test_a_handover_waits_for_the_other_rendition(tmp_path: Path) -> None:
    """Its time is the one at which the call began."""
    lake = await with_two(tmp_path)
    upper = await fill(lake, tmp_path, 6, names=("c",))

    waiting = asyncio.create_task(lake.renditions.handover("c", to="c2", wait=True))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await ingest(await reopened(tmp_path), "c2")

    assert await waiting == upper


async def test_a_handover_waits_for_the_rendition_that_readers_read(tmp_path: Path) -> None:
    """The retention of the other rendition may have passed all times that are not read yet."""
    lake = await lake_of(tmp_path, retain="0s")
    await fill(lake, tmp_path, 1, names=("c",))
    await lake.renditions.create(RenditionSpec(name="c2"), of="c")
    for n in (2, 3, 4):
        await fill(lake, tmp_path, n, names=("c2",))
    with pytest.raises(HandoverRefused, match=r"'c2' is readable since .* or wait"):
        await lake.renditions.handover("c", to="c2")

    waiting = asyncio.create_task(lake.renditions.handover("c", to="c2", wait=True))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await ingest(await reopened(tmp_path), "c")

    await waiting
    await fill(lake, tmp_path, 5, names=("c2",))
    assert await rows_at(lake) == Counter({(n, 1_000 * n): 1 for n in range(1, 6)})


async def test_a_handover_that_waits_sees_the_drop(tmp_path: Path) -> None:
    """The refusal says that the other rendition was dropped."""
    lake = await with_two(tmp_path)
    await fill(lake, tmp_path, 6, names=("c",))

    waiting = asyncio.create_task(lake.renditions.handover("c", to="c2", wait=True))
    await asyncio.sleep(0.05)
    await (await reopened(tmp_path)).renditions.drop("c2")

    with pytest.raises(HandoverRefused, match=r"another process dropped 'c2'"):
        await waiting


async def test_a_drop_between_the_check_and_the_hold_refuses_the_handover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mark is made, and the collection can be handed over to another rendition."""
    lake = await with_two(tmp_path)
    other = await reopened(tmp_path)

    async def slow(*given: Any, **options: Any) -> Frontier:
        await other.renditions.drop("c2")
        return await place_hold(*given, **options)

    monkeypatch.setattr(handover, "place_hold", slow)
    with pytest.raises(HandoverRefused, match=r"'c2' is no longer readable at"):
        await lake.renditions.handover("c", to="c2")

    assert [one.name for one in await lake.renditions.list("c")] == ["c"]


async def test_an_ingester_of_the_first_rendition_ends_at_the_handover(tmp_path: Path) -> None:
    """The name of the collection then stands for the rendition that readers read."""
    lake = await with_two(tmp_path)
    first = await lake.sources.ingester("c")
    await lake.renditions.handover("c", to="c2")
    write_numbers(tmp_path / "in" / "more.jsonl", 8)

    with pytest.raises(RenditionSucceeded, match=r"another rendition since .*: ingest that one"):
        await first.refresh()
    with pytest.raises(RenditionSucceeded, match="another rendition since"):
        await first.tick(await first.source.head())
    await ingest(lake, "c")

    assert (8, 8_000) in await rows_at(lake)


async def test_the_status_of_a_former_rendition_is_shown(tmp_path: Path) -> None:
    """No ingester of it runs, but its rows are still read at earlier times."""
    lake = await with_two(tmp_path)
    await lake.renditions.handover("c", to="c2")
    await fill(lake, tmp_path, 6, names=("c2",))
    await lake.renditions.create(RenditionSpec(name="c3"), of="c")
    await ingest(lake, "c3")
    end = await lake.renditions.handover("c", to="c3")
    with pytest.raises(RenditionSucceeded):
        await lake.sources.ingester("c2")

    found = await lake.sources.status("c2")

    assert (found.name, found.upper, found.files) == ("c2", end, 3)
    assert (await lake.sources.status("c")).name == "c3"


async def test_all_sources_are_ingested_without_former_renditions(tmp_path: Path) -> None:
    """A former rendition needs no more rows, so it is no failure of `ingest --all`."""
    lake = await with_two(tmp_path)
    await lake.renditions.handover("c", to="c2")
    write_numbers(tmp_path / "in" / "more.jsonl", 8)

    found = await lake.sources.ingest_all()

    assert [*found] == ["c2"]
    assert (8, 8_000) in await rows_at(lake)


async def test_a_handover_in_the_future_waits_for_the_first_rendition(tmp_path: Path) -> None:
    """Its times before the handover come from the first rendition, which is ingested on."""
    lake = await with_two(tmp_path)
    upper = await fill(lake, tmp_path, 6, names=("c",))
    await asyncio.sleep(0.002)
    ahead = await lake.sources.ingester("c2")
    head = await ahead.source.head()
    await ahead.tick(head)
    await ahead.tick(head)
    reached = ahead.upper.time
    assert reached > upper

    time = await lake.renditions.handover("c", to="c2", at=reached)

    collection = await lake.collection("c")
    await collection.refresh()
    assert collection.upper.time == upper
    assert (await lake.renditions.history("c"))[0][-1].time == time
    first = await lake.sources.ingester("c")
    assert first.rendition.called == "c"
    await first.tick(await first.source.head())
    await collection.refresh()
    assert collection.upper.time >= time
    assert (await lake.sources.ingester("c")).rendition.called == "c2"


async def test_holds_keep_both_renditions_as_far_as_each_is_needed(tmp_path: Path) -> None:
    """A hold from before the handover, and one that a handle of then places after it."""
    lake = await with_two(tmp_path)
    old = await lake.collection("c")
    start = await old.resolve_as_of(None)
    await old.hold("before", start)
    time = await lake.renditions.handover("c", to="c2")
    await old.hold("after", start)
    await old.hold("late", time)

    former, latter = old.eras
    for name in ("before", "after"):
        assert holds(former)[name] == start
        assert holds(latter)[name] == time
    assert "late" not in holds(former)

    with pytest.raises(HandoverRefused, match=r"tidelog hold list c.*holds=after, before"):
        await lake.renditions.drop("c")
    newest = await fill(lake, tmp_path, 7, names=("c2",)) - 1
    await old.move_hold("before", newest)
    await old.drop_hold("after")
    former, latter = [await fresh(one) for one in old.eras]
    assert "before" not in holds(former)
    assert holds(latter)["before"] == newest
    await lake.renditions.drop("c")


async def test_a_former_rendition_is_dropped_with_its_times(tmp_path: Path) -> None:
    """Handles from before the drop, and from before the handover, find the other rendition."""
    lake = await with_two(tmp_path)
    old, stale = await lake.collection("c"), await lake.collection("c")
    await old.refresh()
    time = await lake.renditions.handover("c", to="c2")
    await old.refresh()
    await fill(lake, tmp_path, 7, names=("c2",))

    await lake.renditions.drop("c")

    again = await reopened(tmp_path)
    for handle in (stale, await again.collection("c")):
        with pytest.raises(AsOfBeforeSince, match="'c' is readable since"):
            await handle.consolidated(time - 1)
        assert (7, 7_000) in counted(await handle.consolidated())
    await collect(again, sweeps=True)
    await collect(again, sweeps=True)
    assert (7, 7_000) in counted(await old.consolidated())
    assert await rows_at(again) == Counter({(n, 1_000 * n): 1 for n in (1, 2, 3, 4, 5, 7)})
    assert [one.name for one in await again.renditions.list("c")] == ["c2"]
    assert [one.rendition for one in (await again.renditions.history("c"))[0]] == ["c", "c", "c2"]
    await fill(again, tmp_path, 8, names=("c",))
    assert (8, 8_000) in await rows_at(again)


async def test_a_collection_outlives_the_source_of_its_name(tmp_path: Path) -> None:
    """Its first rendition is dropped. Its name still stands for the source that feeds it."""
    lake = await with_two(tmp_path)
    await lake.renditions.handover("c", to="c2")
    await fill(lake, tmp_path, 7, names=("c2",))
    await lake.renditions.drop("c")

    for name in ("c", "c_errors"):
        spec = SourceSpec(name=name, files=str(tmp_path / "in"), schema="n bigint")
        with pytest.raises(NameTaken):
            await lake.sources.create(spec)
    await lake.sources.alter("c", add="more bigint")
    command = [sys.executable, "-m", "tidelog.cli.main", "--location", str(tmp_path / "lake")]
    drop = [*command, "source", "alter", "c", "--drop", "at"]
    run = partial(subprocess.run, drop, capture_output=True, text=True, check=False)
    done = await asyncio.to_thread(run)
    assert (done.returncode, "pass --yes" in done.stderr) == (2, True), done.stderr
    await lake.sources.drop("c")
    assert await lake.collections.list() == []


async def test_a_drop_that_begins_does_not_change_the_shared_bindings(tmp_path: Path) -> None:
    """An ingester that runs during the drop proposes bindings that other renditions can read."""
    lake = await with_two(tmp_path)
    running = await lake.sources.ingester("c2")
    await lake.controller.set_dropping("c2", dropping=True)
    await lake.controller.announce("c2")
    write_numbers(tmp_path / "in" / "0006.jsonl", 6, 7)
    assert (await running.tick(await running.source.head())) is not None

    done = await fill(lake, tmp_path, 8, names=("c",))

    assert done > running.upper.time
    assert sum((await rows_at(lake)).values()) == 8


async def test_a_rendition_that_was_never_ingested_is_dropped(tmp_path: Path) -> None:
    """A handle that was opened before sees the drop, and not the loss of a state."""
    lake = await with_two(tmp_path)
    await lake.renditions.create(RenditionSpec(name="c3"), of="c")
    handle = await lake.collection("c3")

    await lake.renditions.drop("c3")

    with pytest.raises(NoSuchCollection, match=r"was dropped after this process opened it"):
        await handle.consolidated()


async def test_the_active_rendition_is_not_dropped(tmp_path: Path) -> None:
    """Another rendition can be dropped, and the collection goes on."""
    lake = await with_two(tmp_path)

    with pytest.raises(UsageError, match="readers of 'c' read the rendition 'c'"):
        await lake.renditions.drop("c")
    await lake.renditions.drop("c2")
    with pytest.raises(NoSuchCollection):
        await lake.renditions.handover("c", to="c2")
    assert len(await lake.renditions.list("c")) == 1
    await fill(lake, tmp_path, 8, names=("c",))
    assert (8, 8_000) in await rows_at(lake)


async def test_a_dropped_collection_loses_all_renditions(tmp_path: Path) -> None:
    """Handles from before say so, and nothing stays in the catalog."""
    lake = await with_two(tmp_path)
    await lake.renditions.handover("c", to="c2")
    old = await lake.collection("c")

    await lake.sources.drop("c")

    with pytest.raises(NoSuchCollection):
        await lake.collection("c")
    await collect(lake, sweeps=True)
    with pytest.raises(NoSuchCollection):
        await old.consolidated()
    catalog = await lake.controller.catalog()
    assert not catalog.renditions
    assert not catalog.sources


async def test_columns_of_shared_bindings_do_not_change(tmp_path: Path) -> None:
    """The bindings name a schema by its number, which would differ between the renditions."""
    lake = await with_two(tmp_path)

    with pytest.raises(UsageError, match="the rendition 'c2' has the same bindings"):
        await lake.sources.alter("c", add="x bigint")
    await lake.renditions.drop("c2")
    await lake.sources.alter("c", add="x bigint")


async def test_a_source_that_forgets_its_bindings_gets_a_rendition_with_times_of_its_own(
    tmp_path: Path,
) -> None:
    """Its contents are the same nevertheless."""
    lake = await lake_of(tmp_path, keep_bindings=False)
    await fill(lake, tmp_path, 1, 2, names=("c",))
    made = await lake.renditions.create(RenditionSpec(name="c2", shards=2), of="c")
    assert not made.shares_bindings

    await ingest(lake, "c2")
    await lake.renditions.handover("c", to="c2", wait=True)
    await fill(lake, tmp_path, 3, names=("c2",))

    assert await rows_at(lake) == Counter({(n, 1_000 * n): 1 for n in (1, 2, 3)})


async def test_bindings_are_kept_through_merges_and_retention(tmp_path: Path) -> None:
    """A rendition that is made much later still gets each row at its first time."""
    lake = await lake_of(tmp_path, retain="0s")
    for n in range(1, 7):
        await fill(lake, tmp_path, n, names=("c",))
        await compact(lake)
    await collect(lake, sweeps=True)

    await lake.renditions.create(RenditionSpec(name="c2"), of="c")
    ticks = await ingest(lake, "c2")

    assert len(ticks) == 6
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0


async def test_the_difference_of_renditions_comes_first_time_first(tmp_path: Path) -> None:
    """Equal renditions have none, and other columns cannot be compared."""
    lake = await lake_of(tmp_path)
    await fill(lake, tmp_path, 1, 2, names=("c",))
    (tmp_path / "in" / "b.jsonl").write_text('{"n": 3, "at": 1}\n{"n": 3, "at": 2}\n')
    await ingest(lake, "c")
    await lake.renditions.create(RenditionSpec(name="c2", envelope="upsert", key=("n",)), of="c")
    await ingest(lake, "c2")

    told = (await lake.renditions.diff("c", "c2")).to_pylist()

    assert [(row["n"], row["at"], row["_diff"]) for row in told] == [(3, 1, -1)]
    await lake.renditions.create(RenditionSpec(name="c3", schema="n bigint"), of="c")
    with pytest.raises(UsageError, match="have different columns"):
        await lake.renditions.diff("c", "c3")


async def fresh(era: Collection) -> Collection:
    for shard in era.all_shards:
        await shard.refresh()
    return era
