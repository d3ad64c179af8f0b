"""Copies of a wal3 log, or of its newest part, to another place: fragments first, manifest last.

The copy has the source's positions, numbers, times and fragment bytes. Its manifest lists all
fragments, without snapshots, and has no trace of records collected before. Cursors are copied only
on request. Afterwards the two logs are independent.

Invariants: the copy is not a log until its manifest is written, and copying again continues an
aborted copy. Each fragment is verified before it is stored. Cursors are stored before the manifest,
so a collection of the copy sees all of them.
Source: wal3, "Copy"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tidelog.core.clock import Clock, run_all
from tidelog.core.setsum import Setsum
from tidelog.errors import (
    NameTaken,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    PositionCollected,
)
from tidelog.store import conditional
from tidelog.store.conditional import create
from tidelog.store.port import Store
from tidelog.wal.format.cursor import Cursor, cursor_path, encode_cursor
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import MANIFEST, Manifest
from tidelog.wal.format.manifest_update import check_manifest
from tidelog.wal.format.snapshot import sum_of
from tidelog.wal.format.wal3_records import checked_fragment
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.read.head import missing, read_again
from tidelog.wal.read.manifest_store import ManifestStore

COPIER: Final = "copy task"  # Chroma's copies have the same name.
COPIER_OF_NOTHING: Final = "zero-copy task"


def manifest_of_copy(source: Manifest, fragments: Sequence[Fragment]) -> Manifest:
    """Return the manifest of a copy with these fragments of a log.

    A copy without fragments continues where the source does.
    """
    if not fragments:
        return Manifest(
            writer=COPIER_OF_NOTHING,
            initial_offset=source.next,
            initial_seq_no=source.next_seq_no,
        )
    return Manifest(
        setsum=sum_of(fragments),
        collected=Setsum.zero(),
        acc_bytes=sum(fragment.num_bytes for fragment in fragments),
        writer=COPIER,
        fragments=tuple(fragments),
        initial_offset=fragments[0].start,
        initial_seq_no=fragments[0].seq_no,
    )


async def copy_log(
    source: Wal3Reader,
    target: Store,
    *,
    start: int = 0,
    cursors: Mapping[str, Cursor] | None = None,
) -> Manifest:
    """Copy the fragment that contains ``start`` and all later ones; return the copy's manifest.

    Start 0 is the oldest retained record. A cursor at ``start`` should hold the source during the
    copy. The copy gets ``cursors``. The caller read them before this call, so none is ahead of the
    source's current one.

    Raises:
        NoSuchLog: the source does not exist.
        NameTaken: the target has a log, or other objects.
        PositionCollected: ``start`` was collected, before or during the copy.
        CorruptionError: the source is damaged.
        LocationError: a store failed; copy again.
    """
    manifest = await source.manifest()
    _demand_kept(manifest, start)
    await demand_no_log(target)
    try:
        fragments = await source.tree.fragments_of(manifest, start=start)
        copied = manifest_of_copy(manifest, fragments)
        check_manifest(copied)
        work = [partial(_copy_fragment, source, fragment, target) for fragment in fragments]
        await run_all(work, at_once=source.reads)
    except ObjectNotFound as error:
        newer = await source.manifest()
        if newer.oldest > manifest.oldest:
            _demand_kept(newer, start or manifest.oldest)
        raise missing(error) from error
    await _demand_nothing_else(target, fragments)
    for name, cursor in (cursors or {}).items():
        position = min(max(cursor.position, copied.oldest), copied.next)
        await _carry_cursor(target, name, replace(cursor, position=position), source.clock)
    try:
        await ManifestStore(store=target, clock=source.clock).create(copied)
    except ObjectExists as error:
        raise taken(target, MANIFEST) from error
    return copied


async def _copy_fragment(source: Wal3Reader, fragment: Fragment, target: Store) -> None:
    async def once() -> bytes:
        data = (await source.store.get(fragment.path)).data
        await source.clock.offload(partial(checked_fragment, data, fragment))
        return data

    data = await read_again(once)
    try:
        await create(target, fragment.path, data, clock=source.clock)
    except ObjectExists as error:
        # An aborted copy left it, or it is another object.
        if (await target.get(fragment.path)).data != data:
            raise taken(target, fragment.path) from error


async def _carry_cursor(target: Store, name: str, cursor: Cursor, clock: Clock) -> None:
    path, data = cursor_path(name), encode_cursor(cursor)
    try:
        await create(target, path, data, clock=clock, replaceable=True)
    except ObjectExists:
        # An aborted copy left it. The source's cursor may have been moved back since.
        found = await target.get(path)
        await demand_no_log(target)
        try:
            await conditional.replace(target, path, data, e_tag=found.e_tag, clock=clock)
        except ObjectChanged as error:
            raise taken(target, path) from error


async def demand_no_log(target: Store) -> None:
    """Refuse a target that has a log.

    Raises:
        NameTaken: the target has a log.
    """
    try:
        await target.get(MANIFEST)
    except ObjectNotFound:
        return
    raise taken(target, MANIFEST)


async def _demand_nothing_else(target: Store, fragments: Sequence[Fragment]) -> None:
    """Refuse a target with a further fragment, because an opener would add it to the copy."""
    paths = {fragment.path for fragment in fragments}
    async for entry in target.list("log/"):
        if entry.key not in paths:
            raise taken(target, entry.key)


def _demand_kept(manifest: Manifest, start: int) -> None:
    if 0 < start < manifest.oldest:
        raise PositionCollected(
            f"the records {start} to {manifest.oldest - 1} were collected: copy from "
            f"{manifest.oldest}, and hold the log with a cursor during the copy",
            oldest=manifest.oldest,
        )


def taken(target: Store, key: str) -> NameTaken:
    """Return the error of a target that has other objects."""
    if key == MANIFEST:
        return NameTaken(
            "the target already has a log: copy to another name or to an empty location",
            target=target.url,
        )
    return NameTaken(
        "the target has an object that is not part of this copy: copy to an empty location",
        target=target.url,
        key=key,
    )
