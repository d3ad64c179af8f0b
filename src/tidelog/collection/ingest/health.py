"""Health: what an ingester leaves in the location for people, of its newest run.

Shape: ``status/<source id>.json``. A hint and never an authority: whoever writes last prevails,
    nothing is decided by it, and one that is missing or cannot be read counts as none.
Does no I/O: see `tidelog.collection.ingest.run` and `tidelog.collection.ingest.status`.
Source: design page 6, "The recipe, as it runs" (health).
"""

from __future__ import annotations

from typing import Final

import msgspec

STATUS: Final = "status/"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was last heard of. ``error`` is what it stands at, or stopped with.

    Units: ``updated_us`` is when this was written, ``upper`` is in milliseconds; rows are those of
        the run, and ``dropped`` counts its values of fields that the schema lacks. ``merges`` has
        why merges of a shard ended.
    """

    engine: str
    started_us: int
    updated_us: int = msgspec.field(name="told_us")
    running: bool
    upper: int | None
    ticks: int
    rows: int
    late: int
    bad: int
    waiting: dict[str, str] = {}
    notes: dict[str, str] = {}
    merges: dict[str, str] = {}
    dropped: dict[str, int] = {}
    error: str | None = None
    error_kind: str | None = None


def health_path(source_id: str) -> str:
    """Return the key of a source's health."""
    return f"{STATUS}{source_id}.json"


def encode_health(health: Health) -> bytes:
    return msgspec.json.encode(health)


def decode_health(data: bytes) -> Health | None:
    """Read a health; None if it cannot be read."""
    try:
        return msgspec.json.decode(data, type=Health)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
