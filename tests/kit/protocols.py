"""Logs of both protocols for tests: creation, writers, readers and scrubs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa

from kit.clocks import SwiftClock
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.scrub.slot_scrub import scrub_slots
from tidelog.wal.scrub.tree_scrub import scrub
from tidelog.wal.slot_protocol.fencing import Fencer, make_log
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter

CLOCK = SwiftClock()
SMALL = Rollover(fragments=3, snapshots=2)


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


def opener_on(store: Store, name: str = "opener") -> Fencer:
    return Fencer(store=store, clock=CLOCK, writer=name)


async def make_slots(store: Store) -> None:
    await make_log(store, clock=CLOCK, writer="maker")


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


async def rows_of(kind: Kind, store: Store) -> list[dict[str, Any]]:
    """Return all records, after a scrub without problems."""
    assert (await kind.scrub(store)).problems == []
    found = kind.reader(store).scan()
    return [row async for table in found for row in table.to_pylist()]


async def contents(kind: Kind, store: Store) -> dict[int, bytes]:
    """Return all bodies by position; see `rows_of`."""
    return {row["position"]: row["body"] for row in await rows_of(kind, store)}
