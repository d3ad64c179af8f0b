"""Erasure: an erased row is in no stored byte, as a search of the whole location shows."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.clocks import OneThread
from kit.sources import collect, compact, run_once, table_of
from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.ingest.compute import Job
from tidelog.collection.ingest.engine import LocalEngine, TickParts
from tidelog.collection.source.binding import AddressRange
from tidelog.collection.source.port import RawSource
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import SourceDropped, TidelogError
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.values import Retention
from tidelog.location import Location, open_location
from tidelog.persist.maintenance.compactor import merge
from tidelog.persist.maintenance.merging import plan_full_merge
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.metered import usage_of
from tidelog.testing import Fault, FaultyStore, Request

SECRET = "xqzv"  # Part of no name, path or reason.
MANY = 400  # A tick with as many rows stores an object.


def found_in(store: MemoryStore, text: str = SECRET) -> list[str]:
    """Return the objects with a text in their bytes or in their Parquet columns."""
    return sorted(key for key, one in store.objects.items() if text in decoded(one.data))


def decoded(data: bytes) -> str:
    found = data.decode("latin-1")
    if data[:4] != b"PAR1":
        return found
    file = pq.ParquetFile(io.BytesIO(data))
    return found + repr(file.read().to_pylist()) + repr(file.metadata.to_dict())


async def fed(
    folder: Path, store: MemoryStore, *ticks: list[dict[str, Any] | str], **asked: Any
) -> Location:
    """Return a location whose source ``c`` took one file per tick. Texts are lines of the file."""
    (folder / "in").mkdir()
    location = await open_location("memory://lake", create=True, store=store)
    await location.sources.create(
        SourceSpec(
            name="c",
            files=str(folder / "in"),
            envelope="upsert",
            key=("k",),
            schema="k varchar, v varchar, gone boolean, at bigint",
            delete_when="gone",
            **asked,
        )
    )
    for n, rows in enumerate(ticks):
        lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
        (folder / "in" / f"{n}.jsonl").write_text("\n".join(lines) + "\n")
        await run_once(await location.sources.ingester("c"))
    return location


def row(k: str, v: str | None, at: int, *, gone: bool = False) -> dict[str, Any]:
    return {"k": k, "v": v, "gone": gone, "at": at}


async def kept_in_order(location: Location, *, full: bool, sweeps: bool) -> None:
    """Compact and collect once each, as the commands do."""
    if full:
        await compact(location)
    await collect(location, sweeps=sweeps)
    async for _ in location.maintenance.tidy(sweeps=sweeps):
        pass


@pytest.mark.parametrize("time_column", [None, "at"])
async def test_a_dropped_source_leaves_no_byte_of_a_row(
    tmp_path: Path, time_column: str | None
) -> None:
    """Inline rows, bad rows, merged rows and the status are erased with the objects."""
    store = MemoryStore()
    location = await fed(
        tmp_path,
        store,
        [row("a", SECRET, 1), f"{{ {SECRET}"],
        [row(f"{SECRET}{n}", SECRET, 2) for n in range(MANY)],
        [row("a", None, 3, gone=True), row("b", SECRET, 3)],
        time_column=time_column,
    )
    await kept_in_order(location, full=True, sweeps=False)
    assert len(found_in(store)) >= 2, "the search finds what is stored"

    await location.sources.drop("c")
    await kept_in_order(location, full=False, sweeps=False)

    assert found_in(store) == []
    assert not [key for key in store.objects if key.startswith("status/")]
    seqnos = store.puts_count
    await kept_in_order(location, full=False, sweeps=True)
    assert found_in(store) == []
    assert store.puts_count - seqnos < 6, "the shards that were dropped cost no put any more"


@pytest.mark.parametrize("many", [0, MANY])
@pytest.mark.parametrize("time_column", [None, "at"])
async def test_a_deleted_row_that_retention_has_passed_leaves_no_byte(
    tmp_path: Path, time_column: str | None, many: int
) -> None:
    """The row is erased even if the source is idle, without a later tick.

    With a time column, the key of a deletion stays, because the ingester recognises late rows of
    the key by it.
    """
    store = MemoryStore()
    key = SECRET if time_column is None else "k"
    location = await fed(
        tmp_path,
        store,
        [row("z", "stays", 1), *(row(f"n{n}", "stays", 1) for n in range(many))],
        [row(key, SECRET, 2)],
        [row(key, f"{SECRET} too", 3)],
        [row(key, None, 4, gone=True)],
        time_column=time_column,
        retain="0s",
    )
    assert found_in(store)

    await kept_in_order(location, full=True, sweeps=True)

    assert found_in(store) == []
    found = await table_of(location)
    assert found.num_rows == 1 + many
    assert found_in(store, "stays"), "the search finds what is kept"
    (tmp_path / "in" / "9.jsonl").write_text(json.dumps(row("y", "new", 9)) + "\n")
    assert (await run_once(await location.sources.ingester("c"))).rows == 1
    assert (await table_of(location)).num_rows == 2 + many


@pytest.mark.parametrize("many", [0, MANY])
@pytest.mark.parametrize("time_column", [None, "at"])
@pytest.mark.parametrize("is_merged", [False, True])
async def test_bad_rows_that_retention_has_passed_leave_no_byte(
    tmp_path: Path, time_column: str | None, many: int, is_merged: bool
) -> None:
    """Bad rows before `since` are erased, also if the source is idle or a merge kept them."""
    store = MemoryStore()
    location = await fed(
        tmp_path,
        store,
        [row("z", "stays", 1), *(f"{{ {SECRET}{n}" for n in range(1 + many))],
        [row("y", "stays", 2), f"{{ {SECRET} too"],
        [row("x", "stays", 3), "{ newest"],
        time_column=time_column,
        retain="0s",
    )
    assert found_in(store)
    before = (await table_of(location, "c_errors")).num_rows
    if is_merged:
        errors = (await location.collection("c_errors")).shards[0]
        request = plan_full_merge(await errors.refresh())
        assert request is not None
        await merge(errors, replace(request, since=0))

    await kept_in_order(location, full=True, sweeps=True)

    assert found_in(store) == []
    left = await table_of(location, "c_errors")
    assert (before, left.column("text").to_pylist()) == (3 + many, ["{ newest"])
    assert (await table_of(location)).num_rows == 3
    async for one in location.maintenance.scrub(await location.maintenance.groups()):
        assert one.found.is_clean


async def test_bad_rows_within_retention_stay(tmp_path: Path) -> None:
    """A merge alone drops no bad row: its text is the only copy, and a user may repair it."""
    ticks: list[list[dict[str, Any] | str]] = [[row("y", "v", n), f"{{ {n}"] for n in range(1, 40)]
    location = await fed(
        tmp_path,
        MemoryStore(),
        *ticks,
        time_column="at",
        retain="10ms",
    )
    maintenance = location.maintenance
    async for _ in maintenance.compact(await maintenance.groups()):
        pass
    assert (await table_of(location, "c_errors")).num_rows == 39

    await kept_in_order(location, full=True, sweeps=True)

    left = await table_of(location, "c_errors")
    assert set(left.column("text").to_pylist()) == {f"{{ {n}" for n in range(29, 40)}


DAY_MS = 86_400_000


@pytest.mark.parametrize("many", [0, MANY])
async def test_a_deleted_key_leaves_no_byte_once_no_late_row_of_it_can_come(
    tmp_path: Path, many: int
) -> None:
    """A key is erased a day of event time after its deletion. A later row of it is new."""
    store = MemoryStore()
    location = await fed(
        tmp_path,
        store,
        [row("a", "stays", 1), row(SECRET, SECRET, 1)],
        [row(SECRET, None, 2, gone=True)],
        [row(f"n{n}", "stays", 3) for n in range(1 + many)],
        [row(f"n{n}", None, 3 + DAY_MS, gone=True) for n in range(1 + many)],
        [row("b", "stays", 4 + DAY_MS)],
        time_column="at",
        retain="0s",
    )

    await kept_in_order(location, full=True, sweeps=True)

    assert found_in(store) == []
    (tmp_path / "in" / "late.jsonl").write_text(json.dumps(row("n0", "late", 5)) + "\n")
    await run_once(await location.sources.ingester("c"))
    left = await table_of(location)
    assert set(left.column("k").to_pylist()) == {"a", "b"}, "the late row is known as late"


@pytest.mark.parametrize(("first", "retain"), [(-9 * DAY_MS, "forever"), (9 * DAY_MS, "1d")])
async def test_a_scrub_after_a_merge_of_old_deletions_finds_no_damage(
    tmp_path: Path, first: int, retain: str
) -> None:
    """The times of deletions may be late or from before 1970."""
    location = await fed(
        tmp_path,
        MemoryStore(),
        [row("a", "v", first)],
        [row("b", None, first - 5 * DAY_MS, gone=True)],
        [row("c", None, first - 5 * DAY_MS, gone=True)],
        time_column="at",
        retain=retain,
    )

    await compact(location)

    async for one in location.maintenance.scrub(await location.maintenance.groups()):
        assert one.found.is_clean, one


async def test_merges_of_deletions_that_were_taken_back_come_to_an_end(tmp_path: Path) -> None:
    """A merge that kept the times of cancelled deletions would be due again at once."""
    versions = [row("a", None if n % 2 else "v", n, gone=bool(n % 2)) for n in range(1, 13)]
    ticks: list[list[dict[str, Any] | str]] = [[version] for version in versions]
    location = await fed(tmp_path, MemoryStore(), *ticks, time_column="at", retain="0s")
    maintenance = location.maintenance

    merges = [one.done.merges async for one in maintenance.compact(await maintenance.groups())]
    again = [one.done.merges async for one in maintenance.compact(await maintenance.groups())]

    assert 0 < sum(merges) < len(ticks)
    assert sum(again) == 0


@pytest.mark.parametrize("again", [None, row("x", "v", 5), row("x", None, 5, gone=True)])
async def test_a_merge_of_old_deletions_changes_no_later_tick(
    tmp_path: Path, again: dict[str, Any] | None
) -> None:
    """Two ingesters compute equal rows, even if one reads the merged state."""
    ticks: list[list[dict[str, Any] | str]] = [
        [row("x", "v", 1)],
        [row("x", None, 2, gone=True)],
        [row("b", "v", 3 + DAY_MS)],
        [row("b", "w", 4 + DAY_MS)],
    ]
    sums: list[list[bytes]] = [[], []]
    for is_merged, found in enumerate(sums):
        folder = tmp_path / str(is_merged)
        folder.mkdir()
        location = await fed(folder, MemoryStore(), *ticks, time_column="at", retain="0s")
        if is_merged:
            await kept_in_order(location, full=True, sweeps=True)
        for n, one in enumerate([again, row("x", "late", 4), row("x", "new", 9 + 3 * DAY_MS)]):
            if one is not None:
                (folder / "in" / f"z{n}.jsonl").write_text(json.dumps(one) + "\n")
            ingester = await location.sources.ingester("c")
            await run_once(ingester)
            found += [shard.state.totals.sum_t for shard in ingester.written]

    assert sums[0] == sums[1]


async def test_a_sweep_of_an_idle_location_writes_nothing_the_second_time(tmp_path: Path) -> None:
    """A daily sweep of an idle source costs no put."""
    store = MemoryStore()
    location = await fed(tmp_path, store, [row("a", "b", 1)], [row("a", "c", 2)])
    for _ in range(2):
        await kept_in_order(location, full=True, sweeps=True)
    puts = store.puts_count
    await kept_in_order(location, full=True, sweeps=True)
    assert store.puts_count == puts


async def test_a_sweep_sends_no_request_for_a_dropped_shard_that_was_swept_clean(
    tmp_path: Path,
) -> None:
    """Dropped shards accumulate over years, so a clean one costs no request."""
    location = await fed(tmp_path, MemoryStore(), [row("a", "b", 1)], time_column="at")

    async def requests_of_a_sweep() -> int:
        before = usage_of(location.store)
        await kept_in_order(location, full=False, sweeps=True)
        return (usage_of(location.store) - before).requests_count

    for _ in range(3):
        least = await requests_of_a_sweep()
    for n in range(3):
        spec = SourceSpec(name=f"d{n}", files=str(tmp_path / "in"), schema="k varchar")
        await location.sources.create(spec)
        await run_once(await location.sources.ingester(f"d{n}"))
        await location.sources.drop(f"d{n}")
    for _ in range(3):
        cost = await requests_of_a_sweep()

    assert cost == least


async def test_rows_of_transactions_and_of_shards_leave_no_byte(tmp_path: Path) -> None:
    """A sweep erases retracted rows from the records of transactions and shards."""
    store = MemoryStore()
    location = await open_location("memory://lake", create=True, store=store)
    schema = pa.schema({"k": pa.string(), "v": pa.string()})
    both = location.shards.transactions("both")
    shard = location.shard("a", schema=schema, key=["k"])
    await both.register(shard)
    for time, diff in ((0, 1), (1, -1)):
        table = pa.table({"k": [SECRET], "v": [SECRET], "_time": [time], "_diff": [diff]})
        await both.compare_and_append({"a": table}, time, time + 1)
    await both.apply()
    assert len(found_in(store)) > 1
    await shard.move_hold("history", 1)

    await kept_in_order(location, full=True, sweeps=True)

    assert found_in(store) == []
    assert await both.upper() == await shard.upper()


@dataclass(slots=True, kw_only=True)
class OvertakenEngine(LocalEngine):
    """An engine during whose calls another process drops the source and collects."""

    location: Location
    before: str

    async def prepare(self, source: SourceInfo, ranges: Sequence[AddressRange]) -> None:
        if self.before == "the binding":
            await self._drop()

    async def compute(self, job: Job, source: RawSource) -> TickParts:
        if self.before == "the parts":
            await self._drop()
        done = await LocalEngine.compute(self, job, source)
        if self.before == "the commit":
            await self._drop()
        return done

    async def _drop(self) -> None:
        await self.location.sources.drop("c")
        for _ in range(2):
            await kept_in_order(self.location, full=False, sweeps=True)


@pytest.mark.parametrize("ticks", [0, 1])
@pytest.mark.parametrize("before", ["the binding", "the parts", "the commit"])
async def test_an_ingester_that_a_drop_overtakes_says_so_and_leaves_nothing(
    tmp_path: Path, before: str, ticks: int
) -> None:
    """The ingester raises SourceDropped. A later sweep deletes its part and status."""
    store = MemoryStore()
    first: list[dict[str, Any] | str] = [row("a", "b", 1)]
    location = await fed(tmp_path, store, *[first] * ticks)
    lines = [json.dumps(row(f"{SECRET}{n}", SECRET, 2)) for n in range(MANY)]
    (tmp_path / "in" / "more.jsonl").write_text("\n".join(lines) + "\n")
    other = await open_location("memory://lake", store=store)
    engine = OvertakenEngine(store=store, clock=location.clock, location=other, before=before)

    with pytest.raises(SourceDropped, match="'c' was dropped"):
        await run_once(await location.sources.ingester("c", engine=engine))

    # Few rows are computed before they are bound, unless the source has no binding yet.
    assert bool(found_in(store)) == (before == "the parts" or (before, ticks) == ("the binding", 1))
    await store.put(f"status/{'c' * 8}.json", b"{}")
    await kept_in_order(other, full=False, sweeps=True)
    assert found_in(store) == []
    shards = {key.split("/")[1] for key in store.objects if key.startswith("shard/g")}
    assert len([key for key in store.objects if key.startswith("shard/g")]) == len(shards)
    assert not [key for key in store.objects if key.startswith("status/")]


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_keys_of_a_keyed_log_that_retired_leave_no_byte(is_dropped: bool) -> None:
    """Retired or dropped keys of a keyed log are erased, also from the records of its state."""
    store = MemoryStore()
    location = await open_location("memory://lake", create=True, store=store)
    log = await location.keyed.create("orders", retention=Retention(segments=1))
    await log.append([(f"{SECRET}{n}".encode(), SECRET.encode()) for n in range(MANY)])
    await log.compact(full=True)
    await log.seal()
    await log.append([(b"k", b"stays")])
    await log.compact(full=True)
    assert len(found_in(store)) > 2
    if is_dropped:
        await log.close()
        await location.keyed.drop("orders")
    else:
        assert await log.retire() == 1
        for _ in range(2):
            await log.collect(after_us=0)
        await log.close()

    assert found_in(store) == []
    assert bool(found_in(store, "stays")) != is_dropped


@asynccontextmanager
async def closed(log: KeyedLog) -> AsyncGenerator[KeyedLog, None]:
    """Close a log at the end, also if its store is dead."""
    try:
        yield log
    finally:
        with suppress(TidelogError):
            await log.close()


@pytest.mark.parametrize("happens", [False, True])
async def test_a_killed_keyed_collector_leaves_no_key_to_later_ones(happens: bool) -> None:
    """The collector may die at any write, also between raising the floor and truncating."""
    for last in range(200):
        store, asked = MemoryStore(), list[str]()
        location = await open_location("memory://lake", create=True, store=store)
        async with closed(await location.keyed.create("o", retention=Retention(segments=1))) as log:
            await log.append([(f"{SECRET}{n}".encode(), b"v") for n in range(2)])
            await log.compact(full=True)
            await log.seal()
            await log.append([(b"k", b"stays")])
            await log.compact(full=True)
            assert await log.retire() == 1

        def toss(request: Request, last: int = last, asked: Any = asked) -> Fault:
            # A dead process sends no more requests. It dies at a write of the state's records.
            if (request.op != "put" or "consensus/" not in request.key) and len(asked) <= last:
                return Fault()
            asked.append(request.op)
            is_last = len(asked) == last + 1
            return Fault(happened=len(asked) <= last or (happens and is_last), told=not is_last)

        with suppress(TidelogError):
            dead = FaultyStore(store, toss=toss)
            killed = await open_location("memory://lake", store=dead, clock=OneThread())
            async with closed(await killed.keyed.open("o")) as log:
                await log.collect(after_us=0)
        is_whole = len(asked) <= last
        for _ in range(2):
            other = await open_location("memory://lake", store=store)
            async with closed(await other.keyed.open("o")) as log:
                await log.collect(after_us=0)

        assert found_in(store) == [], last
        assert found_in(store, "stays")
        if is_whole:
            return
    raise AssertionError("a collection has fewer requests")
