"""The history of a table: the rows that each commit added and removed. Pure.

All updates of a commit have its time, and no other commit of the table has it. So the updates of
one time are those of one commit, as long as the time is readable, even if parts were merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.persist.format.part import int64_of
from tidelog.persist.format.schema import DIFF, TIME
from tidelog.persist.states.state import State


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit of a table: its time, its writer, and the number of rows that it added and removed.

    Units: ``time`` is in milliseconds since 1970. ``bytes`` are those of the commit's own parts.
    Shape: ``by`` is the name in the commit's token, or user@host:pid. ``bytes`` and ``by`` are None
        if a merge has joined the commit's parts with those of other commits.
    """

    time: int
    added: int
    removed: int
    bytes: int | None
    by: str | None


def add_counts(counts: dict[int, tuple[int, int]], updates: pa.Table) -> None:
    """Add the numbers of added and removed rows of some updates to those of their times."""
    if not updates.num_rows:
        return
    times, places = np.unique(int64_of(updates, TIME), return_inverse=True)
    diffs = int64_of(updates, DIFF)
    added, removed = np.zeros((2, len(times)), np.int64)
    np.add.at(added, places, np.maximum(diffs, 0))
    np.add.at(removed, places, np.maximum(-diffs, 0))
    for time, more, fewer in zip(times.tolist(), added.tolist(), removed.tolist(), strict=True):
        known = counts.get(time, (0, 0))
        counts[time] = known[0] + more, known[1] + fewer


def commits_of(
    counts: Mapping[int, tuple[int, int]], states: Iterable[State], scope: str
) -> list[TableCommit]:
    """Return the commits of some counts in the order of time; ``states`` are of all shards.

    ``scope`` is the prefix of the table's writers, which callers do not know.
    """
    sizes: Counter[int] = Counter()
    writers: dict[int, str | None] = {}
    merged: list[tuple[int, int]] = []
    for state in states:
        for part in (part for batch in state.batches for part in batch.parts):
            if part.time_min == part.time_max:
                sizes[part.time_min] += part.size_bytes
                writers[part.time_min] = part.by and part.by.removeprefix(scope)
            else:
                merged.append((part.time_min, part.time_max))
    found = []
    for time, (added, removed) in sorted(counts.items()):
        is_merged = any(low <= time <= high for low, high in merged)
        size, by = (None, None) if is_merged else (sizes[time], writers.get(time))
        found.append(TableCommit(time=time, added=added, removed=removed, bytes=size, by=by))
    return found
