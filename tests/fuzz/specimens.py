"""Logs to be damaged, each in a location in memory, and the truth about them.

They are small, so that a case takes milliseconds. They have one of everything: streams, snapshots
of snapshots, takeovers with void slots, cursors, pins, plans in each phase, forks, seals, and slots
that no manifest names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from fuzz.clock import StillClock
from kit.goldens import objects as golden_objects
from kit.stores import InterposedStore
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object, Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs, log_folder
from tidelog.wal.slot_protocol.shape import Shape

Row = tuple[int, int, bytes | None, bytes]
NAME: Final = "log"
GOLDENS: Final = (
    *("a_tiny", "c1_gc_phase1", "c2_gc_phase2", "d1_copy_append"),
    *("e_empty", "g_orphan", "h_all_collected"),
)
ALL: Final = Keep(share_max=1)
ONE_BY_ONE: Final = Batching(interval_us=0)
SMALL: Final = Rollover(fragments=2, snapshots=2)
ROLLED: Final = Shape(alpha=2, rollup_slots=2, rollover=SMALL)


@dataclass(slots=True, kw_only=True)
class Truth:
    """The content of one log. ``history`` also has collected records, by position."""

    protocol: str
    oldest: int
    next: int
    rows: list[Row] = field(default_factory=list)
    history: dict[int, Row] = field(default_factory=dict)
    streams: list[bytes] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    pins: dict[str, list[Row]] = field(default_factory=dict)
    is_sealed: bool = False
    next_when_grown: int = 0  # The position of a next append, after unfinished appends of others.
    rows_when_grown: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A location's objects, and the truth about each of its logs."""

    name: str
    objects: dict[str, bytes]
    logs: dict[str, Truth]

    def touches(self, objects: dict[str, bytes], name: str) -> bool:
        """Return True if an object of any log changed: a fork reads those of all logs."""
        folder = f"{log_folder(name)}/" if name == NAME else ""
        keys = (key for key in {*objects, *self.objects} if key.startswith(folder))
        return any(objects.get(key) != self.objects.get(key) for key in keys)


def store_of(objects: dict[str, bytes]) -> MemoryStore:
    found = {key: Object(data, f"m{n}", n) for n, (key, data) in enumerate(objects.items())}
    return MemoryStore(objects=found, puts_count=len(found))


class CollectorDied(Exception):
    """The collecting process has died."""


async def rows_of(tables: AsyncIterator[pa.Table]) -> list[Row]:
    return [row async for table in tables for row in rows_in(table)]


def rows_in(table: pa.Table) -> list[Row]:
    """Return records as tuples, the same for a slot log's object and for a read."""
    names = ("position", "timestamp_us", "stream", "body")
    columns = [table.column(name).to_pylist() for name in names]
    return list(zip(*columns, strict=True))


@dataclass(slots=True)
class Maker:
    """A maker of a specimen, which is the same each time."""

    name: str
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: StillClock = field(init=False)
    history: dict[str, dict[int, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = StillClock(self.name)

    def logs(self, writer: str, *, store: Store | None = None) -> Logs:
        return Logs(store=store or self.store, clock=self.clock, writer=writer)

    async def append(
        self, name: str, writer: str, count: int, *, alpha: int = 2, stream: bytes = b""
    ) -> None:
        """Append this many objects of one or two records."""
        shape = replace(ROLLED, alpha=alpha)
        async with await self.logs(writer).open(name, shape=shape, batching=ONE_BY_ONE) as log:
            for number in range(count):
                bodies = [b"%s %d.%d" % (writer.encode(), number, n) for n in range(1 + number % 2)]
                await log.append(bodies, stream=stream or None)

    async def append_ahead(self, name: str, writer: str, count: int) -> None:
        """Append, and die before a roll-up."""
        before = dict(self.store.objects)
        await self.append(name, writer, count, alpha=1)
        gone = [key for key in self.store.objects if "/snapshot/" in key and key not in before]
        await self.store.delete(gone)
        manifest = f"{log_folder(name)}/{MANIFEST}"
        await self.store.put(manifest, before[manifest].data)

    async def remember(self, name: str) -> None:
        """Note the content of a log before a collection."""
        log = await self.logs("watch").open(name)
        rows = await rows_of(log.scan(control=True))
        self.history.setdefault(name, {}).update({row[0]: row for row in rows})

    async def finished(self) -> Specimen:
        """Return the specimen with the current content of each log."""
        truths: dict[str, Truth] = {}
        for name in await self.logs("watch").list():
            await self.remember(name)
            truths[name] = await self._truth(name)
        objects = {key: found.data for key, found in sorted(self.store.objects.items())}
        return Specimen(name=self.name, objects=objects, logs=truths)

    async def _truth(self, name: str) -> Truth:
        log = await self.logs("watch").open(name)
        bounds, is_slots = await log.bounds(), log.protocol == "slot"
        pins = await log.pins() if is_slots else {}
        grown = await self._grown(name) if bounds.seal is None else []
        return Truth(
            protocol=log.protocol,
            oldest=bounds.oldest,
            next=bounds.next,
            rows=await rows_of(log.scan(control=True)),
            history=self.history[name],
            streams=[stream.id for stream in await log.streams()] if is_slots else [],
            cursors={n: c.position for n, c in (await log.cursors()).cursors.items()},
            pins={pin: await rows_of(log.scan_pin(pin, control=True)) for pin in pins},
            is_sealed=bounds.seal is not None,
            next_when_grown=grown[-1][0] if grown else bounds.next,
            rows_when_grown=grown[:-1],
        )

    async def _grown(self, name: str) -> list[Row]:
        """Return the content of a log after an append, which is undone."""
        store = MemoryStore(objects=dict(self.store.objects))
        async with await self.logs("grower", store=store).open(name) as log:
            await log.append([b"grown"])
            return await rows_of(log.scan(control=True))


async def collect_and_die(maker: Maker, name: str, *, at: Callable[[str, str], bool]) -> None:
    """Collect, and die before the first request for which ``at`` returns True."""

    async def before(op: str, key: str) -> None:
        if at(op, key):
            raise CollectorDied

    await maker.remember(name)
    log = await maker.logs("gc", store=InterposedStore(maker.store, before=before)).open(name)
    try:
        await log.collect(keep=ALL, grace_us=0)
    except CollectorDied:
        return
    raise AssertionError("it lived")


async def slots(maker: Maker) -> Log:
    """Make a slot log with one of everything except a plan."""
    await maker.logs("zero").create(NAME)
    log = await maker.logs("one").open(NAME, shape=ROLLED, batching=ONE_BY_ONE)
    await log.open_stream(b"a", b"mine")
    await log.open_stream(b"\xff\x00b")
    await log.append([b"to a", b""], stream=b"a")
    await maker.append(NAME, "two", 4)  # From a writer that continues, so that void slots exist.
    async with await maker.logs("one again").open(NAME, batching=ONE_BY_ONE) as again:
        await again.close_stream(b"\xff\x00b")
    await log.close()
    await maker.append(NAME, "three", 2, stream=b"a")
    log = await maker.logs("four").open(NAME)
    await log.create_pin("part", start=3, limit=7)
    await log.create_pin("whole")
    await log.create_cursor("slow", 6)
    await log.create_cursor("fast", (await log.bounds()).next)
    return log


async def slots_ahead(maker: Maker) -> None:
    await slots(maker)
    await maker.append_ahead(NAME, "five", 2)
    await maker.append_ahead(NAME, "six", 2)


async def slots_planned(maker: Maker) -> None:
    await slots(maker)
    seen: list[str] = []

    def at(op: str, key: str) -> bool:
        seen.append(key)
        return op == "put" and key.endswith(MANIFEST) and any("GARBAGE" in k for k in seen)

    await collect_and_die(maker, NAME, at=at)


async def slots_collected(maker: Maker) -> None:
    await slots(maker)
    await collect_and_die(maker, NAME, at=lambda op, _: op == "delete")


async def slots_sealed(maker: Maker) -> None:
    log = await slots(maker)
    await maker.remember(NAME)
    await log.collect(keep=ALL, grace_us=0)
    await log.seal(successor="next")
    await log.collect(keep=ALL, grace_us=0)


async def forks(maker: Maker) -> None:
    await slots(maker)
    fork = await maker.logs("seven").fork(NAME, "fork", start=3)
    await fork.create_pin("shared", start=4, limit=6)
    await fork.create_cursor("c", 5)
    await maker.append("fork", "eight", 3)


async def empty_slots(maker: Maker) -> None:
    await maker.logs("zero").create(NAME)


async def wal3(maker: Maker) -> None:
    await maker.logs("zero").create(NAME, protocol="manifest")
    await maker.append(NAME, "one", 9)
    log = await maker.logs("two").open(NAME)
    await log.create_cursor("compaction", 5)
    await log.create_cursor("other", 9)


async def wal3_planned(maker: Maker) -> None:
    await wal3(maker)
    await collect_and_die(maker, NAME, at=lambda op, _: op == "delete")


def golden(name: str) -> Callable[[Maker], Awaitable[object]]:
    async def make(maker: Maker) -> None:
        for key, data in golden_objects(name).items():
            await maker.store.put(f"{log_folder(NAME)}/{key}", data)

    return make


RECIPES: Final[dict[str, Callable[[Maker], Awaitable[object]]]] = {
    "slots ahead": slots_ahead,
    "slots planned": slots_planned,
    "slots collected": slots_collected,
    "slots sealed": slots_sealed,
    "slots empty": empty_slots,
    "forks": forks,
    "wal3": wal3,
    "wal3 planned": wal3_planned,
    **{f"Chroma's {name}": golden(name) for name in GOLDENS},
}


async def _made(name: str) -> Specimen:
    maker = Maker(name)
    await open_location("memory://", create=True, clock=maker.clock, store=maker.store)
    await RECIPES[name](maker)
    return await maker.finished()


_KEPT: dict[str, Specimen] = {}


def specimen(name: str) -> Specimen:
    """Return the specimen of a name, made once in a process."""
    if name not in _KEPT:
        _KEPT[name] = asyncio.run(_made(name))
    return _KEPT[name]
