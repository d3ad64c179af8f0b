"""A damaged log under constant writes: every operation reports the damage and ends.

Each load of the manifest returns another version. Only the start of the log shows whether a missing
object was collected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kit.named_logs import ALL, append, log_of, shelf_on
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object
from tidelog.wal.format.manifest import MANIFEST, decode_manifest, encode_manifest
from tidelog.wal.log import Log
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.stream_history import streams_at

READS_MAX = 1_000


class BusyStore(MemoryStore):
    """A store that returns another manifest at each get."""

    reads: int = 0

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        found = await MemoryStore.get(self, key, start=start, limit=limit)
        self.reads += 1
        assert self.reads < READS_MAX, "somebody goes round for ever"
        if not key.endswith(MANIFEST) or limit is not None:
            return found
        manifest = decode_manifest(found.data)
        return replace(found, data=encode_manifest(replace(manifest, writer=str(self.reads))))


async def scan(log: Log) -> None:
    async for _ in log.scan():
        pass


async def streams(log: Log) -> None:
    await streams_at(SlotReader(store=log.store, clock=log.clock), 12)


WAYS: dict[str, Callable[[Log], Awaitable[object]]] = {
    "scan": scan,
    "fragments": lambda log: log.fragments(),
    "position_at": lambda log: log.position_at(1),
    "streams": streams,
    "sweep": lambda log: log.sweep(grace_us=0),
    "collect": lambda log: log.collect(keep=ALL, grace_us=0),
}


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_missing_in_a_busy_log_is_damage(way: str) -> None:
    """A missing snapshot that no collector deleted raises CorruptionError."""
    store = BusyStore()
    await log_of(store, "a", 0)
    log = await shelf_on(store).open("a")
    await log.open_stream(b"s")
    await log.close()
    await append(store, "a", 20)
    log = await shelf_on(store).open("a")
    await log.create_cursor("x", 15)
    first = (await load_head(log.store)).manifest.snapshots[0]
    await log.store.delete([first.path])
    store.reads = 0
    with pytest.raises(CorruptionError, match="names a missing object"):
        await WAYS[way](log)
