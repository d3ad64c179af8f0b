"""Moves of consensus: at each moment the location has one consensus, and no write is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.clocks import SwiftClock
from kit.stores import keys_in
from tidelog.consensus import kinds
from tidelog.consensus.sql import Database
from tidelog.core.clock import SystemClock
from tidelog.core.ids import SeqNo
from tidelog.errors import (
    ConsensusMoved,
    ContentionError,
    CorruptionError,
    LocationError,
    Outcome,
    TidelogError,
    UsageError,
)
from tidelog.location import Location, consensus_migration, open_location
from tidelog.location.consensus_migration import load_marker
from tidelog.location.marker import MARKER, WITNESS
from tidelog.machine.fence import fence_of
from tidelog.machine.guarded import GuardedConsensus
from tidelog.persist.states.transition import Verdict
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, Request

CLOCK = SystemClock()
SCHEMA = pa.schema([("n", pa.int64())])


async def opened(store: Store, **options: Any) -> Location:
    """Open the location as another process does."""
    clock = options.pop("clock", None) or SwiftClock()
    return await open_location("memory://lake", store=store, clock=clock, **options)


async def append(location: Location, n: int, *, name: str = "s") -> bool:
    """Append a number at the next time. Return False if another writer was first."""
    shard = location.shard(name, schema=SCHEMA)
    time = (await shard.upper()).time
    updates = pa.table({"n": [n], "_time": [time], "_diff": [1]})
    return (
        await shard.try_compare_and_append(updates, time, time + 1)
    ).verdict is Verdict.COMMITTED


async def numbers(location: Location, *, name: str = "s") -> list[int]:
    """Return the numbers that a new handle reads."""
    shard = location.shard(name)
    upper = (await shard.upper()).time
    if not upper:
        return []
    table = await (await shard.snapshot(upper - 1)).to_arrow()
    return sorted(n for n, d in zip(*table.to_pydict().values(), strict=True) for _ in range(d))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    return {
        "store": "store",
        "sqlite": f"sqlite:{tmp_path / 'a.db'}",
        "other": f"sqlite:{tmp_path / 'b.db'}",
    }


@pytest.mark.parametrize(
    "route",
    [
        ("store", "sqlite", "store", "sqlite"),
        ("sqlite", "other", "sqlite", "store", "other"),
        ("store", "postgres", "sqlite", "postgres", "store"),
    ],
)
async def test_a_location_moves_from_place_to_place(
    places: dict[str, str], route: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """States keep their seqnos and contents. A process at the old place gets ConsensusMoved."""
    if "postgres" in route:
        places["postgres"] = request.getfixturevalue("postgres").url()
    store = MemoryStore()
    location = await opened(store, create=True, consensus=places[route[0]])
    written = 0
    for _ in range(200):  # Enough appends for rollups, and for spilled and truncated records.
        await append(location, written)
        written += 1
    for place in route[1:]:
        shard = location.shard("s")
        before = await shard.refresh()
        seqno = shard.machine.seqno
        moved = await location.move_consensus(places[place])
        assert moved.keys == 1
        assert moved.records > 0
        assert await (await opened(store)).move_consensus(places[place]) == type(moved)(
            consensus=moved.consensus
        )
        for work in (
            shard.refresh(),
            append(location, -1),
            location.shards.list(),
            append(location, -1),
        ):
            with pytest.raises(ConsensusMoved, match="open it again"):
                await work
        location = await opened(store)
        shard = location.shard("s")
        assert await shard.refresh() == before
        assert shard.machine.seqno == seqno + 1  # The fence takes one seqno.
        for _ in range(3):
            assert await append(location, written)
            written += 1
        assert await numbers(await opened(store)) == list(range(written))


@dataclass
class Fuse:
    """Requests of a process that dies at one of them, in any of its stores."""

    last: int
    happened: bool
    count: int = 0

    @property
    def blown(self) -> bool:
        return self.count > self.last

    def next(self) -> Fault:
        self.count += 1
        if self.count <= self.last:
            return Fault()
        return Fault(happened=self.happened and self.count == self.last + 1, told=False)

    def toss(self, request: Request) -> Fault:
        del request
        return self.next()


@dataclass
class FusedDatabase:
    """A database of a dying process."""

    inner: Database
    fuse: Fuse

    async def run(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        fault = self.fuse.next()
        found = await self.inner.run(statement, values) if fault.happened else []
        if not fault.told:
            raise LocationError("the process died", outcome=Outcome.UNKNOWN)
        return found

    async def close(self) -> None:
        await self.inner.close()


class BurningFuse:
    """A switch that gives newly opened databases a fuse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._make: Callable[..., Database] = kinds._database
        self.fuse: Fuse | None = None

        def made(*args: Any, **named: Any) -> Any:
            found = self._make(*args, **named)
            return found if self.fuse is None else FusedDatabase(found, self.fuse)

        monkeypatch.setattr(kinds, "_database", made)


async def assert_closed(store: Store, place: str, location: str) -> None:
    """Check that the old place holds nothing but a reference to the new place, for each state."""
    old = kinds.open_consensus(
        kinds.parse_consensus(place), location=location, store=store, clock=SwiftClock()
    )
    keys = [key async for key in old.list_keys()]
    assert keys
    for key in keys:
        (only,) = await old.scan(key, SeqNo(1))
        fence = fence_of(only.data)
        assert fence is not None
        assert fence.moved_to


@pytest.mark.parametrize("route", [("store", "sqlite"), ("sqlite", "store"), ("sqlite", "other")])
async def test_a_move_that_dies_at_any_request_leaves_one_place(
    places: dict[str, str], route: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reads and writes continue in one place, and a repeated move completes."""
    burning = BurningFuse(monkeypatch)
    points = 0
    for happened in (False, True):
        for last in range(10_000):
            for name in ("sqlite", "other"):
                places[name] = f"sqlite:{tmp_path / f'{name}-{happened}-{last}.db'}"
            store = MemoryStore()
            location = await opened(store, create=True, consensus=places[route[0]])
            before, _ = await load_marker(store)
            for n in range(3):
                await append(location, n)
            await append(location, 7, name="t")
            stale = await opened(store)
            await stale.shard("s").refresh()

            burning.fuse = fuse = Fuse(last, happened)
            with_fuse: Store = FaultyStore(store, toss=fuse.toss)
            died = True
            try:
                mover = await opened(with_fuse)
                await mover.move_consensus(places[route[1]])
                died = False
            except (LocationError, CorruptionError, ContentionError):
                pass
            burning.fuse = None
            if not died and not fuse.blown:
                break  # The move has ended before request ``last``.
            points += 1

            assert await numbers(await opened(store)) == [0, 1, 2]
            if last % 2:
                # A writer from before and a new one: both can write, or only the new one.
                wrote = [3]
                assert await append(await opened(store), 3)
                try:
                    await append(stale, 4)
                    wrote.append(4)
                except ConsensusMoved:
                    pass
                assert await numbers(await opened(store)) == [0, 1, 2, *wrote]
            else:
                wrote = []
            assert (await load_marker(store))[0].moves in (0, 1)
            await (await opened(store)).move_consensus(places[route[1]])
            mark, _ = await load_marker(store)
            assert (mark.moves, mark.moving, mark.left) == (1, None, None)
            await assert_closed(store, places[route[0]], before.id)
            again = await opened(store)
            assert await numbers(again) == [0, 1, 2, *wrote]
            assert await numbers(again, name="t") == [7]
            with pytest.raises(ConsensusMoved):
                await append(stale, 9)
            assert await append(again, 5)
            with pytest.raises(ConsensusMoved):
                await numbers(stale)
    assert points > 25, points


@dataclass
class AtWork:
    """Processes that write to a location while it moves, and remember their acknowledgements."""

    store: Store
    acknowledged: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    doubted: list[int] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, n: int, step: int, *, makes: bool) -> None:
        """Append numbers, or create shards with such names, until the moves are complete."""
        location = await opened(self.store, clock=CLOCK)
        told, unsure = (self.made, self.doubted) if makes else (self.acknowledged, self.doubtful)
        while not self.done.is_set():
            try:
                if await append(location, n, name=f"made{n}" if makes else "s"):
                    told.append(n)
                    n += step
            except ConsensusMoved as error:
                if error.outcome is Outcome.UNKNOWN:
                    unsure.append(n)
                    n += step
                location = await opened(self.store, clock=CLOCK)
            await CLOCK.sleep(500)

    async def move(self, route: list[str]) -> None:
        """Move consensus to each place of the route."""
        for place in route:
            await CLOCK.sleep(200_000)
            await (await opened(self.store, clock=CLOCK)).move_consensus(place)
        self.done.set()


async def test_whoever_writes_meanwhile_loses_nothing(places: dict[str, str]) -> None:
    """Each acknowledged append and each created shard is there exactly once."""
    store = MemoryStore()
    await opened(store, create=True)
    busy = AtWork(store)
    route = [places[name] for name in ("sqlite", "store", "other", "store", "sqlite")]
    async with asyncio.TaskGroup() as group:
        for first in range(3):
            group.create_task(busy.work(first, 3, makes=False))
        group.create_task(busy.work(0, 1, makes=True))
        group.create_task(busy.move(route))

    last = await opened(store)
    found = await numbers(last)
    assert len(found) == len(set(found))
    assert set(busy.acknowledged) <= set(found) <= {*busy.acknowledged, *busy.doubtful}
    assert len(busy.acknowledged) > 20
    names = {int(name[4:]) for name in await last.shards.list() if name.startswith("made")}
    assert set(busy.made) <= names <= {*busy.made, *busy.doubted}
    assert [await numbers(last, name=f"made{n}") for n in busy.made] == [[n] for n in busy.made]
    assert len(busy.made) > 5


async def test_a_shard_that_is_made_in_the_old_place_is_refused(places: dict[str, str]) -> None:
    """The process that creates the shard, and any other at the old place, get ConsensusMoved."""
    store = MemoryStore()
    await opened(store, create=True)
    maker, other, reader = [await opened(store) for _ in range(3)]
    await (await opened(store)).move_consensus(places["sqlite"])

    # The first request that reveals the move comes after the record has landed.
    guarded = maker.consensus
    assert isinstance(guarded, GuardedConsensus)
    with pytest.raises(ConsensusMoved) as refused:
        await guarded.compare_and_set("user.new", SeqNo(1), b"x")
    assert refused.value.outcome is Outcome.UNKNOWN
    with pytest.raises(ConsensusMoved):
        await other.consensus.compare_and_set("user.new", SeqNo(2), b"y")
    with pytest.raises(ConsensusMoved):
        await reader.shard("never").refresh()
    assert await (await opened(store)).shards.list() == []


async def test_a_move_to_elsewhere_ends_one_that_died(places: dict[str, str]) -> None:
    """The latest move wins. Copies in the other place have no effect."""
    store = MemoryStore()
    location = await opened(store, create=True)
    await append(location, 1)

    marks = 0

    def toss(request: Request) -> Fault:
        nonlocal marks
        marks += request.op == "put" and request.key == MARKER
        return Fault(happened=False, told=False) if marks > 1 else Fault()

    failing = FaultyStore(store, toss=toss)
    with pytest.raises((LocationError, ContentionError)):
        await (await opened(failing)).move_consensus(places["sqlite"])
    mark, _ = await load_marker(store)
    assert mark.moving is not None
    assert mark.moving.to == places["sqlite"]
    moved = await (await opened(store)).move_consensus(places["other"])
    assert moved.consensus == places["other"]
    assert await numbers(await opened(store)) == [1]


@pytest.mark.parametrize("how", ["made", "moved"])
async def test_a_lost_mark_is_told_with_any_consensus(places: dict[str, str], how: str) -> None:
    """The location would otherwise be created again."""
    store = MemoryStore()
    first = places["sqlite"] if how == "made" else "store"
    location = await opened(store, create=True, consensus=first)
    if how == "moved":
        await location.move_consensus(places["sqlite"])
    elif how == "made":
        assert await keys_in(store) == [WITNESS, MARKER]
    await store.delete([MARKER])

    for create in (False, True):
        with pytest.raises(CorruptionError, match=r"tidelog\.json is gone"):
            await opened(store, create=create)
    await store.delete([key for key in await keys_in(store) if key.startswith("consensus")])
    await opened(store, create=True)
    await store.delete([MARKER])
    await store.put("shard/user.s/part/00000000/x.parquet", b"")
    with pytest.raises(CorruptionError, match=r"but shard/user\.s/part/.* exists"):
        await opened(store, create=True)


async def test_what_is_no_place_is_refused(places: dict[str, str], tmp_path: Path) -> None:
    """A wrong place raises before any change."""
    store = MemoryStore()
    location = await opened(store, create=True)
    before = dict(store.objects)
    for place in ("etcd://x", "sqlite:", f"sqlite:{tmp_path / 'none' / 'x.db'}"):
        with pytest.raises(TidelogError) as refused:
            await location.move_consensus(place)
        assert isinstance(refused.value, UsageError | LocationError)
        assert store.objects == before


@dataclass(slots=True)
class StoppedMover:
    """A switch that stops the first mover before or after its first fence, until continued."""

    monkeypatch: pytest.MonkeyPatch
    is_after: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    mover: Any = None

    def __post_init__(self) -> None:
        fence = consensus_migration._Mover._fence

        async def stopping(mover: Any, *args: Any, **options: Any) -> Any:
            self.mover = self.mover or mover
            is_first = mover is self.mover and not self.go_on.is_set()
            if is_first and not self.is_after:
                await self._stop()
            found = await fence(mover, *args, **options)
            if is_first and self.is_after:
                await self._stop()
            self.fenced.set()
            return found

        self.monkeypatch.setattr(consensus_migration._Mover, "_fence", stopping)

    async def _stop(self) -> None:
        self.reached.set()
        await self.go_on.wait()


@pytest.mark.parametrize("to", ["sqlite", "store"])
@pytest.mark.parametrize("is_after", [False, True])
async def test_a_second_mover_finds_the_move_complete(
    places: dict[str, str], to: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second mover finds the move complete, whatever it has done itself."""
    store = MemoryStore()
    start = places["other" if to == "store" else "store"]
    location = await opened(store, create=True, consensus=start)
    await append(location, 1)
    stopped = StoppedMover(monkeypatch, is_after)
    slow = asyncio.create_task((await opened(store)).move_consensus(places[to]))
    await stopped.reached.wait()
    await (await opened(store)).move_consensus(places[to])
    stopped.go_on.set()
    assert (await slow).consensus == places[to]
    newcomer = await opened(store)
    assert await append(newcomer, 2)
    assert await numbers(newcomer) == [1, 2]


async def test_a_mover_that_was_overtaken_opens_no_fence(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overtaken mover may overwrite another's fence. Writers still wait for the current move."""
    store = MemoryStore()
    location = await opened(store, create=True)
    await append(location, 1)
    stopped = StoppedMover(monkeypatch, is_after=False)
    switch, may_switch = consensus_migration._Mover.switch, asyncio.Event()
    copied = asyncio.Event()

    async def switching(mover: Any, to: Any) -> bool:
        copied.set()
        await may_switch.wait()
        return await switch(mover, to)

    monkeypatch.setattr(consensus_migration._Mover, "switch", switching)
    overtaken = asyncio.create_task((await opened(store)).move_consensus(places["other"]))
    await stopped.reached.wait()
    mover = asyncio.create_task((await opened(store)).move_consensus(places["sqlite"]))
    await copied.wait()
    stopped.fenced.clear()
    stopped.go_on.set()
    await stopped.fenced.wait()
    overtaken.cancel()
    clock = SystemClock()  # Real waits, so that the writer does not take the mover for dead.
    writer = asyncio.create_task(append(await opened(store, clock=clock), 2))
    await asyncio.sleep(0.05)
    may_switch.set()
    assert (await mover).consensus == places["sqlite"]
    landed = not isinstance((await asyncio.gather(writer, return_exceptions=True))[0], Exception)
    assert await numbers(await opened(store)) == ([1, 2] if landed else [1])
