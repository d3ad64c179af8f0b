"""Copied renditions: their rows come from another rendition, although the input is gone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from kit.renditions import handle_of, rows_at, rows_of, sums
from kit.sources import collect, compact, ingest, lake_of, reopened, run_once, write_numbers
from tidelog.collection.ingest import copy_job
from tidelog.collection.ingest.copier import Copier
from tidelog.collection.ingest.copying import COPY_HOLD, plan_upper
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.errors import (
    GoneError,
    HandoverRefused,
    LocationError,
    SourceDropped,
    UsageError,
)
from tidelog.location import Location
from tidelog.persist.states.batch import make_batch
from tidelog.rowhash import RowSum


async def fill(lake: Location, folder: Path, *numbers: int, name: str = "c") -> None:
    write_numbers(folder / "in" / f"{numbers[0]:04d}.jsonl", *numbers)
    await ingest(lake, name)


async def copied(lake: Location, name: str, shards: int, *, bytes_max: int = 1) -> list[int]:
    """Create and fill a copy of the active rendition; return the uppers of its ticks."""
    await lake.renditions.create(RenditionSpec(name=name, shards=shards, copy=True), of="c")
    ingester = await lake.sources.ingester(name, bytes_max=bytes_max)
    uppers = []
    while (tick := await ingester.copy()) is not None:
        uppers.append(tick.upper)
    return uppers


async def holds_of_copies(lake: Location) -> set[str]:
    """Return the holds of copies on all shards of all renditions."""
    catalog = await lake.controller.catalog()
    found = set()
    for rendition in catalog.renditions.values():
        for one in rendition.roles:
            state = await lake.renditions._shard(one).refresh()
            found |= {name for name in state.holds if name.startswith(COPY_HOLD)}
    return found


def remove_files(folder: Path) -> None:
    for path in (folder / "in").iterdir():
        path.unlink()


async def test_one_shard_becomes_eight_and_one_again_without_the_files(tmp_path: Path) -> None:
    """The sums of all rows and bad rows are equal, interval by interval."""
    lake = await lake_of(tmp_path)
    for n in range(6):
        text = f'{{"n": "bad{n}", "at": 1}}\n'
        (tmp_path / "in" / f"bad{n}.jsonl").write_text(text)
        await fill(lake, tmp_path, *range(10 * n, 10 * n + 9))
    remove_files(tmp_path)

    uppers = await copied(lake, "c8", 8)
    await lake.renditions.handover("c", to="c8")
    await ingest(lake, "c")
    again = await copied(lake, "c1", 1)

    assert len(uppers) == 6
    assert again[:6] == uppers
    assert len(again) == 7
    for is_errors in (False, True):
        found = [
            sums(await handle_of(lake, name, is_errors=is_errors), uppers)
            for name in ("c", "c8", "c1")
        ]
        assert found[0] == found[1] == found[2]
        assert RowSum.zero() not in found[0]
    assert [len((await handle_of(lake, name)).shards) for name in ("c", "c8", "c1")] == [1, 8, 1]
    assert (await lake.renditions.diff("c8", "c1")).num_rows == 0
    assert not await holds_of_copies(lake)


@pytest.mark.parametrize("keeps", [False, True])
async def test_after_the_copy_ingestion_goes_on_from_the_source(
    tmp_path: Path, keeps: bool
) -> None:
    """Both renditions obey the same bindings, also if the source forgets the earlier ones."""
    lake = await lake_of(tmp_path, keep_bindings=keeps)
    for n in range(4):
        await fill(lake, tmp_path, n)
    remove_files(tmp_path)
    await lake.renditions.create(RenditionSpec(name="c2", shards=3, copy=True), of="c")
    await fill(lake, tmp_path, 7)
    await compact(lake)
    done = await run_once(await lake.sources.ingester("c2"))
    assert done.rows == 5
    await fill(lake, tmp_path, 8)
    await compact(lake)
    await fill(lake, tmp_path, 9)
    await compact(lake)

    assert (await run_once(await lake.sources.ingester("c2"))).rows == 2

    assert (await lake.renditions.diff("c", "c2")).num_rows == 0
    time = await lake.renditions.handover("c", to="c2")
    await fill(lake, tmp_path, 10)
    await lake.renditions.drop("c")
    await fill(lake, tmp_path, 11)
    await compact(lake)
    await collect(lake, sweeps=True)
    assert [n for n, _ in await rows_at(await reopened(tmp_path))] != []
    numbers = sorted(n for n, _ in await rows_at(await reopened(tmp_path)))
    assert numbers == [0, 1, 2, 3, 7, 8, 9, 10, 11]
    assert (await reopened(tmp_path)).clock.now_us() // 1_000 >= time


async def test_retention_and_merges_do_not_change_what_is_copied(tmp_path: Path) -> None:
    """Times before the earliest readable one count as that time, and later ones are exact."""
    lake = await lake_of(tmp_path, envelope="upsert", key=("n",))
    for n in range(4):
        await fill(lake, tmp_path, n, 50)
    await lake.collections.retain("c", 0)
    since = (await handle_of(lake, "c")).since.time
    assert since > 0
    await lake.renditions.create(RenditionSpec(name="c2", shards=3, copy=True), of="c")
    for n in range(4, 8):
        await fill(lake, tmp_path, n, 50, 60)
        await compact(lake)
        await collect(lake, sweeps=True)
    remove_files(tmp_path)
    ingester = await lake.sources.ingester("c2", bytes_max=1)
    uppers = []
    while (tick := await ingester.copy()) is not None:
        uppers.append(tick.upper)

    found = await handle_of(lake, "c2")
    assert found.since.time == since
    for upper in uppers:
        assert await rows_of(lake, "c2", upper - 1) == await rows_of(lake, "c", upper - 1)
    assert await rows_of(lake, "c2", since) == Counter(
        {**{(n, 1_000 * n): 1 for n in range(3)}, (50, 50_000): 1}
    )


async def test_a_copy_remembers_deletions(tmp_path: Path) -> None:
    """A late row of a deleted key does not come back."""
    columns = "n bigint, at bigint, gone boolean"
    lake = await lake_of(
        tmp_path,
        schema=columns,
        envelope="upsert",
        key=("n",),
        time_column="at",
        delete_when="gone",
        lateness="0s",
    )
    place = tmp_path / "in"
    rows = [(1, 1_000, 0), (2, 2_000, 0), (1, 3_000, 1), (3, 4_000, 0), (2, 5_000, 1)]
    rows.append((4, 6_000, 0))
    for n, (k, at, gone) in enumerate(rows):
        flag = "true" if gone else "false"
        (place / f"{n}.jsonl").write_text(f'{{"n": {k}, "at": {at}, "gone": {flag}}}\n')
        await run_once(await lake.sources.ingester("c"))
        await compact(lake)
    remove_files(tmp_path)
    await copied(lake, "c2", 4)

    (place / "late.jsonl").write_text(
        '{"n": 1, "at": 2500, "gone": false}\n{"n": 2, "at": 4500, "gone": false}\n'
        '{"n": 5, "at": 7000, "gone": false}\n'
    )
    for name in ("c", "c2"):
        await run_once(await lake.sources.ingester(name))

    newest = (await handle_of(lake, "c2")).upper.time - 1
    found = await rows_of(lake, "c2", newest)
    assert sorted(n for n, *_ in found) == [3, 4, 5]
    assert found == await rows_of(lake, "c", newest)
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0


@pytest.mark.parametrize(
    "given", [{"schema": "n bigint"}, {"envelope": "upsert"}, {"lateness": "1s"}]
)
async def test_a_copy_cannot_decode_by_other_options(given: dict[str, Any]) -> None:
    """The message says so before any request."""
    spec = RenditionSpec(name="c2", copy=True, **given)

    with pytest.raises(UsageError, match=f"leave out {next(iter(given))}=, or copy=True"):
        spec.check()


async def test_a_source_whose_columns_change_is_not_copied(tmp_path: Path) -> None:
    """Its bindings name the columns by a number."""
    lake = await lake_of(tmp_path)
    await fill(lake, tmp_path, 1)
    await lake.sources.alter("c", add="more bigint")

    with pytest.raises(UsageError, match="has changed its columns, so its rows cannot be copied"):
        await lake.renditions.create(RenditionSpec(name="c2", copy=True), of="c")


async def test_neither_rendition_is_dropped_unnoticed_during_a_copy(tmp_path: Path) -> None:
    """The first one must stay until its rows are copied. A dropped copy leaves no hold."""
    lake = await lake_of(tmp_path)
    for n in range(3):
        await fill(lake, tmp_path, n)
    for name in ("c2", "c3"):
        await lake.renditions.create(RenditionSpec(name=name, copy=True), of="c")
    assert (await lake.renditions.describe("c2")).copied_from == "c"
    ingester = await lake.sources.ingester("c2", bytes_max=1)
    await ingester.copy()
    assert len(await holds_of_copies(lake)) == 2
    await lake.renditions.drop("c3")
    assert len(await holds_of_copies(lake)) == 1
    await run_once(await lake.sources.ingester("c2"))
    assert not await holds_of_copies(lake)
    await lake.renditions.create(RenditionSpec(name="c4", copy=True), of="c")
    await lake.renditions.handover("c", to="c2")
    await ingest(lake, "c")

    with pytest.raises(HandoverRefused, match="'c4' still copies the rows of 'c'"):
        await lake.renditions.drop("c")
    with pytest.raises(UsageError, match="drop 'c' first"):
        await lake.renditions.drop("c2")
    await run_once(await lake.sources.ingester("c4"))
    await lake.renditions.drop("c")
    assert sorted(n for n, _ in await rows_at(lake)) == [0, 1, 2]
    assert (await lake.renditions.describe("c4")).copied_from is None
    await fill(lake, tmp_path, 5, name="c4")
    await ingest(lake, "c")
    assert (await lake.renditions.diff("c2", "c4")).num_rows == 0


async def test_an_incomplete_copy_is_not_copied(tmp_path: Path) -> None:
    """Its upper may be between two bindings, so a copy of it could not go on from there."""
    lake = await lake_of(tmp_path)
    await fill(lake, tmp_path, 1)
    await lake.renditions.create(RenditionSpec(name="c2", copy=True), of="c")
    ingester = await lake.sources.ingester("c2")
    with patch.object(Copier, "_end", return_value=False):
        await ingester.copy()
    await lake.renditions.handover("c", to="c2")

    with pytest.raises(UsageError, match="'c2' is a copy that is not complete"):
        await lake.renditions.create(RenditionSpec(name="c3", copy=True), of="c")
    await ingest(lake, "c2")
    await lake.renditions.create(RenditionSpec(name="c3", copy=True), of="c")


async def test_all_sources_are_ingested_with_their_copies(tmp_path: Path) -> None:
    """The copies come to the end of their copy, and go on from the source."""
    lake = await lake_of(tmp_path)
    for n in range(3):
        await fill(lake, tmp_path, n)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2, copy=True), of="c")
    write_numbers(tmp_path / "in" / "more.jsonl", 8)

    await lake.sources.ingest_all()
    await lake.sources.ingest_all()

    assert not await holds_of_copies(lake)
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0
    newest = (await handle_of(lake, "c2")).upper.time - 1
    assert sorted(n for n, _ in await rows_of(lake, "c2", newest)) == [0, 1, 2, 8]


async def test_a_large_step_is_written_in_several_parts(tmp_path: Path) -> None:
    """The rows of a step need not fit into memory."""
    lake = await lake_of(tmp_path)
    for n in range(8):
        await fill(lake, tmp_path, *range(100 * n, 100 * n + 50))
    remove_files(tmp_path)

    with patch.object(copy_job, "GATHERED_BYTES", 2_000):
        uppers = await copied(lake, "c2", 2, bytes_max=10**9)

    assert len(uppers) == 1
    found = await handle_of(lake, "c2")
    parts = [part for state in found.states for batch in state.batches for part in batch.parts]
    assert len(parts) > 6
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0


async def test_a_copy_whose_hold_was_dropped_stops(tmp_path: Path) -> None:
    """Times that were merged since would be wrong, so the error names the remedy."""
    lake = await lake_of(tmp_path, retain="0s")
    for n in range(3):
        await fill(lake, tmp_path, n)
    await lake.renditions.create(RenditionSpec(name="c2", copy=True), of="c")
    ingester = await lake.sources.ingester("c2", bytes_max=1)
    await ingester.copy()
    for n in range(3, 6):
        await fill(lake, tmp_path, n)
    (name,) = await holds_of_copies(lake)
    await (await handle_of(lake, "c")).drop_hold(name)
    await fill(lake, tmp_path, 7)

    with pytest.raises(GoneError, match="'c' has given up times before all of its rows"):
        await run_once(await lake.sources.ingester("c2", bytes_max=1))
    await lake.renditions.drop("c2")
    assert not await holds_of_copies(lake)


@pytest.mark.parametrize(
    ("after", "bytes_max", "expected"),
    [
        (0, 1, (10, 50)),
        (0, 30, (20, 30)),
        (0, 59, (20, 30)),
        (0, 60, (30, 0)),
        (0, 10**6, (30, 0)),
        (14, 1, (20, 30)),
    ],
)
def test_a_step_ends_where_a_batch_ends(
    after: int, bytes_max: int, expected: tuple[int, int]
) -> None:
    """It has as many batches as fit, and at least one; its end is past the first readable time."""
    bounds = [(0, 10, 10), (10, 20, 20), (20, 40, 30)]
    batches = [
        replace(make_batch([], lower=lower, upper=upper), size_bytes=size)
        for lower, upper, size in bounds
    ]

    assert plan_upper(batches, after, 30, bytes_max) == expected


async def test_rows_that_are_held_back_come_after_the_copy(tmp_path: Path) -> None:
    """The copy ends between two bindings, and the next one reads the held rows from the files."""
    lake = await lake_of(tmp_path, time_column="at", lateness="10s")
    for n in (1, 4, 20, 21):
        await fill(lake, tmp_path, n)
    await copied(lake, "c2", 3)
    write_numbers(tmp_path / "in" / "later.jsonl", 15, 40)

    for name in ("c", "c2"):
        await run_once(await lake.sources.ingester(name, final=True))

    newest = (await handle_of(lake, "c2")).upper.time - 1
    numbers = sorted(n for n, _ in await rows_of(lake, "c2", newest))
    assert numbers == [1, 4, 15, 20, 21, 40]
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0


async def test_copied_rows_are_those_that_the_source_gives(tmp_path: Path) -> None:
    """A check of the source computes them again, while the files are still there."""
    lake = await lake_of(tmp_path, envelope="upsert", key=("n",))
    for n in range(4):
        await fill(lake, tmp_path, n, 50)
    await copied(lake, "c2", 3, bytes_max=10**9)

    found = await lake.sources.check("c2")

    assert (found.first, found.bindings, len(found.unchecked)) == (None, 4, 0)


async def test_a_copy_is_checked_against_the_source(tmp_path: Path) -> None:
    """The times that were merged before the copy are not distinct, and the others are equal."""
    lake = await lake_of(tmp_path, retain="1h")
    for number in range(1, 5):
        await fill(lake, tmp_path, number)
    since = (await lake.sources.ingester("c")).upper.time - 1
    for shard in (await lake.sources.ingester("c")).written:
        await shard.move_hold("history", since)
    await compact(lake)
    await lake.renditions.create(RenditionSpec(name="c2", shards=3, copy=True), of="c")
    with pytest.raises(UsageError, match=r"'c2' has not copied all rows yet"):
        await lake.sources.check("c2")
    with pytest.raises(UsageError, match=r"'c2' has not copied all rows yet"):
        await lake.sources.get_binding("c2", "0001.jsonl", 0)
    await ingest(lake, "c2")
    await fill(lake, tmp_path, 5, name="c2")

    found = await lake.sources.check("c2")

    assert (found.bindings, found.rows, found.first) == (1, 1, None)


async def test_an_ingester_tells_of_a_drop_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is still taken, so the drop comes before a new rendition of that name."""
    lake = await lake_of(tmp_path)
    await fill(lake, tmp_path, 1, 2)
    await lake.renditions.create(RenditionSpec(name="c2"), of="c")
    await ingest(lake, "c2")

    async def die(*_: object) -> None:
        raise LocationError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(type(lake.controller), "drop_rendition", die)
        with pytest.raises(LocationError):
            await lake.renditions.drop("c2")
    write_numbers(tmp_path / "in" / "9.jsonl", 9)

    told = r"rendition 'c2' was dropped .* finish the drop first, with 'tidelog rendition drop c2'"
    with pytest.raises(SourceDropped, match=told):
        await ingest(lake, "c2")
    await lake.renditions.drop("c2")
    await lake.renditions.create(RenditionSpec(name="c2"), of="c")
    await ingest(lake, "c2")
