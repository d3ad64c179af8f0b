"""Logs of both protocols for tests: creation, writers, readers and scrubs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa

from kit.clocks import SwiftClock
from tidelog.errors import Outcome, TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.gc.collector import Collector
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.gc.plan import Keep
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.opening import open_log
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.scrub.slot_scrub import scrub_slots
from tidelog.wal.scrub.tree_scrub import scrub
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.fencing import Fencer, make_log
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter

CLOCK = SwiftClock()
SMALL = Rollover(fragments=3, snapshots=2)
ALL = Keep(share_max=1)


class Writer(Protocol):
    """The methods of the writers of both protocols."""

    async def append(self, records: Sequence[bytes], *, wait: bool = True) -> int: ...

    async def append_arrow(self, bodies: pa.BinaryArray, *, wait: bool = True) -> int: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class Reader(Protocol):
    """The methods of the readers of both protocols."""

    def scan(self, start: int = 0, *, limit: int | None = None) -> AsyncIterator[pa.Table]: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two protocols.

    ``settle`` opens the log as the next writer would. After that, no append has an open outcome.
    """

    name: str
    make: Callable[[Store], Awaitable[object]]
    writer: Callable[..., Any]
    reader: Callable[[Store], Reader]
    scrub: Callable[[Store], Awaitable[ScrubReport]]
    settle: Callable[[Store], Awaitable[object]]

    def __str__(self) -> str:
        return self.name


def committer_on(store: Store, name: str = "w") -> Committer:
    return Committer(store=store, clock=CLOCK, writer=name, rollover=SMALL)


def wal3_writer(store: Store, *, name: str = "w", **batching: int) -> Wal3Writer:
    committer = committer_on(store, name)
    return Wal3Writer(committer=committer, batching=Batching(interval_us=0, **batching))


def slot_writer(
    store: Store, *, name: str = "w", lanes: int = 1, alpha: int = 4, **batching: int
) -> SlotWriter:
    return SlotWriter(
        store=store,
        clock=CLOCK,
        writer=name,
        shape=Shape(lanes=lanes, alpha=alpha, rollup_slots=5, rollover=SMALL),
        batching=Batching(interval_us=0, **batching),
    )


def wal3_reader(store: Store) -> Wal3Reader:
    return Wal3Reader(store=store, clock=CLOCK)


def slot_reader(store: Store) -> SlotReader:
    return SlotReader(store=store, clock=CLOCK)


def log_on(store: Store) -> SlotLog:
    return SlotLog(name="x", store=store, clock=CLOCK, writer="me")


def cursors_on(store: Store, writer: str = "me") -> Cursors:
    return Cursors(store=store, clock=CLOCK, writer=writer)


def collector_on(store: Store, *, keep: Keep = ALL, grace_us: int = 1_000_000) -> Collector:
    """Return a collector of a log in wal3's form."""
    return Collector(store=store, clock=CLOCK, writer="gc", keep=keep, grace_us=grace_us)


async def collect_to(store: Store, position: int) -> None:
    """Move the cursor ``x`` of any log to a position, and collect everything below it."""
    log = await open_log(store, name="x", clock=CLOCK, writer="gc")
    held = (await log.cursors()).cursors.get("x")
    if held is None:
        await log.create_cursor("x", position)
    elif held.position < position:
        await log.move_cursor(await log.load_cursor("x"), position)
    await log.collect(keep=ALL, grace_us=1)


def opener_on(store: Store, name: str = "opener") -> Fencer:
    return Fencer(store=store, clock=CLOCK, writer=name)


async def make_slots(store: Store) -> None:
    await make_log(store, clock=CLOCK, writer="maker")


async def slot_store() -> MemoryStore:
    """Return a new store with an empty slot log."""
    store = MemoryStore()
    await make_slots(store)
    return store


WAL3 = Kind(
    "manifest",
    make=lambda store: committer_on(store).open(make=True),
    writer=wal3_writer,
    reader=wal3_reader,
    scrub=lambda store: scrub(wal3_reader(store)),
    settle=lambda store: committer_on(store).open(),
)
SLOTS = Kind(
    "slot",
    make=make_slots,
    writer=slot_writer,
    reader=slot_reader,
    scrub=lambda store: scrub_slots(slot_reader(store)),
    settle=lambda store: opener_on(store).open(lanes=1, alpha=2),
)
KINDS = (WAL3, SLOTS)


async def outcome_of(call: Awaitable[object]) -> Outcome:
    """Return the outcome of a call: that of its error, or APPLIED."""
    try:
        await call
    except TidelogError as error:
        return error.outcome
    return Outcome.APPLIED


async def rows_of(kind: Kind, store: Store) -> list[dict[str, Any]]:
    """Return all records, after a scrub without problems."""
    assert (await kind.scrub(store)).problems == []
    found = kind.reader(store).scan()
    return [row async for table in found for row in table.to_pylist()]


async def contents(kind: Kind, store: Store) -> dict[int, bytes]:
    """Return all bodies by position; see `rows_of`."""
    return {row["position"]: row["body"] for row in await rows_of(kind, store)}
