"""A log as a source: records by position, and a cursor that holds them."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clocks import OneThread, SwiftClock
from kit.dying import DiesWriting
from kit.named_logs import ALL, append, log_of
from kit.sources import bind, ingest, run_once, table_of
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import RunProgress
from tidelog.collection.ingest.tick import Tick
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError, NoSuchLog, PositionCollected, SourceRewritten, UsageError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing.faulty import FaultyStore

PROTOCOLS = pytest.mark.parametrize("protocol", ["slot", "manifest"])


async def location_on(store: Store, *, clock: SystemClock | None = None) -> Location:
    clock = clock or SwiftClock()
    return await open_location("memory://", create=True, clock=clock, store=store)


async def lake_with_log(count: int, *, protocol: str = "slot") -> Location:
    """Return a location in memory with the log ``l``, which has ``count`` records."""
    location = await location_on(MemoryStore(name="memory://"))
    await log_of(location.store, "l", count, protocol=protocol)
    return location


async def source_of(location: Location, log: str = "l", **asked: Any) -> None:
    given = {"settings": {"log": log, **asked.pop("settings", {})}, **asked}
    await location.sources.create(SourceSpec(name="s", kind="log", **given))


async def rows_in(location: Location, name: str = "s") -> list[dict[str, Any]]:
    table = await table_of(location, name)
    by = "position" if "position" in table.column_names else table.column_names[0]
    found: list[dict[str, Any]] = table.sort_by(by).to_pylist()
    return found


async def cursors_of(location: Location) -> dict[str, int]:
    found = (await (await location.log("l")).cursors()).cursors
    return {name: cursor.position for name, cursor in found.items()}


@PROTOCOLS
async def test_records_are_rows_once(protocol: str) -> None:
    """Each record is one row, in several ticks. A later ingest continues after them."""
    location = await lake_with_log(7, protocol=protocol)
    await source_of(location)

    first = await ingest(location, "s", bytes_max=3_000)
    await append(location.store, "l", 2)
    later = await ingest(location, "s", bytes_max=3_000)
    rows = await rows_in(location)
    assert len(first) > 1
    assert sum(tick.rows for tick in later) == 2
    assert [row["body"] for row in rows] == [b"l %d" % n for n in [*range(7), 0, 1]]
    assert [row["position"] for row in rows] == sorted({row["position"] for row in rows})
    assert all(row["time"].year > 2000 for row in rows)
    assert ("stream" in rows[0]) == (protocol == "slot")


@PROTOCOLS
async def test_a_cursor_holds_what_is_not_taken(protocol: str) -> None:
    """A cursor holds the records until the drop of the source. Each commit moves it."""
    location = await lake_with_log(6, protocol=protocol)
    await source_of(location)
    (name,) = await cursors_of(location)
    log = await location.log("l")
    assert name.startswith("source_s_o")

    assert (await log.collect(keep=ALL, grace_us=0)).fragments == 0
    ingester = await location.sources.ingester("s", bytes_max=1_000)
    head = await ingester.source.head()
    tick = await ingester.tick(head)
    assert tick is not None
    assert tick.left_bytes
    (taken,) = (await ingester.taken(tick.upper)).values()
    assert await cursors_of(location) == {name: taken.limit}
    assert (await log.collect(keep=ALL, grace_us=0)).fragments > 0
    await ingest(location, "s")
    assert await cursors_of(location) == {name: (await log.bounds()).next}
    assert len(await rows_in(location)) == 6
    await location.sources.drop("s")
    assert await cursors_of(location) == {}


async def test_a_cursor_that_was_deleted_is_made_again() -> None:
    """The next run recreates a deleted cursor."""
    location = await lake_with_log(2)
    await source_of(location)
    (name,) = await cursors_of(location)
    log = await location.log("l")
    await log.drop_cursor(name)

    await ingest(location, "s")
    assert list(await cursors_of(location)) == [name]


async def test_two_ingesters_take_each_record_once() -> None:
    """A collector may delete records that the other took. The slow ingester continues."""
    location = await lake_with_log(6)
    await source_of(location)
    one, two = [await location.sources.ingester("s", bytes_max=1_000) for _ in range(2)]
    head = await one.source.head()
    await bind(two)
    while (tick := await one.tick(head, may_idle=False)) is not None:
        assert tick.rows
    await (await location.log("l")).collect(keep=ALL, grace_us=0)

    assert await two.tick(head, may_idle=False) is None
    assert len(await rows_in(location)) == 6


async def test_json_is_decoded_and_bad_records_are_told() -> None:
    """The error of a bad record names its log and position."""
    location = await location_on(MemoryStore(name="memory://"))
    async with await location.logs.create("l") as log:
        await log.append([b'{"id": 1, "name": "x"}', b"no json", b'{"id": 2}'])
    await source_of(location, format="json", envelope="upsert", key=("id",))

    (tick,) = await ingest(location, "s")
    assert [(row["id"], row["name"]) for row in await rows_in(location)] == [(1, "x"), (2, None)]
    (error,) = await rows_in(location, "s_errors")
    assert (tick.bad, error["file"], error["text"]) == (1, "l", "no json")
    assert error["offset"] == (await log.bounds()).next - 2


async def test_bodies_are_text_if_they_are_asked_to_be() -> None:
    """A body that is not UTF-8 is a bad row, if the schema declares text."""
    location = await location_on(MemoryStore(name="memory://"))
    async with await location.logs.create("l") as log:
        await log.append(["grün".encode(), b"\xff\xfe"])
    await source_of(location, schema="position bigint, body varchar")

    (tick,) = await ingest(location, "s")
    assert [row["body"] for row in await rows_in(location)] == ["grün"]
    assert tick.bad == 1


@pytest.mark.parametrize("begin", ["next", "newest"])
async def test_a_source_may_begin_at_the_end_of_its_log(begin: str) -> None:
    """A source with `from=next`, or its earlier name, ingests no record from before."""
    location = await lake_with_log(3)
    await source_of(location, settings={"from": begin})
    await append(location.store, "l", 1)

    await ingest(location, "s")
    assert [row["body"] for row in await rows_in(location)] == [b"l 0"]


@PROTOCOLS
async def test_a_log_elsewhere_is_named_by_its_folder(tmp_path: Path, protocol: str) -> None:
    """A source can read a log of another location. The ingester counts its requests there."""
    theirs = await open_location(str(tmp_path / "lake"), create=True, clock=SwiftClock())
    await log_of(theirs.store, "l", 3, protocol=protocol)
    location = await location_on(MemoryStore(name="memory://"))
    await source_of(location, str(tmp_path / "lake" / "log" / "l"))

    ingester = await location.sources.ingester("s")
    summary = await run_once(ingester)
    assert summary.rows == 3
    assert ingester.source.usage().get_count > 0


async def test_an_older_copy_or_a_new_log_of_the_name_is_an_error(tmp_path: Path) -> None:
    """The positions of another log name other records."""
    location = await open_location(str(tmp_path), create=True, clock=SwiftClock())
    await log_of(location.store, "l", 3)
    await source_of(location)
    await ingest(location, "s")
    (tmp_path / "log").rename(tmp_path / "away")
    opened_again = await open_location(str(tmp_path), clock=SwiftClock())
    await log_of(opened_again.store, "l", 1)

    with pytest.raises(SourceRewritten, match="older copy or a new log replaced it"):
        await ingest(opened_again, "s")
    await append(location.store, "l", 5)
    with pytest.raises(SourceRewritten, match="has changed in the range 1 to"):
        await ingest(location, "s")


async def test_a_log_that_is_gone_says_so() -> None:
    """The error says that the log was dropped or never existed. The source can be dropped."""
    store = MemoryStore(name="memory://")
    location = await location_on(store)
    with pytest.raises(NoSuchLog, match="'tidelog log list' lists"):
        await source_of(location)
    await log_of(store, "l", 3)
    await source_of(location)
    await location.logs.drop("l", grace_us=0)

    with pytest.raises(NoSuchLog, match="was dropped"):
        await ingest(location, "s")
    await location.sources.drop("s")


async def test_records_that_were_collected_before_they_were_taken_are_an_error() -> None:
    """The error names the lost positions, and another source takes the later records."""
    location = await lake_with_log(6)
    await source_of(location)
    (name,) = await cursors_of(location)
    log = await location.log("l")
    await log.drop_cursor(name)
    await log.create_cursor("x", (await log.bounds()).next)
    await log.collect(keep=ALL, grace_us=0)

    lost = r"records 1 to 5 of the log 'l'.*source skip s l .*oldest=6"
    with pytest.raises(PositionCollected, match=lost):
        await ingest(location, "s")
    await location.sources.create(
        SourceSpec(name="rest", kind="log", settings={"log": "l", "from": "6"})
    )
    await log.append([b"later"])
    await ingest(location, "rest")
    rows = (await (await location.collection("rest")).consolidated()).to_pylist()
    assert sorted(row["position"] for row in rows) == [6, 7]
    await location.sources.drop("s")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"settings": {"from": "today"}}, "must be oldest, next or a position"),
        ({"settings": {"from": "99"}}, r"settings\['from'\]=99 is not a position"),
        ({"log": ".x"}, "cannot be the name of a log"),
        ({"schema": "position bigint, offset bigint"}, "has 'offset', which is not a column"),
    ],
)
async def test_what_cannot_be_is_refused(asked: dict[str, Any], said: str) -> None:
    """A wrong setting raises UsageError and leaves no cursor."""
    location = await lake_with_log(1)

    with pytest.raises(UsageError, match=said):
        await source_of(location, **asked)
    assert await cursors_of(location) == {}


records = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=4), max_size=5
)


@given(batches=records, bytes_max=st.sampled_from([1, 2_000, 10**9]))
@settings(max_examples=10, deadline=None)
async def test_contents_do_not_depend_on_how_a_log_is_cut(
    batches: list[list[tuple[int, int]]], bytes_max: int
) -> None:
    """Ticks have any size. With times from the data, one may end within an object."""
    location = await location_on(MemoryStore(name="memory://"))
    async with await location.logs.create("l") as log:
        for batch in batches:
            await log.append([json.dumps({"k": k, "at": at}).encode() for k, at in batch])
    await source_of(
        location,
        format="json",
        schema="k bigint, at bigint",
        time_column="at",
        envelope="upsert",
        key=("k",),
    )

    ticks: list[Tick] = await ingest(location, "s", bytes_max=bytes_max)
    newest: dict[int, int] = {}
    for k, at in (one for batch in batches for one in batch):
        newest[k] = max(at, newest.get(k, at))
    rows = await rows_in(location) if ticks else []
    assert {row["k"]: row["at"] for row in rows} == newest
    assert sum(tick.rows for tick in ticks) == sum(map(len, batches))


async def test_a_run_follows_a_log() -> None:
    """The run takes records that are appended while it waits."""
    store = MemoryStore(name="memory://")
    location = await location_on(store, clock=SystemClock())
    await log_of(store, "l", 2)
    await source_of(location)
    ingester = await location.sources.ingester("s")
    taken, rows = asyncio.Event(), 0

    def count(progress: RunProgress) -> None:
        nonlocal rows
        rows = progress.so_far.rows
        if rows:
            taken.set()

    async def write() -> None:
        await taken.wait()
        await append(location.store, "l", 3)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        group.create_task(
            run_ingest(
                ingester, follow=True, interval_us=10_000, on_tick=count, stop=lambda: rows >= 5
            )
        )
    assert len(await rows_in(location)) == 5


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
async def test_no_record_is_lost_by_failed_writes_and_collections(landed: bool) -> None:
    """The cursor never passes uncommitted records, so each record is in exactly once at the end."""
    writes = 0
    for failing in range(100):
        store = MemoryStore(name="memory://")
        location = await location_on(store, clock=OneThread())
        await log_of(store, "l", 2)
        await source_of(location)
        process = DiesWriting(failing, landed)
        faulty = FaultyStore(store, toss=process.toss)
        with suppress(LocationError):
            await ingest(await location_on(faulty, clock=OneThread()), "s", bytes_max=1_000)
        log = await location.log("l")
        await log.collect(keep=ALL, grace_us=0)

        await ingest(location, "s")
        assert [row["body"] for row in await rows_in(location)] == [b"l %d" % n for n in range(2)]
        if not process.died:
            break
        writes += 1
    assert 5 <= writes < 100
