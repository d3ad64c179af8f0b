"""Times that others wrote already: whether they hold what we would have written.

Source: persist, "Append"; design page 4, "Writing".
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidelog.errors import DataDiffers
from tidelog.frontier import TIME_MAX, Frontier
from tidelog.persist.format.part import sums_of
from tidelog.persist.format.schema import TIME, ShardSchema
from tidelog.persist.states.evolution import reign_of_newest
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import difference
from tidelog.rowhash import RowSum


def compare_covered(
    state: State, schema: ShardSchema, ready: pa.Table, lower: Frontier, upper: Frontier
) -> bool:
    """Compare our updates in ``[lower, upper)`` with the shard's; False if it cannot be told.

    Raises:
        DataDiffers: they are others.
    """
    since = reign_of_newest(state)
    if lower < since:
        # Sums of rows by an earlier schema are other sums, of rows that may be the same.
        if since < upper:
            compare_covered(state, schema, ready, since, upper)
        return False
    theirs = difference(state, lower, upper)
    if theirs is None:
        return False
    ours = sum_between(ready, schema, lower, upper)
    if ours != theirs:
        raise DataDiffers(
            "other data was written for these times: a new rendition is needed",
            lower=lower,
            upper=upper,
        )
    return True


def sum_between(table: pa.Table, schema: ShardSchema, lower: Frontier, upper: Frontier) -> RowSum:
    """Return T of the updates of a table in ``[lower, upper)``."""
    times = table.column(TIME).to_numpy()
    inside = times >= (TIME_MAX if lower.is_empty else lower.time)
    if not upper.is_empty:
        inside &= times < upper.time
    chosen = table.take(np.flatnonzero(inside))
    return sums_of(chosen, schema)[1] if chosen.num_rows else RowSum.zero()


def from_time(table: pa.Table, time: int) -> pa.Table:
    """Return the updates of a table from a time on."""
    return table.take(np.flatnonzero(table.column(TIME).to_numpy() >= time))
