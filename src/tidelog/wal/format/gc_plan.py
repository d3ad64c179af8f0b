"""Garbage: the plan of a collection, with the objects to delete and the first to keep. Pure.

In a slot log an empty plan exists between two collections. It states where the log begins, and the
streams open there. So no object of a slot log is deleted before this plan permits it. When
`rebuild` restores a lost manifest, the plan tells collected objects from lost ones. A copy may
begin at a later position than its source, so it writes such a plan before its manifest.

Source: wal3, "Garbage Collection"; docs/internals/wal3.md, docs/internals/log-collection.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidelog.core.setsum import Setsum
from tidelog.errors import UsageError
from tidelog.wal.format.json import parse, position, render
from tidelog.wal.format.link import FIRST_SLOT
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
ERASED_MAX: Final = 2**22  # Fragments per plan: the collector builds a path for each.
# Fields of slot logs, which wal3 does not read.
STREAMS: Final = "tidelog_streams_at_start"
STREAMS_BEFORE: Final = "tidelog_streams_before"
DESTROYED: Final = "tidelog_is_destroyed"
FIRST_EPOCH: Final = "tidelog_first_epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """A plan. The default is wal3's empty plan, which exists between two collections.

    Shape: fragments with numbers in ``[fragments_start, fragments_limit)`` are deleted;
    ``first_to_keep`` is the position after them. In slot logs ``streams_at_start`` are the streams
    open at that position. ``streams_before`` are those open at the log's start until the plan is
    carried out. Both are None in wal3's protocol. ``is_destroyed`` means that the whole log was
    deleted, and a rebuild must not restore it. ``first_epoch`` is the name of a copy's first epoch,
    set by the copier: if another log is at the location later, the name shows that this plan is
    left over from a copy that broke off.
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
        """Return True if the plan deletes nothing."""
        return self.fragments_start == self.fragments_limit and not (
            self.snapshots_to_drop or self.snapshots_to_make or self.root
        )


def nothing_to_erase(manifest: Manifest, *, is_destroyed: bool = False) -> Garbage:
    """Return the empty plan for a manifest."""
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
    """Decode a plan.

    Raises:
        CorruptionError: the bytes are not a plan, or the plan deletes more than a plan may.
        UsageError: it belongs to one of wal3's replicated logs.
    """
    found = parse(data, where=where)
    if found.flag("fragments_are_uuids", default=False):
        raise UsageError(
            "this is a replicated log of wal3: tidelog reads only wal3's classic logs", path=where
        )
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
    """Encode a plan.

    ``write_id`` makes the bytes of this write unique, in a field that wal3 ignores. Without it the
    bytes are exactly wal3's.
    """
    found: dict[str, object] = {
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
