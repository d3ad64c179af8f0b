"""Storing the objects that a manifest will name. An existing object is not trusted.

A snapshot's name is the setsum of its records, which does not depend on where the records are
stored. So an existing object of that name may belong to another log with the same records, or name
deleted objects.

Invariants: after the call, the object under the name leads to exactly the intended fragments.
Source: design page 3, "Manifest tree, setsum, cursors, collection".
"""

from __future__ import annotations

from contextlib import suppress

from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError, LocationError, NameInUse, ObjectNotFound
from tidelog.store.conditional import DEFAULT_RESEND, Resend, create_or_read
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.wal.format.manifest_update import pointer_to
from tidelog.wal.format.new_object import NewObject
from tidelog.wal.format.snapshot import decode_snapshot, problems_of_snapshot
from tidelog.wal.read.head import TreeReader


async def store_named(
    store: Store, one: NewObject, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> None:
    """Store an object that a manifest will name; an existing one must name the same objects.

    Raises:
        NameInUse: another object has the path. NOT_APPLIED.
        LocationError: it could not be stored, or an existing one could not be read. NOT_APPLIED.
    """
    try:
        there = await create_or_read(store, one.path, one.data, clock=clock, resend=resend)
        if there != one.data and not await _names_the_same(store, clock, one, there):
            raise _names_another(one.path)
    except LocationError as error:
        if await _is_cut_short(store, one):
            raise _names_another(one.path) from error
        # Stored or not, no manifest names the object.
        raise LocationError(
            "an object for the manifest could not be stored, so no manifest was written: try again",
            path=one.path,
            reason=error,
        ) from error


def _names_another(path: str) -> NameInUse:
    return NameInUse(
        "the path of a new object has a damaged object, or one with other contents, so no "
        "manifest was written: move that object away",
        path=path,
    )


async def _is_cut_short(store: Store, one: NewObject) -> bool:
    """Return True if the stored object itself is shorter than it must be.

    A read cannot show that, because its answer may have been cut short.
    """
    with suppress(LocationError):
        entry = await first_entry(store, one.path)
        return entry is not None and entry.key == one.path and entry.size_bytes < len(one.data)
    return False


async def _names_the_same(store: Store, clock: Clock, one: NewObject, there: bytes) -> bool:
    if not one.path.startswith("snapshot/"):
        return False  # The name of a list of epochs is the checksum of its bytes.
    try:
        ours, theirs = [decode_snapshot(data, where=one.path) for data in (one.data, there)]
        if problems_of_snapshot(theirs, pointer_to(ours)):
            return False
        if theirs.children == ours.children:  # They differ only in their writer.
            return True
        # Another process may roll up with other thresholds, so compare the leaves.
        tree = TreeReader(store=store, clock=clock)
        leaves = [[leaf async for leaf in tree.leaves(one.children)] for one in (ours, theirs)]
    except (CorruptionError, ObjectNotFound):
        return False
    return leaves[0] == leaves[1]
