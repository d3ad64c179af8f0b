"""Operations on a log with one object cut short at its first read: none reports damage.

Each operation must have the same result as without the cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa
import pytest

from kit.clocks import OneThread
from kit.lying import CutsShort
from kit.named_logs import ALL, SHAPE
from kit.stores import copy_of
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs

Work = Callable[[Logs, Log], Awaitable[object]]


async def bodies(found: AsyncIterator[pa.Table]) -> list[object]:
    return [body async for table in found for body in table.column("body").to_pylist()]


async def setsum(log: Log) -> str:
    return (await log.describe()).setsum


async def scrubbed(_: Logs, log: Log) -> object:
    found = await log.scrub()
    return found.problems, found.unnamed, found.records


async def appended(_: Logs, log: Log) -> object:
    async with log:
        return await log.append([b"more"])


async def collected(_: Logs, log: Log) -> object:
    following = (await log.bounds()).next
    await log.move_cursor(await log.load_cursor("c"), following)
    await log.collect(keep=ALL, grace_us=0)
    return await log.bounds()


async def copied(logs: Logs, _: Log) -> object:
    return await setsum(await logs.copy("a", "b"))


async def transcribed(logs: Logs, _: Log) -> object:
    return await setsum(await logs.copy("a", "b", protocol="slot"))


async def destroyed(logs: Logs, _: Log) -> object:
    return await logs.drop("a", grace_us=0)


async def pin_made(_: Logs, log: Log) -> object:
    return (await log.create_pin("q")).pin.limit


async def pin_released(_: Logs, log: Log) -> object:
    await log.drop_pin("p")
    return await log.pins()


async def forked(logs: Logs, _: Log) -> object:
    return await setsum(await logs.fork("a", "b"))


async def rebuilt(logs: Logs, log: Log) -> object:
    await log.store.delete([MANIFEST])
    return await setsum(await logs.rebuild("a"))


BOTH: dict[str, Work] = {
    "scrub": scrubbed,
    "scan": lambda _, log: bodies(log.scan()),
    "append": appended,
    "list cursors": lambda _, log: log.cursors(),
    "load a cursor": lambda _, log: log.load_cursor("c"),
    "collect": collected,
    "sweep": lambda _, log: log.sweep(grace_us=0),
    "describe": lambda _, log: log.describe(),
    "copy": copied,
    "destroy": destroyed,
}
MANIFESTS: dict[str, Work] = {"copy to slots": transcribed}
SLOTS: dict[str, Work] = {
    "list pins": lambda _, log: log.pins(),
    "scan a pin": lambda _, log: bodies(log.scan_pin("p")),
    "make a pin": pin_made,
    "release a pin": pin_released,
    "list streams": lambda _, log: log.streams(),
    "fork": forked,
    "rebuild": rebuilt,
}
OPERATIONS = {"manifest": BOTH | MANIFESTS, "slot": BOTH | SLOTS}
EACH = [
    pytest.param(protocol, name, id=f"{protocol}: {name}")
    for protocol, works in OPERATIONS.items()
    for name in works
]


@pytest.fixture(scope="module")
def wholes() -> dict[str, MemoryStore]:
    return {protocol: asyncio.run(log_of(protocol)) for protocol in OPERATIONS}


async def log_of(protocol: str) -> MemoryStore:
    """Return a log "a" with a cursor, a plan and an unnamed snapshot.

    A slot log also has streams, a pin that alone holds records, and records past the manifest.
    """
    store = MemoryStore()
    logs = logs_in(store)
    await logs.create("a", protocol=protocol)
    for stream in (b"one", b"two"):
        async with await logs.open("a", shape=SHAPE, batching=Batching(interval_us=0)) as log:
            for number in range(5):
                await log.append([b"%d" % number])
            if protocol == "slot":
                await log.open_stream(stream)
    await log.create_cursor("c", 8)
    if protocol == "slot":
        await log.create_pin("p", start=3, limit=5)
    before = dict(store.objects)
    await log.collect(keep=ALL, grace_us=0)
    gone = sorted(before.keys() - store.objects.keys())
    left = next(key for key in gone if "/snapshot/" in key)
    store.objects[left] = before[left]
    async with await logs.open("a", shape=SHAPE) as log:
        await log.append([b"past the manifest"])
        return copy_of(store)


def logs_in(store: MemoryStore) -> Logs:
    return Logs(store=store, clock=OneThread(), writer="me")


async def done(work: Work, store: MemoryStore) -> object:
    logs = logs_in(store)
    return await work(logs, await logs.open("a"))


@pytest.mark.parametrize(("protocol", "name"), EACH)
async def test_what_is_cut_short_once_changes_nothing(
    wholes: dict[str, MemoryStore], protocol: str, name: str
) -> None:
    """Each object is cut short alone, because a first failure would hide the others."""
    work, whole = OPERATIONS[protocol][name], wholes[protocol]
    plain = CutsShort(copy_of(whole), only="")
    wanted = await done(work, plain)

    for key in sorted(plain.asked & whole.objects.keys()):
        cutting = CutsShort(copy_of(whole), only=key)
        assert await done(work, cutting) == wanted, key
