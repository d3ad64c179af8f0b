"""Paced deletions: at most this many objects a second, in order, and all of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.clocks import OneThread
from kit.named_logs import ALL, log_of
from kit.stores import keys_in
from tidelog.errors import LocationError
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.paths import place_of
from tidelog.wal.gc.deletion import Pace, delete_all
from tidelog.wal.slot_log import SlotLog


class TimedStore(MemoryStore):
    """A store that records the time of each deletion, and fails after ``fails_at`` of them."""

    clock: OneThread
    fails_at: int = 2**63
    deleted: list[tuple[int, str]]

    async def delete(self, keys: Sequence[str]) -> None:
        if len(self.deleted) >= self.fails_at:
            raise LocationError("gone")
        self.deleted += [(self.clock.slept_us, key) for key in keys]
        await super().delete(keys)


def timed() -> TimedStore:
    store = TimedStore()
    store.clock, store.deleted = OneThread(), []
    return store


@given(count=st.integers(0, 60), per_second=st.floats(0.001, 1_000))
def test_what_is_deleted_together_is_a_tenth_of_a_second(count: int, per_second: float) -> None:
    """A batch of deletions covers a tenth of a second, in order, and omits none."""
    keys = [str(number) for number in range(count)]
    batches = Pace(per_second=per_second).batches(keys)

    assert [key for batch in batches for key in batch] == keys
    assert all(1 <= len(batch) <= max(1, per_second / 10) for batch in batches)


@pytest.mark.parametrize(("per_second", "seconds"), [(None, 0), (0.5, 78), (4, 9.75), (100, 0.3)])
async def test_forty_objects_take_as_long_as_is_said(
    per_second: float | None, seconds: float
) -> None:
    """The first objects of a paced deletion go at once, and no wait follows the last."""
    store = timed()
    keys = [f"{number:02}" for number in range(40)]
    await delete_all(store, keys, clock=store.clock, pace=Pace(per_second=per_second))

    assert [key for _, key in store.deleted] == keys
    assert seconds * 0.99 < store.clock.slept_us / 1e6 + 0.001 < seconds + 0.01


async def test_a_collection_deletes_at_its_pace_oldest_first_and_goes_on_after_a_death() -> None:
    """A collection deletes the oldest objects first; after a failure the next continues."""
    store = timed()
    await log_of(store, "a", 12)
    within = Within(store, "log/a")
    log = SlotLog(name="a", store=within, clock=store.clock, writer="gc")
    await log.create_cursor("x", 11)
    begun_us, store.fails_at = store.clock.slept_us, 5
    pace = Pace(per_second=2)
    with pytest.raises(LocationError):
        await log.collect(keep=ALL, grace_us=0, pace=pace)
    assert (await log.bounds()).oldest == 11
    assert (await log.create_cursor("y", 11)).position == 11
    store.fails_at = 2**63
    await log.collect(keep=ALL, grace_us=0, pace=pace)

    gone = [key.removeprefix("log/a/") for _, key in store.deleted]
    slots = [place.slot for key in gone if (place := place_of(key)) is not None]
    again = slots.index(min(slots), 1)
    assert slots[again:] == sorted(slots[again:])
    assert set(range(1, 11)) <= set(slots)
    took_us = store.deleted[-1][0] - begun_us
    assert took_us >= (len(gone) - 3) / 2 * 1e6
    assert not [key for key in await keys_in(within, "epoch/") if key in gone]
