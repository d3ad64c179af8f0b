"""Logs by name in a store: written with one record per fragment, read whole, collected."""

from __future__ import annotations

from kit.protocols import CLOCK
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.opening import create_log, open_log
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.shape import Shape

ALL = Keep(share_max=1)
SHAPE = Shape(alpha=4, rollup_slots=5, rollover=Rollover(fragments=3, snapshots=2))


def shelf_on(store: Store) -> Logs:
    return Logs(store=store, clock=CLOCK, writer="me")


async def opened(
    store: Store, name: str = "w", *, is_new: bool = False, shape: Shape = SHAPE
) -> SlotLog:
    """Return a handle of the slot log ``x`` that fills the store; ``name`` is the writer's."""
    open_it = create_log if is_new else open_log
    batching = Batching(interval_us=0)
    log = await open_it(store, name="x", clock=CLOCK, writer=name, shape=shape, batching=batching)
    assert isinstance(log, SlotLog)
    return log


async def append(store: Store, name: str, count: int) -> None:
    """Append records one by one, each as a fragment."""
    log = await shelf_on(store).open(name, shape=SHAPE, batching=Batching(interval_us=0))
    async with log:
        for number in range(count):
            await log.append([f"{name} {number}".encode()])


async def log_of(store: Store, name: str, count: int, *, protocol: str = "slot") -> None:
    await shelf_on(store).create(name, protocol=protocol)
    await append(store, name, count)


async def store_with(*, protocol: str = "slot", **counts: int) -> MemoryStore:
    """Return a store with logs of these names and numbers of records."""
    store = MemoryStore()
    for name, count in counts.items():
        await log_of(store, name, count, protocol=protocol)
    return store


async def contents(store: Store, name: str) -> dict[int, bytes]:
    """Return all bodies by position, after a scrub without problems."""
    log = await shelf_on(store).open(name)
    assert (await log.scrub()).problems == []
    return {row["position"]: row["body"] async for table in log.scan() for row in table.to_pylist()}


async def collect_to(store: Store, name: str, position: int) -> Log:
    log = await shelf_on(store).open(name)
    if (await log.cursors()).cursors:
        await log.move_cursor(await log.load_cursor("x"), position)
    else:
        await log.create_cursor("x", position)
    await log.collect(keep=ALL, grace_us=0)
    return log
