"""A listing that finds where an epoch seems to end.

A reader that follows a log slot by slot may never reach the end of a log that is written as fast as
it is read. One listing gives a fixed bound instead: every slot acknowledged before the listing
began is below it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.core.clock import run_all
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Epoch, place_of
from tidelog.wal.format.link import Tail

SLOTS_MAX: Final = 4_000  # For one lane. A manifest lags behind by far fewer slots.
LANES_MAX: Final = 64  # In a log with more lanes, the first unlisted lane ends the result.
LISTS_MAX: Final = 8


async def first_free_slot(store: Store, tail: Tail) -> int:
    """Return the first slot at or after the tail's that seems free in the tail's epoch.

    This takes one request for each lane. All lower slots were taken when the listing began. The
    returned slot was certainly free at that time if the log is less than 4,000 slots of each lane
    past the tail.

    Raises:
        LocationError: the store failed.
    """
    epoch = tail.epoch
    lanes = range(min(epoch.lanes, LANES_MAX))
    work = [partial(_slots_of, store, epoch, tail.slot + lane) for lane in lanes]
    taken = set[int]().union(*await run_all(work, at_once=LISTS_MAX))
    slot = tail.slot
    while slot in taken:
        slot += 1
    return slot


async def _slots_of(store: Store, epoch: Epoch, first: int) -> set[int]:
    """Return the slots of one lane, from ``first`` to the slot before the first gap."""
    expected, found = first, set[int]()
    after = epoch.path(first)
    folder = after.rsplit("/", 1)[0] + "/"
    # ``after`` excludes its key, so list after the key of the slot below the first one.
    before = f"{folder}{first - 1:016x}.parquet" if first else None
    async for entry in store.list(folder, after=before):
        place = place_of(entry.key)
        if place is None or place.slot < first:
            continue
        if place.slot != expected or len(found) == SLOTS_MAX:
            break
        found.add(expected)
        expected += epoch.lanes
    return found
