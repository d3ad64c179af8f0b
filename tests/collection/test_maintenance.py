"""Maintenance of shards: merges, collection, and the deletion of dropped sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.clocks import StuckClock
from kit.sources import collect, compact, reopened, run_once, table_of
from tidelog.collection.ingest.background_merges import BackgroundMerges
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import RunProgress
from tidelog.collection.maintenance import CATALOG_NAME, DROPPED_NAME
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import NoSuchCollection
from tidelog.location import Location, open_location
from tidelog.persist.format import part

HOUR_US = 3_600_000_000


@pytest.fixture(autouse=True)
def _objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store each part as an object, so that there is something to delete."""
    monkeypatch.setattr(part, "INLINE_BYTES", -1)


async def fed(
    folder: Path, ticks: int, *, name: str = "c", clock: StuckClock | None = None
) -> Location:
    """Return a location with a source that took the given number of files, one per tick."""
    inputs = folder / f"in-{name}"
    inputs.mkdir(exist_ok=True)
    location = await open_location(str(folder / "lake"), create=True, clock=clock)
    spec = SourceSpec(
        name=name,
        files=str(inputs),
        envelope="upsert",
        key=("k",),
        time_column="at",
        schema="k bigint, at bigint",
    )
    await location.sources.create(spec)
    for tick in range(ticks):
        await feed(inputs, tick)
        await run_once(await location.sources.ingester(name))
    return location


async def feed(inputs: Path, tick: int) -> None:
    text = json.dumps({"k": tick % 2, "at": 1_000 * tick}) + "\n{\n"
    (inputs / f"{tick:03}.jsonl").write_text(text)


def objects(folder: Path, shard: str) -> list[str]:
    return sorted(p.name for p in (folder / "lake" / "shard" / shard).rglob("*.parquet"))


async def test_all_shards_of_all_sources_are_merged(tmp_path: Path) -> None:
    """Maintenance merges all shards of all sources, also those of bindings and deletions."""
    location = await fed(tmp_path, 20)
    await fed(tmp_path, 3, name="d")
    done = {one.name: one for one in await compact(location)}
    assert [*done] == ["c", "d", CATALOG_NAME]
    assert done["c"].done.merges >= 3
    _, rendition = await location.sources.find("c")
    assert done["c"].batches <= len(rendition.roles)
    assert sum(one.done.merges for one in await compact(location)) == 0
    with pytest.raises(NoSuchCollection, match="existing collections: c, d"):
        await location.maintenance.groups(["e"])


async def test_ingestion_goes_on_over_merged_shards(tmp_path: Path) -> None:
    """The ingester reads bindings, held-back rows and its own output correctly after merges."""
    location = await fed(tmp_path, 9)
    for tick in range(9, 18):
        await compact(location)
        await collect(location)
        await feed(tmp_path / "in-c", tick)
        summary = await run_once(await location.sources.ingester("c"))
        assert (summary.rows, summary.bad) == (1, 1)
    found = await table_of(location)
    assert sorted(zip(*(found.column(n).to_pylist() for n in ("k", "at")), strict=True)) == [
        (0, 16_000),
        (1, 17_000),
    ]
    assert (await location.sources.ingester("c")).errors.state.totals.diffs == 18


async def test_what_merges_replaced_goes_after_an_hour(tmp_path: Path) -> None:
    """A collection deletes them an hour after the merge: readers of an old state still work."""
    clock = StuckClock()
    location = await fed(tmp_path, 6, clock=clock)
    (shard,) = (await location.sources.find("c"))[1].shards
    await compact(location)
    assert len(objects(tmp_path, shard)) == 7
    first = await collect(location, after_us=None)
    assert {one.name: one.deleted for one in first} == {"c": 0, CATALOG_NAME: 0}
    assert first[0].waiting >= 6
    clock.wall_us += HOUR_US
    later = await collect(location, after_us=None)
    assert later[0].deleted >= 6
    assert later[0].waiting == 0
    assert len(objects(tmp_path, shard)) == 1


async def test_a_dropped_source_leaves_nothing(tmp_path: Path) -> None:
    """One rollup per shard remains for late writers. Readers have an hour."""
    clock = StuckClock()
    location = await fed(tmp_path, 6, clock=clock)
    _, rendition = await location.sources.find("c")
    ids = [*rendition.roles]
    reader, zombie = await location.collection("c"), await location.sources.ingester("c")
    await reader.refresh()
    await location.sources.drop("c")
    last = (await collect(location, after_us=None))[-1]
    assert (last.name, last.deleted) == (DROPPED_NAME, 0)
    assert all(objects(tmp_path, shard) for shard in ids[:1])
    clock.wall_us += HOUR_US
    assert (await collect(location, after_us=None))[-1].deleted >= 18
    left = [p for shard in ids for p in (tmp_path / "lake" / "shard" / shard).rglob("*")]
    assert {path.parent.name for path in left if path.is_file()} == {"rollup"}
    assert len([path for path in left if path.is_file()]) == len(ids)
    assert [one.name for one in await collect(location, after_us=None)] == [CATALOG_NAME]
    for as_of in (None, 3_000):
        with pytest.raises(NoSuchCollection, match="was dropped after this process opened it"):
            await reader.snapshot(as_of)
    for shard in zombie.written:
        assert (await shard.upper()).is_empty

    # A new source of the same name has nothing in common with the old one.
    again = await fed(tmp_path, 2, clock=clock)
    assert (await (await again.collection("c")).describe()).rows == 2


async def test_a_source_without_any_ingest_is_dropped_too(tmp_path: Path) -> None:
    """The shards of such a source were never written, and no process can write them afterwards."""
    location = await fed(tmp_path, 0)
    zombie = await location.sources.ingester("c")
    await location.sources.drop("c")
    await collect(location)
    assert [one.name for one in await collect(location, after_us=None)] == [CATALOG_NAME]
    for shard in zombie.written:
        assert (await shard.refresh()).upper is None


async def test_the_catalog_stays_small(tmp_path: Path) -> None:
    """The catalog stays small, although sources come and go."""
    location = await open_location(str(tmp_path / "lake"), create=True)
    (tmp_path / "in").mkdir()
    for number in range(12):
        spec = SourceSpec(name=f"s{number}", files=str(tmp_path / "in"), schema="k bigint")
        await location.sources.create(spec)
        await location.sources.drop(f"s{number}")
    await collect(location)
    await collect(location)
    await compact(location)
    state = await location.controller.shard.refresh()
    assert state.totals.rows <= 8, "a hold stands just before the newest change"
    assert not (await location.controller.catalog()).sources


async def test_a_follower_merges_in_the_background(tmp_path: Path) -> None:
    """A followed source has few batches after many ticks, without any action by the user."""
    location = await fed(tmp_path, 0)
    ingester = await location.sources.ingester("c")
    inputs = tmp_path / "in-c"
    ticks = 0

    def on_tick(progress: RunProgress) -> None:
        nonlocal ticks
        ticks += progress.tick is not None and progress.tick.rows > 0
        text = json.dumps({"k": ticks % 2, "at": 1_000 * ticks}) + "\n"
        (inputs / f"{ticks:03}.jsonl").write_text(text)

    await run_ingest(
        ingester,
        follow=True,
        interval_us=1_000,
        on_tick=on_tick,
        stop=lambda: ticks >= 60,
        merges=True,
    )
    assert ticks >= 60
    for shard in (*ingester.outputs, ingester.remap):
        assert len((await shard.refresh()).batches) < 30
    found = await table_of(location)
    assert {*found.column("at").to_pylist()} == {58_000, 59_000}


async def test_a_merge_that_cannot_be_made_stops_no_row(tmp_path: Path) -> None:
    """The ingester reports a damaged part, and continues to take rows."""
    await fed(tmp_path, 20)
    # The location that wrote the part still has it in memory.
    ingester: Ingester = await (await reopened(tmp_path)).sources.ingester("c")
    shard = ingester.errors
    lost = next(p.path for b in shard.state.batches for p in b.parts)
    assert lost is not None
    (tmp_path / "lake" / lost).unlink()
    merges = BackgroundMerges([shard])
    for _ in range(200):
        merges.look()
        if merges.trouble:
            break
        await ingester.clock.sleep(5_000)
    assert "missing" in merges.trouble[shard.id]
    merges.look()
    await merges.stop()
    await feed(tmp_path / "in-c", 20)
    assert (await run_once(ingester)).rows == 1
