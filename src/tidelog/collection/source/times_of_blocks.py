"""Summaries of the times of records, by block: enough to choose where a binding ends. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidelog.collection.formats.lines import Int64s
from tidelog.collection.source.survey_facts import NO_TIME, Block, CutPlace

RestUntil = Callable[[int], bytes]  # Returns the sum of a block's part before an offset.


def text_blocks(
    offsets: Int64s, times: Int64s, *, lower: int, block_bytes: int, rest_until: RestUntil
) -> list[Block]:
    """Return the summary of each block with records.

    Shape: the offsets of the records rise. The caller leaves out records without a time. Rows
        earlier than ``lower`` are late.
    """
    breaks = np.flatnonzero(np.diff(offsets // block_bytes)) + 1
    starts = np.concatenate([np.zeros(1, np.int64), breaks])
    limits = np.append(breaks, len(offsets))
    return [
        _block(offsets[low:high], times[low:high], lower, rest_until)
        for low, high in zip(starts.tolist(), limits.tolist(), strict=True)
        if low < high
    ]


def _block(offsets: Int64s, times: Int64s, lower: int, rest_until: RestUntil) -> Block:
    late = times < lower

    def place(row: int) -> CutPlace:
        offset = int(offsets[row])
        return CutPlace(
            offset=offset,
            rest=rest_until(offset),
            least=int(times[row]),
            late=int(late[:row].sum()),
            greatest=int(times[:row].max()) if row else NO_TIME,
        )

    changes = np.flatnonzero(np.diff(times))
    return Block(
        greatest=int(times.max()),
        late=int(late.sum()),
        first=place(0),
        rise=place(int(times.argmax())),
        change=place(int(changes[-1]) + 1) if len(changes) else None,
        last=int(times[-1]),
    )


def group_block(
    offset: int, times: Int64s, *, lower: int, can_end_before: bool, rest_until: RestUntil
) -> Block:
    """Return the summary of one row group at ``offset``. A binding never splits a row group."""
    if not len(times):
        return Block()
    place = None
    if can_end_before:
        place = CutPlace(
            offset=offset,
            rest=rest_until(offset),
            least=int(times.min()),
            late=0,
            greatest=NO_TIME,
        )
    greatest = int(times.max())
    late = int((times < lower).sum())
    return Block(greatest=greatest, late=late, first=place, rise=place, last=greatest)
