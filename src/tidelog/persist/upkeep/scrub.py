"""Scrubbing: what must hold of a shard's parts, batches and state, and what of it does not. Pure.

A read checks that bytes are those that were written; a scrub also, that what is said of them is
true: how many rows there are, between which times and keys, and what they sum up to.
Source: persist, "Checksums"; design page 4, "Parts".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from tidelog.frontier import Frontier, join
from tidelog.persist.format.part import Part, decode_bounds, int64_of, key_box, sums_of
from tidelog.persist.format.schema import DIFF, ShardSchema
from tidelog.persist.format.updates import is_sortable, sort_updates, time_bounds
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.evolution import reign_of_newest
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import difference
from tidelog.rowhash import RowSum

REPORT = "report this; nothing was changed"
RESTORE = "restore the object from a backup, or an older version of it"


@dataclass(frozen=True, slots=True)
class Damage:
    """Something wrong with an object: its key, what it is, and what to do."""

    path: str
    why: str
    advice: str = REPORT

    def __str__(self) -> str:
        return f"{self.path}: {self.why}: {self.advice}"


@dataclass(slots=True)
class ShardScrubbed:
    """What a scrub of a shard found.

    Shape: ``parts`` were read whole, those in the state as well; ``states`` are how many rollups,
        each with the changes after it, came to the newest state. ``unseen_t`` says that T could
        not be compared, as what it sums up has been merged.
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


def check_part(part: Part, table: pa.Table, schema: ShardSchema, batch: Batch) -> Iterator[str]:
    """Yield what of a part's descriptor is not true of its updates, which were read whole."""
    if why := _invalid(table):
        yield f"its values are none: {why}"
        return
    if table.num_rows != part.rows:
        yield f"it has {table.num_rows} updates, and its state says {part.rows}"
    if not table.num_rows:
        return
    if int(int64_of(table, DIFF).sum()) != part.diffs:
        yield "its diffs do not sum up to what its state says"
    least, greatest = time_bounds(table)
    if (least, greatest) != (part.time_min, part.time_max):
        yield f"its times are {least} to {greatest}, and its state says otherwise"
    if least < batch.lower or (batch.upper is not None and greatest >= batch.upper):
        yield "it has times outside of its batch"
    yield from _check_bounds(part, table, schema)
    sum_v, sum_t = sums_of(table, schema)
    if sum_v != part.v:
        yield "its rows do not sum up to V"
    if sum_t != part.t:
        yield "its updates do not sum up to T"
    if part.is_sorted and _is_comparable(schema) and not table.equals(sort_updates(table, schema)):
        yield "its updates are not in the order that its state says"
    if not int64_of(table, DIFF).all():
        yield "it has updates whose diff is 0"


def _check_bounds(part: Part, table: pa.Table, schema: ShardSchema) -> Iterator[str]:
    box = key_box(table, schema.key)
    for name, (low, high) in decode_bounds(part).items():
        found = box.get(name, (None, None))
        if found[0] is None or found[0] < low or found[1] > high:
            yield f"column {name!r} has keys outside of the bounds that its state says"


def _invalid(table: pa.Table) -> str:
    """Return what of the values is none that Arrow can have; the empty text if all are."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error).splitlines()[0][:200]
    return ""


def _is_comparable(schema: ShardSchema) -> bool:
    floats = any(pa.types.is_floating(field.type) for field in schema.data)
    return is_sortable(schema) and not floats  # NaN is equal to nothing, here.


def check_batch(batch: Batch) -> Iterator[str]:
    """Yield what of a batch is not true of the descriptors of its parts."""
    parts = batch.parts
    told = (batch.rows, batch.diffs, batch.size_bytes)
    found = tuple(sum(getattr(p, n) for p in parts) for n in ("rows", "diffs", "size_bytes"))
    where = f"the batch from {batch.lower} to {'end' if batch.upper is None else batch.upper}"
    if told != found:
        yield f"{where} is not as large as its parts"
    if sum(batch.runs) != len(parts):
        yield f"{where} has other runs than parts"
    if _sum([part.v for part in parts]) != batch.v:
        yield f"{where} does not sum up to V"


def check_state(state: State) -> Iterator[str]:
    """Yield what of a state's totals, frontiers and holds is not true of its batches."""
    batches = list(state.batches)
    for name in ("rows", "diffs", "size_bytes", "inline_bytes"):
        if sum(getattr(b, name) for b in batches) != getattr(state.totals, name):
            yield f"its batches do not sum up to its {name}"
    if _sum([batch.v for batch in batches]).to_bytes() != state.totals.sum_v:
        yield "its batches do not sum up to V"
    if any(a.upper is None or a.upper > b.lower for a, b in pairwise(batches)):
        yield "its batches overlap"
    if batches and not Frontier.of(batches[-1].upper) <= state.upper_frontier:
        yield "a batch reaches past its upper"


def check_t(state: State, times: Sequence[tuple[Batch, RowSum]]) -> list[str] | None:
    """Return whether T of what is stored is that of what was appended; None: it cannot be told.

    Times at or after since were never moved. So from an upper on that is remembered, that is not
    before since, and that stands in no batch, both sums are over the same updates: in the same
    columns from when the schema last changed on, for merges write earlier rows with the newest.
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
        return [] if found == known else ["what is stored is not what was appended: T differs"]
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
