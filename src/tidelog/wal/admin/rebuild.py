"""Rebuilding a slot log whose manifest was lost, from what its objects say of themselves.

Only the ends of the objects are read. What cannot be made again: cursors and pins are objects of
their own, and stay; the names of openers of the first epoch; and where the log began, if nothing of
it is left.
Source: design page 3, "Roll-up".
"""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.clock import Clock, run_all
from tidelog.errors import CorruptionError, NameTaken, ObjectExists, ObjectNotFound, UsageError
from tidelog.store.conditional import create
from tidelog.store.port import Entry, Store
from tidelog.wal.admin.chain_recovery import Found, relink
from tidelog.wal.format.epoch import EPOCHS, place_of
from tidelog.wal.format.link import Link
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.manifest_update import Rollover, check_manifest
from tidelog.wal.format.slot_object import link_of_metadata
from tidelog.wal.format.snapshot import encode_snapshot
from tidelog.wal.slot_protocol.checkpoint import roll_all

TAIL_BYTES: Final = 16 * 1024  # Holds the footer of nearly every slot's object.
READS_MAX: Final = 16
MAGIC: Final = b"PAR1"


async def rebuild_log(store: Store, *, clock: Clock, writer: str) -> Manifest:
    """Make the manifest of the log at the root of a store again; return it.

    Raises:
        NameTaken: there is a manifest: nothing was done. UsageError: there is nothing of a slot
        log. CorruptionError: the objects do not make a log; nothing was written. LocationError: the
        store failed.
    """
    try:
        await store.get(MANIFEST, limit=1)
    except ObjectNotFound:
        pass
    else:
        raise NameTaken("the log has a manifest: scrub it, and move it away if it is damaged")
    entries = [entry async for entry in store.list(EPOCHS) if place_of(entry.key) is not None]
    if not entries:
        raise UsageError(
            "there are no slots here: a log in wal3's form, or none, cannot be rebuilt"
        )
    work = [partial(_found, store, clock, entry) for entry in entries]
    manifest = relink(await run_all(work, at_once=READS_MAX), writer=writer)
    manifest, snapshots = roll_all(manifest, Rollover(), writer=writer)
    check_manifest(manifest)
    try:
        for snapshot in snapshots:
            # One that is there names the same.
            try:
                await create(store, snapshot.path, encode_snapshot(snapshot), clock=clock)
            except ObjectExists:
                continue
        data = encode_manifest(manifest)
        await create(store, MANIFEST, data, clock=clock, replaceable=True)
    except ObjectExists as error:
        raise NameTaken("another has just made a manifest for the log") from error
    return manifest


async def _found(store: Store, clock: Clock, entry: Entry) -> Found:
    start = max(0, entry.size_bytes - TAIL_BYTES)
    tail = (await store.get(entry.key, start=start)).data
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if footer_bytes > len(tail) and start:
        tail = (await store.get(entry.key, start=max(0, entry.size_bytes - footer_bytes))).data
    link = await clock.offload(partial(_link, tail, footer_bytes, entry.key))
    return Found(entry.key, link, entry.size_bytes)


def _link(tail: bytes, footer_bytes: int, path: str) -> Link:
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + tail[-footer_bytes:]))
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(
            f"a slot's object cannot be read: restore it, or move it away ({error})", path=path
        ) from error
    return link_of_metadata(metadata, path)
