"""Fences: the records by which a location's consensus is closed, when it moves to another place.

A fence is a record without changes that names a move. While that move is under way, whoever wants
to write after it waits; once the location has moved, nobody does ever again; and where the move was
given up, it is a record like any other. A *final* fence, which is written after the move, tells
where the location is now, and holds whatever the location's mark says. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidelog.ids import SeqNo
from tidelog.machine import record as records

_SIGN: Final = b"\xa5fence"  # The field's name, as msgpack has it.


@dataclass(frozen=True, slots=True)
class MoveFence:
    """What a record says of a move; ``moved_to`` only of a final one."""

    move: str
    moved_to: str = ""


def encode_fence(newest: bytes, fence: MoveFence, *, at_us: int, key: str, seqno: SeqNo) -> bytes:
    """Return the record that follows the ``newest`` one of a key, and names what that names.

    Raises:
        CorruptionError: the newest is no record.
    """
    before = records.decode_record(newest, key=key, seqno=seqno)
    fields: dict[str, Any] = msgspec.structs.asdict(before)
    told = [fence.move, fence.moved_to]
    return msgspec.msgpack.encode({**fields, "at_us": at_us, "diffs": (), "fence": told})


def fence_of(data: bytes) -> MoveFence | None:
    """Return what a record says of a move; None if nothing, or if it is no record."""
    if _SIGN not in data:
        return None
    try:
        found = msgspec.msgpack.decode(data, type=dict[str, Any]).get("fence")
        return None if found is None else MoveFence(*msgspec.convert(found, tuple[str, str]))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None  # Whoever reads it as a record is told.
