"""Scrubbing: the invariants of a shard's parts, batches and state, and their violations. Pure.

A read checks the bytes only. A scrub also checks the descriptors: the number of rows, the bounds of
times and keys, and the sums.
Source: persist, "Checksums"; design page 4, "Parts".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from tidelog.core.frontier import Frontier, join
from tidelog.persist.format.part import (
    Part,
    decode_bounds,
    int64_of,
    key_box,
    sums_of,
    with_time,
)
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.format.updates import is_sortable, sort_updates, time_bounds
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.evolution import reign_of_newest
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import difference
from tidelog.rowhash import RowSum

REPORT = "report this; nothing was changed"
RESTORE = "restore the object from a backup or an older version"


@dataclass(frozen=True, slots=True)
class Damage:
    """A defect of an object: the object's key, the defect, and the remedy."""

    path: str
    why: str
    advice: str = REPORT

    def __str__(self) -> str:
        return f"{self.path}: {self.why}: {self.advice}"


@dataclass(slots=True)
class ShardScrubReport:
    """The result of a scrub of a shard.

    Shape: ``parts`` is the number of parts read, including inline parts. ``states`` is the number
        of rollups whose later changes were replayed and compared with the newest state.
        ``unseen_t`` means that T could not be compared, because its updates have been merged.
    """

    damages: list[Damage] = field(default_factory=list)
    parts: int = 0
    rows: int = 0
    bytes_read: int = 0
    records: int = 0
    states: int = 0
    unseen_t: bool = False

    @property
    def is_clean(self) -> bool:
        return not self.damages


class Times(Protocol):
    """The times ``[lower, upper)`` of a batch."""

    @property
    def lower(self) -> int: ...

    @property
    def upper(self) -> int | None: ...


def check_part(part: Part, table: pa.Table, schema: ShardSchema, batch: Times) -> Iterator[str]:
    """Yield the statements of a part's descriptor that its updates contradict."""
    if why := _invalid(table):
        yield f"it has invalid values: {why}"
        return
    if table.num_rows != part.rows:
        yield f"it has {table.num_rows} updates, but its state declares {part.rows}"
    if not table.num_rows:
        return
    if int(int64_of(table, DIFF).sum()) != part.diffs:
        yield "the sum of its diffs differs from its state"
    least, greatest = time_bounds(table)
    if (least, greatest) != (part.time_min, part.time_max):
        declared = f"its state declares {part.time_min} to {part.time_max}"
        yield f"its times are {least} to {greatest}, but {declared}"
    if least < batch.lower or (batch.upper is not None and greatest >= batch.upper):
        yield "it has times outside its batch"
    yield from _check_bounds(part, table, schema)
    stored = table if part.stored_time is None else with_time(table, part.stored_time)
    sum_v, sum_t = sums_of(stored, schema)
    if sum_v != part.v:
        yield "the sum of its rows differs from the sum in the state (field v)"
    if sum_t != part.t:
        yield "the sum of its updates differs from the sum in the state (field t)"
    if part.is_sorted and _is_comparable(schema) and not table.equals(sort_updates(table, schema)):
        yield "its updates are not in the order that its state declares"
    if not int64_of(table, DIFF).all():
        yield "it has updates with a diff of 0"


def _check_bounds(part: Part, table: pa.Table, schema: ShardSchema) -> Iterator[str]:
    box = key_box(table, schema.key)
    for name, (low, high) in decode_bounds(part).items():
        found = box.get(name, (None, None))
        if found[0] is None or found[0] < low or found[1] > high:
            yield f"column {name!r} has keys outside the bounds in its state"


def _invalid(table: pa.Table) -> str:
    """Return Arrow's complaint about invalid values; an empty text if all are valid."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error).splitlines()[0][:200]
    return ""


def _is_comparable(schema: ShardSchema) -> bool:
    floats = any(pa.types.is_floating(field.type) for field in schema.data)
    return is_sortable(schema) and not floats  # NaN is not equal to NaN in this comparison.


def check_batch(batch: Batch) -> Iterator[str]:
    """Yield the statements of a batch that the descriptors of its parts contradict."""
    parts = batch.parts
    told = (batch.rows, batch.diffs, batch.size_bytes)
    found = tuple(sum(getattr(p, n) for p in parts) for n in ("rows", "diffs", "size_bytes"))
    where = f"the batch from {batch.lower} to {'end' if batch.upper is None else batch.upper}"
    if told != found:
        yield f"the totals of {where} differ from those of its parts"
    if sum(batch.runs) != len(parts):
        yield f"{where} has {len(parts)} parts, but its runs have another number"
    if _sum([part.v for part in parts]) != batch.v:
        yield f"the sum of the rows of {where} differs from the sum in the state (field v)"


def check_state(state: State) -> Iterator[str]:
    """Yield the totals, frontiers and holds of a state that its batches contradict."""
    batches = list(state.batches)
    for name in ("rows", "diffs", "size_bytes", "inline_bytes"):
        if sum(getattr(b, name) for b in batches) != getattr(state.totals, name):
            yield f"the total of {name} of its batches differs from the state's total"
    if _sum([batch.v for batch in batches]).to_bytes() != state.totals.sum_v:
        yield "the sum of the rows of its batches differs from the sum in the state (field v)"
    if any(a.upper is None or a.upper > b.lower for a, b in pairwise(batches)):
        yield "its batches overlap"
    if batches and not Frontier.of(batches[-1].upper) <= state.upper_frontier:
        yield "a batch ends past its upper"


def check_t(state: State, times: Sequence[tuple[Batch, RowSum]]) -> list[str] | None:
    """Compare T of the stored updates with T of the appended ones; None if that is impossible.

    Merges never change times at or after since. Choose a remembered upper that is not before since
    and not inside a batch. From there, both sums are over the same updates. They also have the same
    columns if the schema has not changed since, because merges write earlier rows in the newest
    schema.
    """
    upper = state.upper_frontier
    since, reign = state.since_frontier, reign_of_newest(state)
    for commit in state.commits:
        known = difference(state, _at(commit.lower), upper)
        if known is None or not join([since, reign]) <= _at(commit.lower):
            continue
        if any(b.lower < commit.lower and _reaches(b, commit.lower) for b, _ in times):
            continue
        found = _sum([t for batch, t in times if batch.lower >= commit.lower])
        return (
            []
            if found == known
            else ["the stored updates differ from the appended ones: their sums (field t) differ"]
        )
    return None


def _at(time: int) -> Frontier:
    return Frontier.at(time)


def _reaches(batch: Batch, time: int) -> bool:
    return batch.upper is None or batch.upper > time


def _sum(sums: Sequence[RowSum]) -> RowSum:
    total = RowSum.zero()
    for one in sums:
        total = total + one
    return total
