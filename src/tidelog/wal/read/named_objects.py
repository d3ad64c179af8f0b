"""Objects that a manifest is to name: stored before it, and what is there already is not believed.

The name of a snapshot is the sum of its records, and says nothing of where they lie: one that is
there under that name may be of another log that has the same records, or may name what is gone.

Invariants: what stands under the name afterwards leads to the very fragments that were to be named.
Source: design page 3, "Manifest tree, setsum, cursors, collection".
"""

from __future__ import annotations

from contextlib import suppress

from tidelog.clock import Clock
from tidelog.errors import CorruptionError, LocationError, NameInUse, ObjectNotFound
from tidelog.store.conditional import DEFAULT_RESEND, Resend, create_or_read
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.wal.format.manifest_update import pointer_to
from tidelog.wal.format.new_object import NewObject
from tidelog.wal.format.snapshot import decode_snapshot, problems_of_snapshot
from tidelog.wal.read.tree_reader import TreeReader


async def store_named(
    store: Store, one: NewObject, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> None:
    """Store an object that a manifest is to name; one that is there must name the same.

    Raises:
        NameInUse: something else lies there. NOT_APPLIED. LocationError: it could not be
        stored, or what is there could not be read; no manifest names it. NOT_APPLIED.
    """
    try:
        there = await create_or_read(store, one.path, one.data, clock=clock, resend=resend)
        if there != one.data and not await _names_the_same(store, clock, one, there):
            raise _names_another(one.path)
    except LocationError as error:
        if await _is_cut_short(store, one):
            raise _names_another(one.path) from error
        # Whatever became of the object: nothing names it.
        raise LocationError(
            "what the manifest was to name could not be stored, so no manifest was written",
            path=one.path,
            reason=error,
        ) from error


def _names_another(path: str) -> NameInUse:
    return NameInUse(
        "what lies under a name that the log is to use is broken, or names something else, so no "
        "manifest was written: move it away",
        path=path,
    )


async def _is_cut_short(store: Store, one: NewObject) -> bool:
    """Say whether an object is shorter than it has to be: to read it alone does not tell that.

    What was read back and was too short may have been cut on the way.
    """
    with suppress(LocationError):
        entry = await first_entry(store, one.path)
        return entry is not None and entry.key == one.path and entry.size_bytes < len(one.data)
    return False


async def _names_the_same(store: Store, clock: Clock, one: NewObject, there: bytes) -> bool:
    if not one.path.startswith("snapshot/"):
        return False  # A list of epochs has the name of its bytes.
    try:
        ours, theirs = [decode_snapshot(data, where=one.path) for data in (one.data, there)]
        if problems_of_snapshot(theirs, pointer_to(ours)):
            return False
        if theirs.children == ours.children:  # All but who wrote it.
            return True
        # Others may have rolled up by other measures: what lies below has to be the same.
        tree = TreeReader(store=store, clock=clock)
        leaves = [[leaf async for leaf in tree.leaves(one.children)] for one in (ours, theirs)]
    except (CorruptionError, ObjectNotFound):
        return False
    return leaves[0] == leaves[1]
