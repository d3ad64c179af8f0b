"""Sweeping a wal3 log: what collectors and writers that died left behind is found by listing.

A collection deletes what its plan names. What no plan names any more, such as the snapshots of a
plan that was taken away, or a fragment whose writer slept through a collection, is left; so is what
Chroma's collector leaves when it dies after the manifest. Here everything is listed, and deleted
if, and only if, the manifest proves it dead: fragments below its first number, and snapshots that
begin below its first position. What lies above may be a writer's, who has not come to the manifest.
Source: docs/wal3.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.clock import Clock
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.collector import GRACE_US
from tidelog.wal.manifest import (
    Manifest,
    decode_snapshot,
    fragment_path,
    snapshot_path,
    sum_of,
)
from tidelog.wal.reader import Wal3Reader
from tidelog.wal.tree import paths_named

_FRAGMENT: Final = re.compile(r"log/.*FragmentSeqNo=([0-9a-f]{16})\.parquet")
_SNAPSHOT: Final = re.compile(r"snapshot/SNAPSHOT\.[0-9a-f]{64}")


@dataclass(slots=True)
class Swept:
    """What a sweep found that the log does not name.

    Shape: keys. ``unproven`` may still become part of the log; ``foreign`` are no objects of a log.
    """

    deleted: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def sweep(store: Store, *, clock: Clock, grace_us: int = GRACE_US) -> Swept:
    """Delete the objects of the log at the root of ``store`` that are dead, and tell of others.

    Units: ``grace_us`` microseconds pass between the look at the manifest and the deletion, since
        another collector may have replaced it just before.

    Raises:
        NoSuchLog: there is none. CorruptionError: it names what is not there; nothing was deleted.
        LocationError: the store failed; some may have been deleted.
    """
    manifest, named = await paths_named(Wal3Reader(store=store, clock=clock))
    found = Swept()
    for prefix in ("log/", "snapshot/"):
        async for entry in store.list(prefix):
            if entry.key not in named:
                await _judge(store, manifest, entry.key, found)
    if found.deleted:
        await clock.sleep(grace_us)
        await store.delete(found.deleted)
    return found


async def _judge(store: Store, manifest: Manifest, key: str, found: Swept) -> None:
    """Put a key where it belongs."""
    if number := _FRAGMENT.fullmatch(key):
        seq_no = int(number[1], 16)
        if key != fragment_path(seq_no):
            found.foreign.append(key)
        elif seq_no < (manifest.initial_seq_no or 0):
            found.deleted.append(key)
        else:
            found.unproven.append(key)
        return
    start = await _start_of(store, key) if _SNAPSHOT.fullmatch(key) else 0
    if start == 0:
        found.foreign.append(key)
    elif start is not None:
        (found.deleted if start < manifest.oldest else found.unproven).append(key)


async def _start_of(store: Store, key: str) -> int | None:
    """Give where a snapshot begins; 0 if it is none, and None if it has gone meanwhile."""
    try:
        snapshot = decode_snapshot((await store.get(key)).data, where=key)
    except ObjectNotFound:
        return None
    except CorruptionError:
        return 0
    children = snapshot.children
    is_whole = children and snapshot.setsum == sum_of(children)
    return children[0].start if is_whole and key == snapshot_path(snapshot.setsum) else 0
