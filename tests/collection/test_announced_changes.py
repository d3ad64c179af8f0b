"""Ingesters that run already meet a change of the catalog before their next binding."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from kit.clocks import SwiftClock
from kit.shelf_kind import Shelf, empty_shelves, shelf_row
from kit.sources import bound, consensus_key, lake_of, run_once, table_of, write_numbers
from kit.stores import InterposedStore, Once
from tidelog.collection.catalog.announcing import LOOK_US
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import SourceDropped
from tidelog.location import Location, open_location
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import RecordedStore


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


class Place:
    """A location in memory with the source ``c`` of a shelf, and a running ingester of it."""

    def __init__(self) -> None:
        self.base = MemoryStore(name="memory://")
        self.clock = SwiftClock()
        self.hook: Callable[[str, str], Awaitable[None]] | None = None
        self.store = RecordedStore(InterposedStore(self.base, before=self._before))

    async def _before(self, op: str, key: str) -> None:
        if self.hook is not None:
            await self.hook(op, key)

    async def lake(self, store: Store | None = None) -> Location:
        """Open the location as another process does."""
        opened = store or self.base
        return await open_location("memory://", create=True, clock=self.clock, store=opened)

    async def ingester(self) -> Ingester:
        """Create the source, and return an ingester that has ingested a row."""
        lake = await self.lake(self.store)
        spec = SourceSpec(name="c", kind="shelf", format="json", schema="n bigint, at bigint")
        await lake.sources.create(spec)
        ingester = await lake.sources.ingester("c")
        put(1)
        # The first binding creates the remap shard, so the catalog is read again after it.
        await run_once(ingester)
        put(2)
        await run_once(ingester)
        return ingester

    async def alter(self) -> None:
        await (await self.lake()).sources.alter("c", add="x varchar")

    async def xs(self) -> list[str | None]:
        """Return the values of the added column, in the order of the rows."""
        found = (await table_of(await self.lake())).sort_by("n")
        return found.column("x").to_pylist()


def put(*numbers: int) -> None:
    rows = [
        shelf_row(n, n, body=json.dumps({"n": n, "at": n, "x": f"x{n}"}).encode()) for n in numbers
    ]
    Shelf.rows.setdefault("a", []).extend(rows)


async def test_a_tick_without_a_command_reads_no_catalog() -> None:
    """The catalog rarely changes, and each read of it is paid for."""
    place = Place()
    ingester = await place.ingester()
    place.store.records.clear()

    put(3)
    await run_once(ingester)
    assert [record.op for record in place.store.records if "catalog" in record.key] == []
    assert place.store.records


@pytest.mark.parametrize("moment", ["before the tick", "before the proposal"])
async def test_a_row_after_an_alteration_has_the_new_column(moment: str) -> None:
    """The call has returned before the row is bound, so the row is decoded with the column."""
    place = Place()
    ingester = await place.ingester()
    put(3)
    once = Once("put", consensus_key(ingester.remap.id), place.alter)
    if moment == "before the tick":
        await place.alter()
    else:
        place.hook = once

    await run_once(ingester)
    assert bool(once.met) == (moment == "before the proposal")
    assert await place.xs() == [None, None, "x3"]


async def test_an_alteration_at_each_request_of_a_tick_counts_for_the_next_row() -> None:
    """The row of the tick has a value or null. No row is lost, and the next one has its value."""
    number, found = 0, set()
    while (xs := await altered_at_request(number)) is not None:
        assert xs[:2] == [None, None]
        assert xs[3:] == ["x4"]
        found.add(xs[2])
        number += 1
    assert number > 1
    assert found == {None, "x3"}


async def altered_at_request(number: int) -> list[str | None] | None:
    """Alter the source at one request of a tick, and tick again; None if there are fewer."""
    Shelf.rows.clear()
    place = Place()
    ingester = await place.ingester()
    seen = 0

    async def at_request(_: str, __: str) -> None:
        nonlocal seen
        seen += 1
        if seen == number + 1:
            await place.alter()

    put(3)
    place.hook = at_request
    await run_once(ingester)
    if seen <= number:
        return None
    put(4)
    await run_once(ingester)
    return await place.xs()


async def test_a_killed_command_counts_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ended before the announcement. A repeated call announces the change again."""

    async def killed(*_: object) -> None:
        pass

    place = Place()
    ingester = await place.ingester()
    with monkeypatch.context() as patched:
        patched.setattr(Controller, "announce", killed)
        await place.alter()
    put(3)
    await run_once(ingester)
    assert await place.xs() == [None, None, None]
    place.clock.slept_us += LOOK_US
    put(4)
    await run_once(ingester)
    assert await place.xs() == [None, None, None, "x4"]


async def test_a_repeated_command_announces_the_change_of_a_killed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The repeated call finds the column in the catalog, and must return with the same promise."""

    async def killed(*_: object) -> None:
        pass

    place = Place()
    ingester = await place.ingester()
    with monkeypatch.context() as patched:
        patched.setattr(Controller, "announce", killed)
        await place.alter()
    await place.alter()
    put(3)
    await run_once(ingester)
    assert await place.xs() == [None, None, "x3"]


async def test_a_dropped_source_gets_no_binding() -> None:
    """The ingester reports the drop at its next tick."""
    place = Place()
    ingester = await place.ingester()
    upper = ingester.remap.state.upper
    await (await place.lake()).sources.drop("c")

    put(3)
    with pytest.raises(SourceDropped):
        await run_once(ingester)
    assert (await ingester.remap.refresh()).upper == upper


async def test_a_changed_retention_counts_for_the_next_binding() -> None:
    """A longer retention must keep the history that the ingester's next commit would give up."""
    place = Place()
    ingester = await place.ingester()
    lake = await place.lake()
    await lake.controller.retain("c", 5)
    put(3)
    await run_once(ingester)
    output = ingester.outputs[0]
    moved = output.state.holds[HISTORY_HOLD].since
    assert moved
    await lake.controller.retain("c", None)
    place.clock.slept_us += 50_000
    put(4)
    await run_once(ingester)
    assert output.state.holds[HISTORY_HOLD].since == moved


async def test_a_waiting_binding_is_finished_without_a_skipped_file(tmp_path: Path) -> None:
    """The skip is not announced, so the ingester reads the catalog before it computes."""
    lake = await lake_of(tmp_path, "*.jsonl", schema="n bigint")
    write_numbers(tmp_path / "a.jsonl", 1)
    running = await lake.sources.ingester("c")
    await run_once(running)
    file = write_numbers(tmp_path / "b.jsonl", 2)
    await bound(lake)
    await running.refresh()
    file.unlink()
    await lake.sources.skip("c", "b.jsonl")

    summary = await run_once(running)
    assert (summary.rows, summary.bad) == (0, 1)


async def test_a_source_without_a_binding_gets_no_announcement() -> None:
    """Its shards do not exist yet, and each of its ingesters reads the catalog first."""
    place = Place()
    lake = await place.lake(place.store)
    spec = SourceSpec(name="c", kind="shelf", format="json", schema="n bigint, at bigint")
    await lake.sources.create(spec)
    waiting = await lake.sources.ingester("c")
    await place.alter()
    assert not any(waiting.remap.id in key for key in place.base.objects)

    put(1)
    await run_once(waiting)
    assert await place.xs() == ["x1"]
