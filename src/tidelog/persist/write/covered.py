"""Covered times: compare a writer's updates with those that the shard already has. Pure.

The comparison uses sums of updates, not rows. The state remembers the sums up to its last uppers.
Other sums are computed from updates that were read.
Source: persist, "Append"; design page 4, "Writing".
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tidelog.core.frontier import TIME_MAX, Frontier, join
from tidelog.errors import AsOfBeforeSince, DataDiffers
from tidelog.persist.format.part import sums_of
from tidelog.persist.format.schema import TIME, ShardSchema
from tidelog.persist.states.evolution import reign_of_newest
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import difference
from tidelog.rowhash import RowSum

Span = tuple[Frontier, Frontier]


def compare_remembered(
    state: State, schema: ShardSchema, ready: pa.Table, span: Span
) -> list[Span]:
    """Compare updates in a span with the sums that the state remembers; return the other spans.

    Raises:
        DataDiffers: the shard has other updates. NOT_APPLIED.
        AsOfBeforeSince: the shard cannot be read at the times of a returned span. NOT_APPLIED.
    """
    lower, upper = span
    # Sums in an earlier schema differ even if the rows are the same, so they cannot be compared.
    first = join([lower, reign_of_newest(state)])
    ends = sorted(
        (end for end in _remembered(state) if first <= end <= upper),
        key=lambda end: TIME_MAX + 1 if end.is_empty else end.time,
    )
    left = [span]
    if ends and ends[0] < ends[-1]:
        theirs = difference(state, ends[0], ends[-1])
        if theirs is not None:
            check_same([ready], schema, (ends[0], ends[-1]), theirs)
            left = [(lower, ends[0]), (ends[-1], upper)]
    left = [(start, end) for start, end in left if start < end]
    for start, end in left:
        _check_kept(state, start, end)
    return left


def _remembered(state: State) -> Iterable[Frontier]:
    if not state.commits_forgotten:
        yield Frontier.at(0)
    for commit in state.commits:
        yield Frontier.of(commit.upper)


def _check_kept(state: State, lower: Frontier, upper: Frontier) -> None:
    if not keeps_apart(state, lower):
        raise AsOfBeforeSince(
            "the write begins at or before since, so its updates cannot be compared with the "
            "stored ones, and nothing was appended: pass the shard's upper as lower",
            lower=lower,
            upper=upper,
            since=state.since_frontier,
            shard_upper=state.upper_frontier,
        )


def keeps_apart(state: State, lower: Frontier) -> bool:
    """Return True if updates at times since ``lower`` are stored at the times of their writes."""
    since = state.since_frontier
    # Merges store an update before since at since.
    return since == Frontier.at(0) or since < lower


def check_same(tables: Iterable[pa.Table], schema: ShardSchema, span: Span, theirs: RowSum) -> None:
    """Check that the updates in a span have the same sum as the shard's.

    Raises:
        DataDiffers: the sums differ. NOT_APPLIED.
    """
    if sum_of(tables, schema, span) != theirs:
        raise DataDiffers(
            "the shard has other updates at these times, and nothing was appended: find out which "
            "of the two writers is wrong",
            lower=span[0],
            upper=span[1],
        )


def sum_of(tables: Iterable[pa.Table], schema: ShardSchema, span: Span) -> RowSum:
    """Return T of the updates in a span."""
    total = RowSum.zero()
    for table in tables:
        times = table.column(TIME).to_numpy()
        inside = times >= span[0].time
        if not span[1].is_empty:
            inside &= times < span[1].time
        chosen = table.take(np.flatnonzero(inside))
        if chosen.num_rows:
            total = total + sums_of(chosen, schema)[1]
    return total


def from_time(table: pa.Table, time: int) -> pa.Table:
    """Return the updates of a table at and after a time."""
    return table.take(np.flatnonzero(table.column(TIME).to_numpy() >= time))
