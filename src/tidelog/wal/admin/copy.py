"""Copying a wal3 log, or what is left of it, to another place: fragments first, the manifest last.

The copy has the source's positions, numbers and times, and the bytes of its fragments. It lists
them all in its manifest, without snapshots, and knows nothing of what was collected before; cursors
are copied only if that is asked for. From then on the two have nothing to do with each other.

Invariants: until its manifest is written, the copy is no log; a copy that was broken off is taken
up by copying again. Each fragment has been read and checked before it is stored. Cursors are there
before the log is: a collection of it meets them all.
Source: wal3, "Copy"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tidelog.clock import Clock, run_all
from tidelog.errors import (
    NameTaken,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    PositionCollected,
)
from tidelog.setsum import Setsum
from tidelog.store import conditional
from tidelog.store.conditional import create
from tidelog.store.port import Store
from tidelog.wal.format.cursor import Cursor, cursor_path, encode_cursor
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import MANIFEST, Manifest
from tidelog.wal.format.manifest_update import check_manifest
from tidelog.wal.format.snapshot import sum_of
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.read.codec import checked_fragment
from tidelog.wal.read.head import missing
from tidelog.wal.read.manifest_store import ManifestStore
from tidelog.wal.read.read_again import read_again

COPIER: Final = "copy task"  # As in Chroma's copies.
COPIER_OF_NOTHING: Final = "zero-copy task"


def manifest_of_copy(source: Manifest, fragments: Sequence[Fragment]) -> Manifest:
    """Return the manifest of a copy that has these fragments of a log.

    A copy of none goes on where the source does.
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
    """Copy the fragments that hold ``start`` and all after it; return the manifest of the copy.

    Start 0 is the oldest record that is left. The fragment in which ``start`` lies is copied whole.
    A cursor at ``start`` should hold the source meanwhile. The copy has these ``cursors``; they
    were read before this call, so none of them is further than the source's is.

    Raises:
        NoSuchLog: there is no source. NameTaken: there is a log at the target, or another's
        objects. PositionCollected: ``start`` was collected, or came to be. CorruptionError: the
        source is not what was written. LocationError: a store failed; copy again.
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
        # A copy that was broken off has left it, or it is something else.
        if (await target.get(fragment.path)).data != data:
            raise taken(target, fragment.path) from error


async def _carry_cursor(target: Store, name: str, cursor: Cursor, clock: Clock) -> None:
    path, data = cursor_path(name), encode_cursor(cursor)
    try:
        await create(target, path, data, clock=clock, replaceable=True)
    except ObjectExists:
        # A copy that was broken off has left it. The source's may have been set back since.
        found = await target.get(path)
        await demand_no_log(target)
        try:
            await conditional.replace(target, path, data, e_tag=found.e_tag, clock=clock)
        except ObjectChanged as error:
            raise taken(target, path) from error


async def demand_no_log(target: Store) -> None:
    """Refuse a target at which there is a log.

    Raises:
        NameTaken: there is.
    """
    try:
        await target.get(MANIFEST)
    except ObjectNotFound:
        return
    raise taken(target, MANIFEST)


async def _demand_nothing_else(target: Store, fragments: Sequence[Fragment]) -> None:
    """Refuse a target with a fragment more: whoever opened the copy would bring it in."""
    paths = {fragment.path for fragment in fragments}
    async for entry in target.list("log/"):
        if entry.key not in paths:
            raise taken(target, entry.key)


def _demand_kept(manifest: Manifest, start: int) -> None:
    if 0 < start < manifest.oldest:
        raise PositionCollected(
            f"records from {start} on were collected: the oldest is {manifest.oldest}; hold the "
            "log by a cursor while it is copied",
            oldest=manifest.oldest,
        )


def taken(target: Store, key: str) -> NameTaken:
    """Return the error of a target at which something else lies."""
    if key == MANIFEST:
        return NameTaken(
            "there is a log at the target already: copy to another name, or to an empty place",
            target=target.url,
        )
    return NameTaken(
        "there is something at the target that is not of this copy: copy to an empty place",
        target=target.url,
        key=key,
    )
