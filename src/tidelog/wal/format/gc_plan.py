"""Garbage: what a collection of a wal3 log has planned to erase, and to keep. Pure.

Source: wal3, "Garbage Collection"; docs/wal3.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.errors import UsageError
from tidelog.setsum import Setsum
from tidelog.wal.format.json import parse, position, render
from tidelog.wal.format.manifest import FIRST_POSITION
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
STREAMS: Final = "tidelog_streams_at_start"  # Only in slot logs, which wal3 does not read.


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """A plan; the default is that of nothing, which is what stands between two collections.

    Shape: fragments with numbers in ``[fragments_start, fragments_limit)`` go. In slot logs,
        ``streams_at_start`` are open where what is kept begins; None elsewhere.
    """

    snapshots_to_drop: tuple[Pointer, ...] = ()
    snapshots_to_make: tuple[Snapshot, ...] = ()
    root: Pointer | None = None
    fragments_start: int = 0
    fragments_limit: int = 0
    discarded: Setsum = field(default_factory=Setsum.zero)
    first_to_keep: int = FIRST_POSITION
    streams_at_start: Streams | None = None

    @property
    def is_empty(self) -> bool:
        return self == Garbage()


def decode_garbage(data: bytes, *, where: str = GARBAGE) -> Garbage:
    """Read a plan.

    Raises:
        CorruptionError: it is none. UsageError: it is one of wal3's replicated logs.
    """
    found = parse(data, where=where)
    if found.flag("fragments_are_uuids", default=False):
        raise UsageError("this is a log of wal3's replicated kind: it cannot be read", path=where)
    rooted = found.has("snapshot_for_root")
    return Garbage(
        snapshots_to_drop=tuple(decode_pointer(c) for c in found.children("snapshots_to_drop")),
        snapshots_to_make=tuple(snapshot_of(c) for c in found.children("snapshots_to_make")),
        root=decode_pointer(found.child("snapshot_for_root")) if rooted else None,
        fragments_start=found.whole("fragments_to_drop_start"),
        fragments_limit=found.whole("fragments_to_drop_limit"),
        discarded=found.setsum("setsum_to_discard"),
        first_to_keep=found.position("first_to_keep"),
        streams_at_start=streams_in(found, STREAMS) if found.has(STREAMS) else None,
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
    if garbage.streams_at_start is not None:
        found[STREAMS] = encode_streams(garbage.streams_at_start)
    if write_id:
        found["tidelog_write"] = write_id
    return render(found)
