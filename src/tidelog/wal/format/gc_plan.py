"""Garbage: what a collection of a log has planned to erase, and to keep. Pure.

In slot logs the plan that stands between two collections, which erases nothing, says where the log
begins, and which streams are open there. So nothing of a slot log is ever deleted before this
object says that it may be gone, and whoever makes a lost manifest again can tell what was collected
from what was lost. A copy begins where it was told to, so it has such a plan before its manifest.

Source: wal3, "Garbage Collection"; docs/internals/wal3.md, docs/internals/log-collection.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.errors import UsageError
from tidelog.setsum import Setsum
from tidelog.wal.format.epoch import FIRST_SLOT
from tidelog.wal.format.json import parse, position, render
from tidelog.wal.format.manifest import FIRST_POSITION, Manifest
from tidelog.wal.format.snapshot import (
    Pointer,
    Snapshot,
    decode_pointer,
    encode_pointer,
    snapshot_fields,
    snapshot_of,
)
from tidelog.wal.format.streams import Streams, encode_streams, streams_in

GARBAGE: Final = "gc/GARBAGE"
ERASED_MAX: Final = 2**22  # Fragments of one plan: a path is made of each.
# These only in slot logs, which wal3 does not read.
STREAMS: Final = "tidelog_streams_at_start"
STREAMS_BEFORE: Final = "tidelog_streams_before"
DESTROYED: Final = "tidelog_is_destroyed"
FIRST_EPOCH: Final = "tidelog_first_epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """A plan; the default is wal3's of nothing, which is what stands between two collections.

    Shape: fragments with numbers in ``[fragments_start, fragments_limit)`` go; ``first_to_keep`` is
        the position after them. In slot logs ``streams_at_start`` are open there, and
        ``streams_before`` where the log begins until the plan is carried out; None elsewhere.
        ``is_destroyed``: all of the log was deleted, and no manifest is to be made for it again.
        ``first_epoch`` is the name of a copy's, in the plan that its maker wrote: a copy that was
        broken off may have left it where another log is now.
    """

    snapshots_to_drop: tuple[Pointer, ...] = ()
    snapshots_to_make: tuple[Snapshot, ...] = ()
    root: Pointer | None = None
    fragments_start: int = 0
    fragments_limit: int = 0
    discarded: Setsum = field(default_factory=Setsum.zero)
    first_to_keep: int = FIRST_POSITION
    streams_at_start: Streams | None = None
    streams_before: Streams | None = None
    is_destroyed: bool = False
    first_epoch: str | None = None

    @property
    def is_empty(self) -> bool:
        """Say whether it erases nothing."""
        return self.fragments_start == self.fragments_limit and not (
            self.snapshots_to_drop or self.snapshots_to_make or self.root
        )


def nothing_to_erase(manifest: Manifest, *, is_destroyed: bool = False) -> Garbage:
    """Return the plan that stands for a manifest while nothing is planned."""
    if manifest.chain is None:
        return Garbage()
    first = manifest.initial_seq_no or FIRST_SLOT
    return Garbage(
        fragments_start=first,
        fragments_limit=first,
        first_to_keep=manifest.oldest,
        streams_at_start=manifest.chain.streams_at_start,
        is_destroyed=is_destroyed,
    )


def decode_garbage(data: bytes, *, where: str = GARBAGE) -> Garbage:
    """Read a plan.

    Raises:
        CorruptionError: it is none, or erases more than a plan may. UsageError: it is one of wal3's
        replicated logs.
    """
    found = parse(data, where=where)
    if found.flag("fragments_are_uuids", default=False):
        raise UsageError("this is a log of wal3's replicated kind: it cannot be read", path=where)
    rooted = found.has("snapshot_for_root")
    start, limit = (found.whole(f"fragments_to_drop_{end}") for end in ("start", "limit"))
    if not start <= limit <= start + ERASED_MAX:
        raise found.wrong(
            "fragments_to_drop_limit", f"is not from 0 to {ERASED_MAX} after the start"
        )
    return Garbage(
        snapshots_to_drop=tuple(decode_pointer(c) for c in found.children("snapshots_to_drop")),
        snapshots_to_make=tuple(snapshot_of(c) for c in found.children("snapshots_to_make")),
        root=decode_pointer(found.child("snapshot_for_root")) if rooted else None,
        fragments_start=start,
        fragments_limit=limit,
        discarded=found.setsum("setsum_to_discard"),
        first_to_keep=found.position("first_to_keep"),
        streams_at_start=streams_in(found, STREAMS) if found.has(STREAMS) else None,
        streams_before=streams_in(found, STREAMS_BEFORE) if found.has(STREAMS_BEFORE) else None,
        is_destroyed=found.flag(DESTROYED, default=False),
        first_epoch=found.text(FIRST_EPOCH) if found.has(FIRST_EPOCH) else None,
    )


def encode_garbage(garbage: Garbage, *, write_id: str = "") -> bytes:
    """Write a plan.

    ``write_id`` makes the bytes of this write differ from those of any other, in a field of its own
    that wal3 passes over; without one they are wal3's to the byte.
    """
    found: dict[str, Any] = {
        "snapshots_to_drop": [encode_pointer(p) for p in garbage.snapshots_to_drop],
        "snapshots_to_make": [snapshot_fields(s) for s in garbage.snapshots_to_make],
        "snapshot_for_root": None if garbage.root is None else encode_pointer(garbage.root),
        "fragments_to_drop_start": garbage.fragments_start,
        "fragments_to_drop_limit": garbage.fragments_limit,
        "fragments_are_uuids": False,
        "setsum_to_discard": garbage.discarded.hex(),
        "first_to_keep": position(garbage.first_to_keep),
    }
    for name, streams in (
        (STREAMS, garbage.streams_at_start),
        (STREAMS_BEFORE, garbage.streams_before),
    ):
        if streams is not None:
            found[name] = encode_streams(streams)
    if garbage.is_destroyed:
        found[DESTROYED] = True
    if garbage.first_epoch is not None:
        found[FIRST_EPOCH] = garbage.first_epoch
    if write_id:
        found["tidelog_write"] = write_id
    return render(found)
