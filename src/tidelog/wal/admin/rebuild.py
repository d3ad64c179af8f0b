"""The rebuild of a slot log's lost manifest from the links of its objects.

It reads only the ends of the objects, and the collection plan, which states where the log begins.
Cursors and pins are objects of their own, and remain. The name of the first epoch's opener is lost.
A collector must not run concurrently, because it would delete by the lost manifest.
Source: design page 3, "Rebuild"; docs/internals/log-forks.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from tidelog.core.clock import Clock, run_all
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    NameTaken,
    ObjectExists,
    ObjectNotFound,
    UsageError,
)
from tidelog.store.port import Entry, Store
from tidelog.wal.admin.chain_recovery import relink
from tidelog.wal.admin.found_slots import FoundSlot
from tidelog.wal.format.epoch_list import shorten
from tidelog.wal.format.gc_plan import Garbage
from tidelog.wal.format.link import EPOCHS
from tidelog.wal.format.manifest import Manifest, chain_of
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.snapshot import object_of
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.gc.pin_objects import each_pin
from tidelog.wal.gc.plan_file import PlanFile
from tidelog.wal.read.head import has_manifest
from tidelog.wal.read.manifest_store import ManifestStore
from tidelog.wal.read.named_objects import store_named
from tidelog.wal.slot_protocol.checkpoint import roll_all
from tidelog.wal.slot_protocol.link_reader import read_link

READS_MAX: Final = 16


async def rebuild_log(
    store: Store, *, clock: Clock, writer: str, start: int | None = None
) -> Manifest:
    """Restore the manifest of the log at the root of a store; return it.

    ``start`` is a position from which the log is known to be complete: see `relink`.

    Raises:
        NameTaken: the manifest exists. NOT_APPLIED.
        UsageError: there is no slot, or no object begins at ``start``.
        NoSuchLog: the log was dropped.
        CorruptionError: the objects do not form a log. NOT_APPLIED.
        ContentionError: objects were deleted concurrently.
        LocationError: the store failed.
    """
    if await has_manifest(store):
        raise NameTaken(
            "the log has a manifest, so it needs no rebuild: scrub the log; if the manifest is "
            "damaged, move it away, then rebuild"
        )
    plan = await _plan(store, clock)
    entries = [entry async for entry in store.list(EPOCHS) if place_of(entry.key) is not None]
    if not entries:
        raise UsageError(
            "no objects of a log of the slot protocol are stored at that name, so no log can be "
            "rebuilt: check the name and the location"
        )
    try:
        work = [partial(_found, store, entry) for entry in entries]
        found = await run_all(work, at_once=READS_MAX)
    except ObjectNotFound as error:
        raise ContentionError(
            "another process is deleting objects of the log: stop its collectors, then rebuild "
            "again"
        ) from error
    decide = partial(relink, found, plan=plan, writer=writer, start=start)
    manifest = await clock.offload(decide)
    await _refuse_short(store, clock, manifest)
    return await _store(store, clock, manifest, writer)


async def _plan(store: Store, clock: Clock) -> Garbage | None:
    found = await PlanFile(store=store, clock=clock).read()
    return found.plan if found.e_tag else None


async def _refuse_short(store: Store, clock: Clock, manifest: Manifest) -> None:
    """Refuse a manifest that ends before a position that the log is known to have reached.

    Raises:
        CorruptionError: a cursor or a pin is past the manifest's end.
    """
    cursors = await Cursors(store=store, clock=clock, writer="").list()
    known = [cursor.position for cursor in cursors.cursors.values()]
    known += [found.pin.limit async for found in each_pin(store)]
    if max(known, default=0) > manifest.next:
        raise CorruptionError(
            "the newest records of the log are missing: a cursor or a pin is past the last "
            "record; restore the records, or drop the cursor or pin if they are lost; nothing was "
            "written",
            next=manifest.next,
            known=max(known),
        )


async def _store(store: Store, clock: Clock, manifest: Manifest, writer: str) -> Manifest:
    maker = clock.unique()[:16]  # Older snapshots may name deleted objects, or another log's.
    manifest, snapshots = roll_all(manifest, Rollover(), writer=writer, maker=maker)
    chain, lists = shorten(chain_of(manifest))
    for one in [*map(object_of, snapshots), *lists]:
        await store_named(store, one, clock=clock)
    manifest = replace(manifest, chain=chain)
    try:
        await ManifestStore(store=store, clock=clock).create(manifest)
    except ObjectExists as error:
        raise NameTaken(
            "another process created the log's manifest concurrently: scrub the log"
        ) from error
    return manifest


async def _found(store: Store, entry: Entry) -> FoundSlot:
    link, size_bytes = await read_link(store, entry.key, entry.size_bytes)
    return FoundSlot(entry.key, link, size_bytes)
