"""Bindings: which addresses of a source are in, at which upper of the output.

Shape: the remap shard holds one row a file: the range of it that was taken last, and proofs of
    what was read. A binding for ``[lower, upper)`` replaces the rows of the files it takes from,
    at the time ``upper - 1``; so its ranges are just the rows that appear then, and the frontier
    at any upper is the shard's contents before it. An interval in which no row appears took
    nothing.
Invariants: a file's ranges follow each other without a gap; ``sum`` is the xxh3-128 of the bytes
    of ``[start, limit)``, ``head`` that of the file's first ``head_bytes``: who reads the range
    again, reads these bytes or fails.
Source: persist, "Bindings"; storage, "Reclock"; design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.persist.schema import DIFF, TIME, shard_schema

_COLUMNS: Final[dict[str, pa.DataType]] = {
    "path": pa.string(),
    "start": pa.int64(),
    "limit": pa.int64(),
    "sum": pa.binary(),
    "head": pa.binary(),
    "head_bytes": pa.int64(),
    "header": pa.binary(),
    "size_bytes": pa.int64(),
    "e_tag": pa.string(),
    "late": pa.int64(),
    "time_max": pa.int64(),
}
ANY_TIME: Final = 2**63 - 1
REMAP_SCHEMA: Final = shard_schema(pa.schema(_COLUMNS), key=["path"])


class SourceRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of one file: a plain value by which any process reads the same messages.

    Units: ``start`` and ``limit`` are byte offsets at line ends (json, csv) or row groups
        (parquet); ``late`` counts rows of this file, over all bindings so far, that came after
        their time was complete; rows with a time past ``time_max`` (milliseconds) are bad ones.
    """

    path: str
    start: int
    limit: int
    sum: bytes
    head: bytes
    head_bytes: int
    header: bytes = b""
    size_bytes: int = 0
    e_tag: str = ""
    late: int = 0
    time_max: int = ANY_TIME


Taken = Mapping[str, SourceRange]  # by path, the range that was taken last


@dataclass(frozen=True, slots=True)
class Binding:
    """The ranges whose messages belong to the times ``[lower, upper)``."""

    lower: int
    upper: int
    ranges: tuple[SourceRange, ...]


def next_binding(updates: pa.Table, lower: int, upper: int) -> Binding:
    """Return the first binding from ``lower`` on, of a remap shard complete below ``upper``.

    Shape: ``updates`` are the shard's updates at times from ``lower`` on.
    """
    if not updates.num_rows:
        return Binding(lower, upper, ())
    times, diffs = (updates.column(n).to_numpy() for n in (TIME, DIFF))
    time = int(times.min())
    taken = updates.take(np.flatnonzero((times == time) & (diffs > 0)))
    return Binding(lower, time + 1, tuple(read_ranges(taken)))


def read_ranges(rows: pa.Table) -> list[SourceRange]:
    """Return the ranges that rows of the remap shard stand for, in the order of their paths."""
    found = [SourceRange(**row) for row in rows.select(REMAP_SCHEMA.names).to_pylist()]
    return sorted(found, key=lambda r: r.path)


def plan_updates(taken: Taken, ranges: Iterable[SourceRange], *, time: int) -> pa.Table:
    """Return the remap updates by which ranges become the binding that ends after ``time``."""
    rows: list[dict[str, Any]] = []
    for found in ranges:
        before = taken.get(found.path)
        if before is not None:
            rows.append({**msgspec.structs.asdict(before), TIME: time, DIFF: -1})
        rows.append({**msgspec.structs.asdict(found), TIME: time, DIFF: 1})
    return pa.Table.from_pylist(rows, schema=REMAP_SCHEMA.updates)


def advance_taken(taken: Taken, binding: Binding) -> dict[str, SourceRange]:
    """Return the frontier after a binding."""
    return {**taken, **{r.path: r for r in binding.ranges}}
