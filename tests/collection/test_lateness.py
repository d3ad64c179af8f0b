"""`--lateness`: the collection stays behind by that much, and rows so late are in time.

The model is a list of all rows so far, without ticks, bindings or ranges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.clocks import OneThread
from kit.dying import DiesWriting
from kit.shelf_kind import Row, Shelf, empty_shelves, shelf_row
from kit.sources import bind, table_of
from tidelog.collection.ingest.skip import skip_lost
from tidelog.collection.ingest.tick import Tick
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import LocationError, SourceRewritten, UsageError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import FaultyStore

FIRST = 1_000_000
LATENESS = 1_000
TICKS_MAX = 100  # A binding advances upper by at least a millisecond.


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


def row(k: int, at: int, *, gone: bool = False) -> Row:
    return shelf_row(k, FIRST + at, gone=gone)


UPSERT: dict[str, Any] = {"envelope": "upsert", "key": ("k",), "delete_when": "gone"}


async def location_with(**asked: Any) -> Location:
    given = {"name": "s", "kind": "shelf", "time_column": "at", "lateness": "1s", **asked}
    store = given.pop("store", None) or MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=OneThread(), store=store)
    await location.sources.create(SourceSpec(**given))
    return location


async def run(location: Location, *, bytes_max: int = 1_000, final: bool = False) -> list[Tick]:
    """Ingest everything available, and return the ticks."""
    ingester = await location.sources.ingester("s", bytes_max=bytes_max, final=final)
    head = await ingester.source.head()
    ticks = []
    while (tick := await ingester.tick(head)) is not None:
        ticks.append(tick)
    return ticks


async def contents(location: Location, as_of: int) -> list[tuple[int, int]]:
    found = await table_of(location, "s", as_of)
    return sorted((one["k"], one["at"]) for one in found.to_pylist() for _ in range(one["_diff"]))


async def upper_of(location: Location) -> int:
    collection = await location.collection("s")
    await collection.refresh()
    return min(shard.state.upper_frontier.time for shard in collection.shards)


def newest(rows: Sequence[Row], as_of: int) -> list[tuple[int, int]]:
    """Return the contents at a time: the newest row of each key, unless it is a deletion."""
    found: dict[int, Row] = {}
    for one in rows:
        if one["at"] <= as_of and (one["k"] not in found or found[one["k"]]["at"] <= one["at"]):
            found[one["k"]] = one
    return sorted((k, one["at"]) for k, one in found.items() if not one["gone"])


steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3_000), st.booleans()), max_size=5),
        st.booleans(),
    ),
    max_size=4,
)


def in_time(given: Sequence[tuple[int, int, bool]], before: Sequence[Row]) -> list[Row]:
    """Return rows after those before, none later than the lateness permits."""
    found: list[Row] = []
    for k, at, gone in given:
        most = max([0, *(one["at"] - FIRST for one in (*before, *found))])
        found.append(row(k, max(at, most - LATENESS + TICKS_MAX), gone=gone))
    return found


@given(steps=steps, bytes_max=st.sampled_from([1, 20, 1_000]), key=st.booleans())
@example(
    steps=[([(0, 1_500, False), (0, 700, False)], True), ([(0, 1_600, True)], False)],
    bytes_max=1,
    key=True,
)
@settings(max_examples=6, deadline=None)
async def test_rows_that_come_in_time_count_at_their_own_times(
    steps: list[tuple[list[tuple[int, int, bool]], bool]], bytes_max: int, key: bool
) -> None:
    """The contents at each time are right for any order and division, and after crashes."""
    there: list[Row] = []
    Shelf.rows["a"] = cast("list[Row | None]", there)
    location = await location_with(**(UPSERT if key else {}))
    ticks: list[Tick] = []
    for given_rows, dies in steps:
        there += in_time(given_rows, there)
        if dies:
            await bind(await location.sources.ingester("s", bytes_max=30))
        ticks += await run(location, bytes_max=bytes_max)
        await check(location, there, key=key)
    ticks += await run(location, bytes_max=bytes_max, final=True)

    await check(location, there, key=key)
    if there:
        assert await upper_of(location) == max(one["at"] for one in there) + 1
    assert sum(tick.late for tick in ticks) == 0
    assert sum(tick.rows for tick in ticks) == len(there)


async def check(location: Location, there: Sequence[Row], *, key: bool) -> None:
    """Compare the complete contents with the model, at each time of a row."""
    upper = await upper_of(location)
    times = {one["at"] for one in there if one["at"] < upper}
    for as_of in sorted({*times, upper - 1} if upper else ()):
        expected = newest(there, as_of)
        if not key:
            expected = sorted((one["k"], one["at"]) for one in there if one["at"] <= as_of)
        assert await contents(location, as_of) == expected


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
async def test_whoever_dies_at_whichever_write_changes_nothing(landed: bool) -> None:
    """After a crash at any write, the next run finds the waiting rows in the bindings alone."""
    for number in range(landed, 100, 2):  # Each case of `landed` takes every second write.
        there = [row(n % 2, 700 * n % 1_900 + 300 * n) for n in range(5)]
        store, process = MemoryStore(name="memory://"), DiesWriting(number, landed)
        location = await location_with(store=store, **UPSERT)
        faulty = FaultyStore(store, toss=process.toss)
        dying = await open_location("memory://", clock=OneThread(), store=faulty)
        Shelf.rows["a"] = cast("list[Row | None]", there[:3])
        with suppress(LocationError):
            await run(dying, bytes_max=1_000)
            Shelf.rows["a"] = cast("list[Row | None]", there)
            await run(dying, bytes_max=1_000, final=True)
        Shelf.rows["a"] = cast("list[Row | None]", there)
        await run(location, bytes_max=1_000, final=True)
        await check(location, there, key=True)
        assert await upper_of(location) == max(one["at"] for one in there) + 1
        if not process.died:
            break
    assert 3 <= number < 100


async def test_two_ingesters_compute_the_same() -> None:
    """One ingester remembers the waiting rows, the other reads them from the bindings."""
    there = [row(n % 3, 700 * n % 1_900 + 200 * n) for n in range(9)]
    Shelf.rows["a"] = cast("list[Row | None]", there)
    location = await location_with(**UPSERT)
    pair = [await location.sources.ingester("s", bytes_max=20, final=n == 1) for n in range(2)]
    head = await pair[0].source.head()
    unchecked = 0
    while True:
        done = [await pair[n].tick(head) for n in (0, 1)]
        await bind(await location.sources.ingester("s", bytes_max=30))
        unchecked += sum(tick.unchecked for tick in done if tick is not None)
        if done[1] is None:
            break
    await check(location, there, key=True)
    assert unchecked == 0


async def test_lateness_holds_upper_back_and_final_ends_the_wait() -> None:
    """Rows within the lateness are in time. Later rows count as late, and are ingested too."""
    Shelf.rows["a"] = [row(1, 0), row(2, 5_000)]
    location = await location_with()

    (first,) = await run(location)
    assert (first.rows, first.late, first.upper) == (1, 0, FIRST + 5_000 - LATENESS + 1)
    Shelf.rows["a"] += [row(3, 4_500), row(4, 100)]
    (second,) = await run(location)
    assert (second.rows, second.late) == (1, 1)
    (last,) = await run(location, final=True)
    assert (last.rows, last.late, last.upper) == (2, 0, FIRST + 5_001)
    found = await contents(location, last.upper - 1)
    assert found == [(1, FIRST), (2, FIRST + 5_000), (3, FIRST + 4_500), (4, FIRST + 100)]
    assert await run(location, final=True) == []


async def test_what_is_held_back_is_still_needed() -> None:
    """The kind may release only the rows that are in, not those held back."""
    Shelf.rows["a"] = [row(1, 0), row(2, 5_000)]
    location = await location_with()
    await run(location)
    assert Shelf.held[-1] == ({"a": 0}, False)

    Shelf.rows["a"].append(row(3, 9_000))
    await run(location)
    assert Shelf.held[-1] == ({"a": 2}, False)


async def test_bad_rows_of_what_is_held_back_are_told_once() -> None:
    """The ingester reads their range again in each tick, but reports a bad row once."""
    Shelf.rows["a"] = [row(1, 0), {**row(2, 9), "at": None}, row(3, 5_000)]
    location = await location_with()

    ticks = await run(location)
    Shelf.rows["a"].append(row(4, 5_500))
    ticks += [*await run(location), *await run(location, final=True)]
    assert sum(tick.bad for tick in ticks) == 1
    assert sum(tick.rows for tick in ticks) == 3


async def test_files_are_held_back_too(tmp_path: Path) -> None:
    """The ingester reads the ranges of held-back rows again, and verifies their bytes."""
    file = tmp_path / "1.jsonl"

    def write(*rows: Row) -> None:
        with file.open("a") as sink:
            sink.writelines(json.dumps({"k": r["k"], "at": r["at"]}) + "\n" for r in rows)

    write(row(1, 0), row(2, 5_000), row(3, 4_200))
    location = await location_with(kind="files", files=str(tmp_path / "*.jsonl"))
    (first,) = await run(location)
    assert (first.rows, first.upper) == (1, FIRST + 4_001)
    write(row(4, 5_200), row(5, 4_100), row(6, 4_300))
    (second,) = await run(location)
    assert (second.rows, second.late, second.upper) == (2, 0, FIRST + 4_201)
    assert await contents(location, FIRST + 4_200) == [
        (1, FIRST),
        (3, FIRST + 4_200),
        (5, FIRST + 4_100),
    ]
    file.write_text(file.read_text().replace("5000", "6000"))
    with pytest.raises(SourceRewritten):
        await run(location, final=True)

    await skip_lost(await location.sources.ingester("s"), "1.jsonl")
    ticks = await run(location, final=True)
    assert (sum(tick.rows for tick in ticks), sum(tick.bad for tick in ticks)) == (0, 2)
    assert await upper_of(location) == FIRST + 5_201


async def test_lateness_needs_times() -> None:
    """Rows with the time of ingestion are never late, so `--lateness` needs a time column."""
    for asked, said in (
        ({"time_column": None}, "lateness= needs time_column="),
        ({"lateness": "soon"}, "lateness= 'soon' is not a duration"),
    ):
        with pytest.raises(UsageError, match=said):
            await location_with(**asked)
