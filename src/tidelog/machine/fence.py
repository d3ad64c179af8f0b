"""Fences: the records that close a location's consensus when it moves to another place.

A fence is a record without changes that names a move. While the move is under way, a writer must
wait before it writes after the fence. After the move no writer may write there again. If the move
was given up, the fence is a record like any other.

A *final* fence is written after the move. It names the new place, and is valid even if the
location's marker states something else. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidelog.core.ids import SeqNo
from tidelog.machine import record as records

_SIGN: Final = b"\xa5fence"  # The name of the field, encoded by msgpack.


@dataclass(frozen=True, slots=True)
class MoveFence:
    """The move that a record names; only a final fence has ``moved_to``."""

    move: str
    moved_to: str = ""


def encode_fence(newest: bytes, fence: MoveFence, *, at_us: int, key: str, seqno: SeqNo) -> bytes:
    """Return a fence to write after the ``newest`` record of a key; it keeps that record's fields.

    The newest record names the rollup and the floor, so a fence must repeat them.

    Raises:
        CorruptionError: ``newest`` is not a record.
    """
    before = records.decode_record(newest, key=key, seqno=seqno)
    fields: dict[str, Any] = msgspec.structs.asdict(before)
    told = [fence.move, fence.moved_to]
    return msgspec.msgpack.encode({**fields, "at_us": at_us, "diffs": (), "fence": told})


def fence_of(data: bytes) -> MoveFence | None:
    """Return the fence in a record; None if it has none or is not a record."""
    if _SIGN not in data:
        return None
    try:
        found = msgspec.msgpack.decode(data, type=dict[str, Any]).get("fence")
        return None if found is None else MoveFence(*msgspec.convert(found, tuple[str, str]))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None  # Not a record: `decode_record` reports that.
