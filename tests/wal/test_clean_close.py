"""A clean close: the manifest records it, and the next opener needs a single fence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.protocols import SLOTS, contents, opener_on, slot_store, slot_writer
from tidelog.errors import Fenced
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore
from tidelog.wal.format.manifest import MANIFEST, chain_of, encode_manifest
from tidelog.wal.read.head import load_head


async def opened_and_closed(times: int, *, alpha: int = 8) -> MemoryStore:
    store = await slot_store()
    for number in range(times):
        async with slot_writer(store, name=f"w{number}", alpha=alpha) as writer:
            await writer.append([b"%d" % number])
    return store


async def test_an_opening_after_a_clean_close_leaves_one_object() -> None:
    """An opening after a clean close adds one object and makes at most six requests."""
    store = await opened_and_closed(3)
    before = set(store.objects)
    recorded = RecordedStore(store)
    await opener_on(recorded).open(lanes=1, alpha=8)

    assert len(set(store.objects) - before) == 1
    ops = [record.op for record in recorded.records]
    assert ops.count("put") == 1
    assert len(ops) <= 6


async def test_a_log_opened_a_hundred_times_has_an_object_for_each() -> None:
    """Each opening of a log leaves two objects: a fence and a record."""
    store = await opened_and_closed(100)

    assert len([key for key in store.objects if key.startswith("epoch/")]) == 2 * 100
    assert len((await load_head(store)).manifest.chain.epochs) <= 32  # type: ignore[union-attr]
    assert await contents(SLOTS, store) == {n + 1: b"%d" % n for n in range(100)}


async def test_a_false_claim_of_a_clean_close_loses_nothing() -> None:
    """A false claim of a clean close only moves the first slot to fence and loses no record."""
    store = await slot_store()
    writer = slot_writer(store, name="one")
    await writer.append([b"a"])
    head = await load_head(store)
    lie = replace(head.manifest, chain=replace(chain_of(head.manifest), is_closed=True))
    await store.put(MANIFEST, encode_manifest(lie))
    await writer.append([b"b"])
    async with slot_writer(store, name="two") as other:
        assert await other.append([b"c"]) == 3
    with pytest.raises(Fenced):
        await writer.append([b"d"])

    assert await contents(SLOTS, store) == {1: b"a", 2: b"b", 3: b"c"}


async def test_nothing_is_opened_over_an_epoch_that_is_not_named() -> None:
    """A writer in doubt reopens over its own epochs, never over a writer that took over."""
    store = await slot_store()
    mine = await opener_on(store, "one").open(lanes=1, alpha=2)
    own = frozenset([mine.tail.epoch.name])
    again = await opener_on(store, "one").open(lanes=1, alpha=2, only_over=own)
    theirs = await opener_on(store, "two").open(lanes=1, alpha=2)

    with pytest.raises(Fenced, match="two"):
        await opener_on(store, "one").open(
            lanes=1, alpha=2, only_over=own | {again.tail.epoch.name}
        )
    now = await opener_on(store).open(lanes=1, alpha=2)
    assert now.tail.epoch.number == theirs.tail.epoch.number + 1
