"""Contradictions in a wal3 manifest or snapshot: every operation on the log raises an error.

Each change here affects one field and leaves all sums valid: an overlap, a gap, a reversed pointer,
a wrong number or a wrong size.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from kit.clocks import OneThread
from kit.goldens import objects
from kit.protocols import ALL
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.wal.describe import outline_log
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs

Json = dict[str, Any]
FOLDER = "log/source/"


def move(child: Json, end: str, by: int) -> None:
    child[end]["offset"] += by


def turn_round(child: Json) -> None:
    child["start"], child["limit"] = child["limit"], child["start"]


def lose(children: list[Json]) -> None:
    del children[1]


OF_FRAGMENTS: dict[str, Callable[[list[Json]], None]] = {
    "an overlap of fragments": lambda found: move(found[1], "start", -1),
    "a gap between fragments": lambda found: move(found[1], "start", 1),
    "a fragment turned round": lambda found: turn_round(found[3]),
    "a fragment of nothing": lambda found: found[3].update(limit=found[3]["start"]),
    "a different number": lambda found: found[3].update(seq_no=2**40),
    "another size": lambda found: found[3].update(num_bytes=2**40),
    "one fragment less": lose,
    "one fragment twice": lambda found: found.insert(3, found[3]),
    "the order of fragments": lambda found: found.reverse(),
}
OF_SNAPSHOTS: dict[str, Callable[[list[Json]], None]] = {
    "an overlap of snapshots": lambda found: move(found[1], "start", -1),
    "an overlap with a fragment": lambda found: move(found[-1], "limit", 1),
    "a snapshot turned round": lambda found: turn_round(found[0]),
    "a snapshot's size": lambda found: found[0].update(num_bytes=2**40),
    "one snapshot less": lose,
    "one snapshot twice": lambda found: found.insert(1, found[1]),
    "the order of snapshots": lambda found: found.reverse(),
}
CHANGES: Final = (*OF_FRAGMENTS, *OF_SNAPSHOTS)


async def read_all(logs: Logs, log: Log) -> object:
    return [records async for records in log.scan()]


async def append(logs: Logs, log: Log) -> object:
    try:
        return await log.append([b"more"])
    finally:
        await log.close()


ASKS: dict[str, Callable[[Logs, Log], Awaitable[object]]] = {
    "scan": read_all,
    "bounds": lambda _, log: log.bounds(),
    "append": append,
    "copy to slots": lambda logs, _: logs.copy("source", "copied", protocol="slot"),
    "copy": lambda logs, _: logs.copy("source", "copied", protocol="manifest"),
    "collect": lambda _, log: log.collect(keep=ALL, grace_us=0),
    "sweep": lambda _, log: log.sweep(grace_us=0),
    "fragments": lambda _, log: log.fragments(),
    "position_at": lambda _, log: log.position_at(0),
    "cursor": lambda _, log: log.create_cursor("new", 5),
    "describe": lambda _, log: outline_log(log.store, OneThread(), deep=True),
}


async def changed(change: str) -> tuple[MemoryStore, Logs, Log]:
    is_of_fragments = change in OF_FRAGMENTS
    log = objects("d_copy" if is_of_fragments else "b_snapshots")
    manifest = json.loads(log[MANIFEST])
    if is_of_fragments:
        OF_FRAGMENTS[change](manifest["fragments"])
    else:
        OF_SNAPSHOTS[change](manifest["snapshots"])
    store = MemoryStore()
    for key, data in {**log, MANIFEST: json.dumps(manifest).encode()}.items():
        await store.put(FOLDER + key, data)
    logs = Logs(store=store, clock=OneThread(), writer="asker")
    return store, logs, await logs.open("source")


@pytest.mark.parametrize("ask", ASKS)
async def test_it_is_told_and_nothing_is_built_upon_it(ask: str) -> None:
    """An operation on a contradictory log raises CorruptionError and writes only cursors."""
    for change in CHANGES:
        store, logs, log = await changed(change)
        before = dict(store.objects)

        try:
            found = await ASKS[ask](logs, log)
        except CorruptionError:
            found = None
        assert found is None, f"{ask}: {change}"
        kept = {key: one for key, one in store.objects.items() if "/cursor/" not in key}
        assert kept == before, f"{ask}: {change}"


@pytest.mark.parametrize("change", CHANGES)
async def test_a_scrub_tells_it(change: str) -> None:
    """A scrub reports the contradiction and does not raise."""
    _, _, log = await changed(change)

    assert not (await log.scrub()).is_clean
