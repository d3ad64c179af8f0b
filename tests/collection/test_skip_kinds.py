"""Skipped ranges of logs and of own kinds: one bad row for each, and the source continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import pytest

from collection.test_log_source import (
    cursors_of,
    lake_with_log,
    location_on,
    rows_in,
    source_of,
)
from kit.clocks import OneThread
from kit.dying import DiesWriting
from kit.named_logs import ALL, append
from kit.shelf_kind import Shelf, empty_shelves, shelf_row
from kit.sources import bind, ingest, table_of
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.status import source_status
from tidelog.collection.source import kinds
from tidelog.collection.source.given_up import GivenUp, skip_key
from tidelog.collection.source.kind import Frontier, RowRange
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import GoneError, LocationError, PositionCollected, SourceRewritten, UsageError
from tidelog.location import Location
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import FaultyStore


@pytest.fixture(autouse=True)
def _shelves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(kinds._registered, Expiring.name, Expiring)
    with empty_shelves():
        yield
        Expiring.oldest.clear()


class Expiring(Shelf):
    """Rows that expire: those before `oldest`, by shelf, are gone."""

    name = "expiring"
    oldest: ClassVar[dict[str, int]] = {}

    async def plan(self, start: Frontier, limit: Frontier, *, bytes_max: int) -> Sequence[RowRange]:
        for path in limit:
            self._check(path, start.get(path, 0))
        return await super().plan(start, limit, bytes_max=bytes_max)

    async def proof(self, found: RowRange) -> str:
        self._check(found.path, found.start)
        return await super().proof(found)

    async def gone(self, start: Frontier) -> Sequence[RowRange]:
        return [
            RowRange(path=path, start=start.get(path, 0), limit=oldest)
            for path, oldest in self.oldest.items()
            if start.get(path, 0) < oldest
        ]

    def _check(self, path: str, start: int) -> None:
        if start < self.oldest.get(path, 0):
            raise PositionCollected(f"rows of {path!r} have expired")


async def expiring(**asked: Any) -> Location:
    location = await location_on(MemoryStore(name="memory://"))
    await location.sources.create(SourceSpec(name="s", kind="expiring", **asked))
    return location


async def lose_records(location: Location) -> int:
    """Collect the records that the source needs; return the oldest position that is left."""
    log = await location.log("l")
    for name in await cursors_of(location):
        await log.drop_cursor(name)
    await log.create_cursor("x", (await log.bounds()).next)
    await log.collect(keep=ALL, grace_us=0)
    await log.drop_cursor("x")
    return (await log.bounds()).oldest


async def errors_of(location: Location) -> list[tuple[str, int, str]]:
    rows = (await table_of(location, "s_errors")).to_pylist()
    return sorted((row["file"], row["offset"], row["reason"]) for row in rows)


def skipped(path: str, start: int, limit: int) -> tuple[str, int, str]:
    return path, start, f"'tidelog source skip' skipped the rows up to {limit}"


async def keys_in(location: Location) -> list[int]:
    return sorted((await table_of(location, "s")).column("k").to_numpy().tolist())


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_records_that_were_collected_before_their_binding_are_skipped(protocol: str) -> None:
    """The error names the command. Later records are rows, and a new cursor holds the next ones."""
    location = await lake_with_log(6, protocol=protocol)
    await source_of(location)
    oldest = await lose_records(location)
    with pytest.raises(PositionCollected, match=r"records 1 to .* source skip s l \("):
        await ingest(location, "s")
    with pytest.raises(UsageError, match="does not block the source"):
        await location.sources.skip("s", "other")

    await location.sources.skip("s", "l")
    with pytest.raises(UsageError, match="is already skipped"):
        await location.sources.skip("s", "l")
    await append(location.store, "l", 2)
    ticks = await ingest(location, "s")
    following = (await (await location.log("l")).bounds()).next
    assert oldest > 1
    assert [row["position"] for row in await rows_in(location)] == [*range(oldest, following)]
    assert await errors_of(location) == [skipped("l", 1, oldest)]
    assert [(tick.bad, tick.left_bytes) for tick in ticks][-1] == (1, 0)
    assert list((await cursors_of(location)).values()) == [following]
    status = await source_status(await location.sources.ingester("s"))
    assert (list(status.skipped), status.left_bytes) == (["l"], 0)
    with pytest.raises(UsageError, match="is already skipped"):
        await location.sources.skip("s", "l")


async def test_records_that_were_collected_after_their_binding_are_skipped() -> None:
    """The whole bound range is given up. Records that are collected later need another skip."""
    location = await lake_with_log(4)
    await source_of(location)
    binding = await bind(await location.sources.ingester("s", bytes_max=1_000))
    assert binding is not None
    (found,) = binding.ranges
    oldest = await lose_records(location)
    assert oldest > found.limit
    with pytest.raises(PositionCollected, match="source skip s l"):
        await ingest(location, "s")

    await location.sources.skip("s", "l")
    with pytest.raises(PositionCollected, match=f"records {found.limit} to {oldest - 1} "):
        await ingest(location, "s")
    await location.sources.skip("s", "l")
    await ingest(location, "s")
    assert [row["position"] for row in await rows_in(location)] == [oldest]
    lost = [skipped("l", 1, found.limit), skipped("l", found.limit, oldest)]
    assert await errors_of(location) == lost


async def test_a_path_without_later_rows_continues_too() -> None:
    """The skip takes effect at once: the bad row is there, and nothing is left to ingest."""
    location = await expiring()
    Shelf.rows.update(a=[shelf_row(n, n) for n in range(5)], b=[shelf_row(9, 9)])
    Expiring.oldest["a"] = 5
    with pytest.raises(GoneError):
        await ingest(location, "s")

    await location.sources.skip("s", "a")
    ticks = await ingest(location, "s")
    assert (sum(t.rows for t in ticks), sum(t.bad for t in ticks), ticks[-1].left_bytes) == (
        1,
        1,
        0,
    )
    assert await errors_of(location) == [skipped("a", 0, 5)]
    Shelf.rows["a"].append(shelf_row(6, 6))
    await ingest(location, "s")
    assert await keys_in(location) == [6, 9]
    assert len(await errors_of(location)) == 1


async def test_a_second_loss_before_the_first_tick_needs_a_second_skip() -> None:
    """One bad row names all lost rows, because one binding gives them up."""
    location = await expiring()
    Shelf.rows["a"] = [shelf_row(n, n) for n in range(8)]
    for oldest in (3, 6):
        Expiring.oldest["a"] = oldest
        with pytest.raises(GoneError):
            await ingest(location, "s")
        await location.sources.skip("s", "a")

    await ingest(location, "s")
    assert await keys_in(location) == [6, 7]
    assert await errors_of(location) == [skipped("a", 0, 6)]


@pytest.mark.parametrize("bytes_max", [1, 30, 1_000])
async def test_times_of_the_data_are_kept(bytes_max: int) -> None:
    """The lost rows end with the next rows of their path, so no time is complete too early."""
    location = await expiring(time_column="at")
    Shelf.rows["a"] = [shelf_row(n, 10 * n) for n in range(4)]
    Expiring.oldest["a"] = 4
    with pytest.raises(GoneError):
        await ingest(location, "s")
    await location.sources.skip("s", "a")
    assert await ingest(location, "s") == []
    assert (await source_status(await location.sources.ingester("s"))).left_bytes == 0

    Shelf.rows["a"] += [shelf_row(n, 10 * n) for n in range(4, 9)]
    ticks = await ingest(location, "s", bytes_max=bytes_max)
    assert (ticks[-1].upper, sum(tick.late for tick in ticks)) == (81, 0)
    assert await keys_in(location) == [4, 5, 6, 7, 8]
    assert await errors_of(location) == [skipped("a", 0, 4)]


async def test_rows_held_back_after_lost_ones_are_read_again() -> None:
    """The source keeps the rows after the lost ones until all of them are committed."""
    location = await expiring(time_column="at", lateness="50ms")
    Shelf.rows["a"] = [shelf_row(n, 10 * n) for n in range(12)]
    Expiring.oldest["a"] = 4
    with pytest.raises(GoneError):
        await ingest(location, "s")
    await location.sources.skip("s", "a")

    await ingest(location, "s")
    assert Shelf.held[-1][0] == {"a": 4}
    assert await keys_in(location) == [4, 5, 6]
    Shelf.rows["a"].append(shelf_row(12, 900))
    await ingest(location, "s")
    assert await keys_in(location) == [*range(4, 12)]
    assert await errors_of(location) == [skipped("a", 0, 4)]


async def test_bound_rows_after_lost_ones_can_be_skipped_too() -> None:
    """Each loss is one bad row with its own addresses."""
    location = await expiring()
    Shelf.rows["a"] = [shelf_row(n, n) for n in range(6)]
    Expiring.oldest["a"] = 2
    with pytest.raises(GoneError):
        await ingest(location, "s")
    await location.sources.skip("s", "a")
    assert await bind(await location.sources.ingester("s"))
    Shelf.rows["a"][3] = shelf_row(77, 3)
    with pytest.raises(SourceRewritten):
        await ingest(location, "s")

    await location.sources.skip("s", "a")
    Shelf.rows["a"].append(shelf_row(6, 6))
    await ingest(location, "s")
    assert await keys_in(location) == [6]
    assert await errors_of(location) == [skipped("a", 0, 2), skipped("a", 2, 6)]


async def test_an_ingester_that_has_not_read_the_skip_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The binding itself records the lost rows, so the two ingesters cannot differ."""
    location = await expiring()
    Shelf.rows["a"] = [shelf_row(n, n) for n in range(6)]
    stale = await location.sources.ingester("s")
    Expiring.oldest["a"] = 2
    await location.sources.skip("s", "a")
    other = await location.sources.ingester("s")
    binding = await bind(other)
    assert binding is not None

    async def not_read(ingester: Ingester) -> None:
        pass

    head = await stale.source.head()
    with monkeypatch.context() as patch:
        patch.setattr(Ingester, "_check_there", not_read)
        await stale.refresh()
        first = await stale.tick(head)
    assert first is not None
    assert (first.rows, first.bad, first.won) == (4, 1, 2)
    computed = await other._compute(binding)
    assert (await other._commit(binding, computed)).unchecked == 0
    assert await errors_of(location) == [skipped("a", 0, 2)]


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
async def test_a_skip_survives_failures_at_each_write(landed: bool) -> None:
    """Skip and ingestion fail at any write, and run again: one bad row, and each row once."""
    writes = 0
    for failing in range(60):
        Shelf.rows["a"] = [shelf_row(n, n) for n in range(5)]
        Expiring.oldest["a"] = 3
        store = MemoryStore(name="memory://")
        location = await location_on(store, clock=OneThread())
        await location.sources.create(SourceSpec(name="s", kind="expiring"))
        process = DiesWriting(failing, landed)
        faulty = FaultyStore(store, toss=process.toss)
        with suppress(LocationError):
            dying = await location_on(faulty, clock=OneThread())
            await dying.sources.skip("s", "a")
            await ingest(dying, "s")
        with suppress(UsageError):
            await location.sources.skip("s", "a")
        await ingest(location, "s")
        assert await keys_in(location) == [3, 4]
        assert await errors_of(location) == [skipped("a", 0, 3)]
        if not process.died:
            break
        writes += 1
    assert 3 <= writes < 59


def test_tasks_share_only_the_rows_that_exist() -> None:
    """No task gets only lost rows, because it would read an empty range."""
    found = RowRange(path="a", start=10, limit=20, proof="p").giving_up(0)

    assert (found.start, found.first, found.limit) == (0, 10, 20)
    assert found.present == RowRange(path="a", start=10, limit=20, proof="p")
    assert found.cut_at(np.array([4, 8, 12, 16])).tolist() == [12, 16]
    assert found.given_up is not None
    assert (found.given_up.start, found.given_up.limit) == (0, 10)
    assert RowRange(path="a", start=3, limit=9).given_up is None


def test_ranges_are_given_up_only_after_the_newest_bound_one() -> None:
    """A path may have any characters, such as those of a URL."""
    path = "s3://bucket/a-1\nb"
    ranges = [RowRange(path=path, start=start, limit=limit) for start, limit in ((1, 6), (1, 9))]
    given_up = GivenUp(frozenset(map(skip_key, ranges)))

    assert given_up.gaps({}) == {path: (1, 9)}
    assert given_up.after(path, RowRange(path=path, start=1, limit=6)) == (6, 9)
    assert given_up.after(path, RowRange(path=path, start=1, limit=9)) is None
    assert given_up.after("other", None) is None
