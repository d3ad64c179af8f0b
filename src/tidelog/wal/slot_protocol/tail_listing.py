"""Where an epoch seems to end: one listing of its slots, which a busy writer cannot draw out.

Whoever follows a log slot by slot may never come to the end of one that is written as quickly as it
is read. So the end is looked for once, by listing; what was acknowledged before is below it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.clock import run_all
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Epoch, place_of
from tidelog.wal.format.link import Tail

SLOTS_MAX: Final = 4_000  # Of one lane; a manifest is far less behind than that.
LANES_MAX: Final = 64  # With more, the first lane that is not listed ends what is seen.
LISTS_MAX: Final = 8


async def first_free_slot(store: Store, tail: Tail) -> int:
    """Return the first slot from ``tail`` on that is free in the tail's epoch, or seems to be.

    One request for each lane. Every slot below was taken when the listing began; the one returned
    is surely free then if the log is less than 4,000 slots of each lane ahead of the tail.

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
    """Return the slots of a lane from ``first`` on, up to the first that is missing."""
    expected, found = first, set[int]()
    after = epoch.path(first)
    folder = after.rsplit("/", 1)[0] + "/"
    # What comes right after the greatest key below the first slot's.
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
