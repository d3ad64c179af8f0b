"""`source check`: rows that are computed again are compared with the stored ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.sources import bind, collect, compact, ingest, lake_of, reopened, write_numbers
from tidelog.collection.ingest import compute, program
from tidelog.collection.ingest.checking import SourceCheck, check_source
from tidelog.collection.ingest.envelope import StampedRows, stamp_rows
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.errors import UsageError
from tidelog.location import Location


@pytest.fixture(autouse=True)
def digests_anew() -> Iterator[None]:
    """Let each test compute the digests of its own code."""
    program._digest.cache_clear()
    yield
    program._digest.cache_clear()


def without_number(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let this process lose the rows of one number, which no sample has."""

    def cut(rows: pa.Table, *args: object, **options: object) -> StampedRows:
        if "n" in rows.column_names:
            rows = rows.filter(pc.field("n") != number)
        return stamp_rows(rows, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(compute, "stamp_rows", cut)


async def fill(folder: Path, lake: Location, *files: tuple[int, ...]) -> None:
    """Ingest a file of numbers in each tick; a file of no number is bad."""
    for numbers in files:
        path = folder / "in" / f"{numbers[0]:04d}.jsonl"
        write_numbers(path, *numbers)
        with path.open("a") as file:
            file.write("bad\n")
        await ingest(lake, "c")


async def objects(lake: Location) -> set[str]:
    """Return the keys of all objects of the location."""
    return {entry.key async for entry in lake.store.list("")}


async def parts(lake: Location) -> set[str]:
    """Return the keys of all stored parts."""
    return {key for key in await objects(lake) if key.endswith(".parquet")}


@pytest.mark.parametrize("options", [{}, {"shards": 3}, {"envelope": "upsert", "key": ("n",)}])
async def test_equal_rows_pass_and_leave_no_object(
    tmp_path: Path, options: dict[str, object]
) -> None:
    """The check computes the rows and bad rows of all ticks, also after a merge."""
    lake = await lake_of(tmp_path, **options)
    await fill(tmp_path, lake, (1, 2), (3, 1), (4,))
    await compact(lake)
    before, seen = await objects(lake), list[SourceCheck]()

    found = await lake.sources.check("c", on_binding=seen.append)

    assert (found.bindings, found.rows, found.first) == (3, 8, None)
    assert (found.lower, found.unchecked, len(seen)) == (0, (), 3)
    assert (found.differing.num_rows, found.differing_errors.num_rows) == (0, 0)
    assert await objects(lake) == before


async def test_the_first_wrong_row_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingester lost a row for a reason that no sample shows; later ticks differ too."""
    lake = await lake_of(tmp_path)
    await fill(tmp_path, lake, (1, 2))
    first = (await lake.sources.ingester("c")).upper.time - 1
    without_number(monkeypatch, 3)
    await fill(tmp_path, lake, (3, 4))
    second = (await lake.sources.ingester("c")).upper.time - 1
    await fill(tmp_path, lake, (5, 3))
    monkeypatch.undo()

    found = await (await reopened(tmp_path)).sources.check("c")

    assert (found.bindings, found.first) == (2, second)
    assert found.differing.to_pylist() == [{"n": 3, "at": 3_000, "_time": second, "_diff": 1}]
    later = await lake.sources.check("c", since=second + 1)
    assert (later.bindings, later.first is None) == (1, False)
    assert (await lake.sources.check("c", until=first)).first is None


async def test_a_wrong_bad_row_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored reason differs from the computed one."""
    lake = await lake_of(tmp_path)
    await fill(tmp_path, lake, (1,))
    whole = compute.error_updates
    monkeypatch.setattr(compute, "error_updates", lambda errors, job: whole(errors[:0], job))
    monkeypatch.setattr(
        "tidelog.collection.ingest.engine.error_updates",
        lambda errors, job: whole(errors[:0], job),
    )

    found = await lake.sources.check("c")

    assert (found.first is None, found.differing.num_rows) == (False, 0)
    assert found.differing_errors.column("_diff").to_pylist() == [-1]


async def test_data_that_are_gone_are_listed_and_do_not_differ(tmp_path: Path) -> None:
    """The other ticks are checked."""
    lake = await lake_of(tmp_path)
    await fill(tmp_path, lake, (1,), (2,), (3,))
    (tmp_path / "in" / "0002.jsonl").unlink()

    found = await lake.sources.check("c")

    assert (found.bindings, found.rows, found.first) == (2, 4, None)
    (missed,) = found.unchecked
    assert "0002.jsonl" in missed.reason
    assert missed.lower < missed.upper


async def test_only_distinct_times_are_checked(tmp_path: Path) -> None:
    """A source that forgets its bindings has the newest one only."""
    lake = await lake_of(tmp_path, keep_bindings=False)
    await fill(tmp_path, lake, (1,), (2,), (3, 4))

    found = await lake.sources.check("c")

    assert (found.bindings, found.rows, found.first) == (1, 3, None)
    with pytest.raises(UsageError, match=r"can be checked: its checkable times are after"):
        await lake.sources.check("c", until=0)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_written_parts_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """The sweeper deletes those of a killed check."""
    lake = await lake_of(tmp_path, shards=2)
    await fill(tmp_path, lake, tuple(range(5_000)))
    before = await parts(lake)
    if is_killed:

        async def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("tidelog.collection.ingest.checking._Checker._compare", die)
            patch.setattr("tidelog.collection.ingest.checking._Checker._delete", die)
            with pytest.raises(KeyboardInterrupt):
                await lake.sources.check("c")
        assert len(await parts(lake)) == len(before) + 2
        for _ in range(3):
            await collect(lake, sweeps=True)
    else:
        assert (await lake.sources.check("c")).rows == 5_001

    assert await parts(lake) == before


async def test_a_check_meets_ingesters_and_merges(tmp_path: Path) -> None:
    """Both run at once, and no difference appears."""
    lake = await lake_of(tmp_path, envelope="upsert", key=("n",))
    await fill(tmp_path, lake, (1, 2), (3, 1))
    other = await reopened(tmp_path)

    async def work() -> None:
        for number in range(5, 9):
            await fill(tmp_path, other, (number, 1))
            await compact(other)

    for found in await asyncio.gather(*(lake.sources.check("c") for _ in range(3)), work()):
        assert found is None or found.first is None


@pytest.mark.parametrize("shards", [1, 3])
async def test_an_altered_source_is_checked_with_its_newest_columns(
    tmp_path: Path, shards: int
) -> None:
    """Rows from before the alteration have nulls there, and may be in another shard than now."""
    lake = await lake_of(tmp_path, shards=shards)
    await fill(tmp_path, lake, (1, 2))
    await lake.sources.alter("c", add="note varchar")
    await fill(tmp_path, lake, (3,))

    found = await lake.sources.check("c")

    assert (found.bindings, found.rows, found.first) == (2, 5, None)


async def test_skipped_data_that_are_there_again_do_not_differ(tmp_path: Path) -> None:
    """The collection has one bad row in their place."""
    lake = await lake_of(tmp_path)
    await fill(tmp_path, lake, (1,))
    file = write_numbers(tmp_path / "in" / "0002.jsonl", 2)
    assert await bind(await lake.sources.ingester("c"))
    text = file.read_bytes()
    file.unlink()
    await lake.sources.skip("c", "0002.jsonl")
    await ingest(lake, "c")
    file.write_bytes(text)

    found = await (await reopened(tmp_path)).sources.check("c")

    assert (found.bindings, found.first) == (1, None)
    assert [one.reason for one in found.unchecked] == ["'0002.jsonl' was skipped"]


async def test_a_former_rendition_is_checked(tmp_path: Path) -> None:
    """A user may want to know why its rows are wrong, after readers have left it."""
    lake = await lake_of(tmp_path)
    await fill(tmp_path, lake, (1, 2))
    for number, name in enumerate(("c2", "c3")):
        await lake.renditions.create(RenditionSpec(name=name), of="c")
        await ingest(lake, name)
        await lake.renditions.handover("c", to=name)
        write_numbers(tmp_path / "in" / f"1{number}.jsonl", 10 + number)
        await ingest(lake, name)

    found = await lake.sources.check("c2")

    assert (found.bindings, found.first) == (2, None)


async def test_data_that_vanish_while_the_source_changes_are_listed(tmp_path: Path) -> None:
    """The check goes on with the states that it has."""
    lake = await lake_of(tmp_path)
    await fill(tmp_path, lake, (1,), (2,), (3,))
    other = await reopened(tmp_path)
    await other.sources.alter("c", add="note varchar")
    await fill(tmp_path, other, (4,))
    found: list[SourceCheck] = []

    async def work() -> None:
        ingester = await lake.sources.ingester("c")
        for number in (2, 3):
            (tmp_path / "in" / f"{number:04d}.jsonl").unlink()
        found.append(await check_source(ingester))

    await work()
    assert (found[0].bindings, found[0].first, len(found[0].unchecked)) == (2, None, 2)


async def test_times_without_a_binding_are_refused(tmp_path: Path) -> None:
    """The message says whether the source has data at all."""
    lake = await lake_of(tmp_path)
    with pytest.raises(UsageError, match=r"'c' was not ingested yet"):
        await lake.sources.check("c")
    await fill(tmp_path, lake, (1,))
    with pytest.raises(UsageError, match=r"since= must not be after until="):
        await lake.sources.check("c", since=9, until=8)
    with pytest.raises(UsageError, match=r"at these times can be checked"):
        await lake.sources.check("c", since="2999-01-01")
