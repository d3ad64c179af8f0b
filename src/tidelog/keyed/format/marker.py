"""Marks: they record the batches of a sink that are in a log. Pure.

A batch is one append, and so one object of the wal. It consists of its records and, at the end, a
record without a key, whose body is the mark. Keyed logs do not show that record. The batch and its
mark are therefore stored together or not at all. Compaction removes records from the wal. The
change that names the run then copies the marks into the state.

Shape: `MAGIC`, then msgpack of the sink's name and the batch's number. The number -1 is not a
    batch: a sink appends it to take over the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

MAGIC: Final = b"tidelog.batch\x00"
BEGINS: Final = -1
SINKS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMark:
    """The newest batch of a sink in the log, and the time of its append."""

    number: int
    at_us: int


def encode_mark(sink: str, number: int) -> bytes:
    """Return the body of a mark."""
    return MAGIC + msgspec.msgpack.encode([sink, number])


def marks_in(found: pa.Table) -> dict[str, SinkMark]:
    """Return the newest mark of each sink among the records of a wal."""
    keys: Any = found.column("key")
    if not keys.null_count:
        return {}
    keyless = found.filter(pc.is_null(keys)).select(["timestamp_us", "body"])
    bodies: Any = keyless.column("body")
    marks: dict[str, SinkMark] = {}
    for row in keyless.filter(pc.starts_with(bodies, MAGIC.decode())).to_pylist():
        told = _decoded(row["body"])
        if told is not None and told[1] > BEGINS:
            mark = SinkMark(number=told[1], at_us=row["timestamp_us"])
            marks = newest_of(marks, {told[0]: mark})
    return marks


def newest_of(known: Mapping[str, SinkMark], found: Mapping[str, SinkMark]) -> dict[str, SinkMark]:
    """Return the newest mark of each sink; of too many sinks, keep those that wrote last."""
    merged = dict(known)
    for sink, mark in found.items():
        if sink not in merged or merged[sink].number < mark.number:
            merged[sink] = mark
    if len(merged) > SINKS_MAX:
        kept = sorted(merged, key=lambda sink: merged[sink].at_us)[-SINKS_MAX:]
        merged = {sink: merged[sink] for sink in kept}
    return merged


def _decoded(body: bytes) -> tuple[str, int] | None:
    """Return a mark's sink and number; None if the body only begins like a mark."""
    try:
        return msgspec.msgpack.decode(body[len(MAGIC) :], type=tuple[str, int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
