"""Expiry: the updates of a source's shards that full merges leave out.

No other update takes back a bad row, or the deletion of a key. Bad rows expire when retention has
passed them. A deletion expires once a late row of its key counts as new.
Source: design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import DAY_MS, RenditionInfo, SourceInfo
from tidelog.collection.formats.lines import Bools
from tidelog.collection.formats.times import times_of
from tidelog.persist.format.part import int64_of
from tidelog.persist.format.schema import TIME
from tidelog.persist.maintenance.merging import Expiry

# Event time after a deletion's own time for which ingesters remember it.
DELETIONS_KEPT_MS: Final = DAY_MS


def expiries_of(rendition: RenditionInfo, source: SourceInfo) -> dict[str, Expiry]:
    """Return the expiry of each shard of a rendition that has one, by the id of the shard."""
    found = {}
    if rendition.errors is not None:
        found[rendition.errors] = Expiry(_has_passed, by_time=True)
    if source.time_column is not None:
        # Each later tick begins after since, so it ignores these deletions. Those at since or later
        # stay: a scrub compares their sum with that of the appends.
        forgotten = Expiry(
            lambda rows, since: _has_passed(rows, since) & are_forgotten(rows, source, before=since)
        )
        found |= dict.fromkeys(rendition.deletions, forgotten)
    return found


def are_forgotten(deletions: pa.Table, source: SourceInfo, *, before: int) -> Bools:
    """Return a mask of the deletions that a tick which begins at ``before`` ignores."""
    if source.time_column is None:
        return np.zeros(deletions.num_rows, dtype=np.bool_)
    times, _ = times_of(deletions.column(source.time_column), source.time_unit)
    kept_ms = max(DELETIONS_KEPT_MS, source.lateness_ms)
    forgotten: Bools = times < before - kept_ms
    return forgotten


def _has_passed(rows: pa.Table, since: int) -> Bools:
    passed: Bools = int64_of(rows, TIME) < since
    return passed
