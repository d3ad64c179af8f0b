"""Renditions for tests: the contents of each of them, and the holds on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from kit.clocks import OneThread
from kit.shelf_kind import Row, Shelf, shelf_row
from kit.sources import ingest
from tidelog.collection.collection import Collection
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.frontier import Frontier
from tidelog.location import Location, open_location
from tidelog.persist.states.transition import difference
from tidelog.rowhash import RowSum
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store

Rows = Counter[tuple[Any, ...]]


def counted(table: pa.Table) -> Rows:
    """Return consolidated contents as counted rows."""
    found: Rows = Counter()
    for row in table.to_pylist():
        found[tuple(value for name, value in row.items() if name != "_diff")] += row["_diff"]
    return found


async def rows_at(lake: Location, time: int | None = None, name: str = "c") -> Rows:
    """Return the contents of a collection at a time, by default the newest."""
    return counted(await (await lake.collection(name)).consolidated(time))


async def rows_of(lake: Location, name: str, time: int, *, is_errors: bool = False) -> Rows:
    """Return the contents of one rendition at a time, or its bad rows."""
    catalog = await lake.controller.catalog()
    handle = lake.collections.of_rendition(catalog, catalog.rendition(name), is_errors)
    return counted(await handle.consolidated(time))


async def handle_of(lake: Location, name: str, *, is_errors: bool = False) -> Collection:
    """Return a handle of one rendition, or of its bad rows, with the newest states."""
    catalog = await lake.controller.catalog()
    handle = lake.collections.of_rendition(catalog, catalog.rendition(name), is_errors)
    await handle.refresh()
    return handle


def sums(handle: Collection, uppers: Sequence[int]) -> list[RowSum]:
    """Return the sum T of all shards between the given uppers."""
    found, lower = [], 0
    for upper in uppers:
        total = RowSum.zero()
        for state in handle.states:
            one = difference(state, Frontier.at(lower), Frontier.at(upper))
            assert one is not None
            total = total + one
        found.append(total)
        lower = upper
    return found


async def reader(lake: Location) -> Collection:
    """Return a new handle of the collection ``c``, with the newest states."""
    handle = await lake.collection("c")
    await handle.refresh()
    return handle


def holds(era: Collection) -> dict[str, int | None]:
    """Return the holds of readers on a rendition, which all of its shards have."""
    found = [{n: h.since for n, h in shard.state.holds.items()} for shard in era.all_shards]
    own = [{n: s for n, s in one.items() if n not in ("history", "ingest")} for one in found]
    assert all(one == own[0] for one in own)
    return own[0]


def put(*rows: Row) -> None:
    """Add rows to the shelf that sources read."""
    Shelf.rows.setdefault("a", []).extend(rows)


async def lake_on(store: Store, *, create: bool = False) -> Location:
    """Open a location in a store, as a separate process does."""
    return await open_location("memory://", create=create, clock=OneThread(), store=store)


async def shelf_lake(*, retain: str = "forever") -> MemoryStore:
    """Return a store with the source ``c``, some rows, and a complete second rendition ``c2``."""
    store = MemoryStore(name="memory://")
    lake = await lake_on(store, create=True)
    spec = SourceSpec(
        name="c", kind="shelf", schema="k bigint, at bigint", keep_bindings=True, retain=retain
    )
    await lake.sources.create(spec)
    put(*(shelf_row(n, 1_000 * n) for n in range(1, 6)))
    await ingest(lake, "c")
    await (await lake.collection("c")).hold("mine")
    await lake.renditions.create(RenditionSpec(name="c2", envelope="upsert", key=("k",)), of="c")
    await ingest(lake, "c2")
    return store
