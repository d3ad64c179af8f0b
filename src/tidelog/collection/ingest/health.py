"""Health: a report of an ingester's newest run, stored in the location for people to read.

Shape: ``status/<source id>.json``. It is only a hint: the last writer wins, no code decides by it,
    and a report that is damaged counts as missing.
Does no I/O: see `tidelog.collection.ingest.run` and `tidelog.collection.ingest.status`.
Source: design page 6, "The recipe, as it runs" (health).
"""

from __future__ import annotations

from typing import Final

import msgspec

STATUS: Final = "status/"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of a run.

    Shape: ``error`` is the error that the run retries after, or stopped with. ``merges`` has the
        reason why merges of a shard stopped, by the id of the shard.
    Units: ``updated_us`` is the time of the report; ``upper`` is in milliseconds. Counts are those
        of this run; ``dropped`` counts values of fields that the schema lacks, by field.
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
    """Return the key of the object with a source's health."""
    return f"{STATUS}{source_id}.json"


def encode_health(health: Health) -> bytes:
    return msgspec.json.encode(health)


def decode_health(data: bytes) -> Health | None:
    """Return the health that these bytes encode; None if they are damaged."""
    try:
        return msgspec.json.decode(data, type=Health)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
