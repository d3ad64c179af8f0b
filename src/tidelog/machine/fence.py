"""Fences: the records that close a location's consensus when it moves to another place.

A fence is a record without changes that names a move. While the move is under way, a writer must
wait before it writes after the fence. After the move no writer may write there again. If the move
was given up, the fence is a record like any other.

A fence does not state how its move ended, so a process that meets it reads the marker. A *final*
fence names the new place. It is written after the marker names that place. No later move returns to
these records, because each move files its records under a new id. So a process obeys a final fence
without a look at the marker. Pure.
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
    packed = [fence.move, fence.moved_to]
    return msgspec.msgpack.encode({**fields, "at_us": at_us, "diffs": (), "fence": packed})


def fence_of(data: bytes) -> MoveFence | None:
    """Return the fence in a record; None if it has none or is not a record."""
    if _SIGN not in data:
        return None  # Every read of a newest record asks, and a search costs less than decoding.
    try:
        packed = msgspec.msgpack.decode(data, type=dict[str, Any]).get("fence")
        return None if packed is None else MoveFence(*msgspec.convert(packed, tuple[str, str]))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None  # Not a record: `decode_record` reports that.
