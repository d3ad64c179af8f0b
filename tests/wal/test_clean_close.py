"""A writer that was closed says so, and the next to open the log needs a single fence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.protocols import SLOTS, contents, make_slots, opener_on, slot_writer
from tidelog.errors import Fenced
from tidelog.store.memory import MemoryStore
from tidelog.testing import Recorded
from tidelog.wal.format.manifest import MANIFEST, encode_manifest
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import chain_of


async def opened_and_closed(times: int, *, alpha: int = 8) -> MemoryStore:
    store = MemoryStore()
    await make_slots(store)
    for number in range(times):
        async with slot_writer(store, name=f"w{number}", alpha=alpha) as writer:
            await writer.append([b"%d" % number])
    return store


async def test_an_opening_after_a_clean_close_leaves_one_object() -> None:
    """And takes four requests: the manifest, the fence, the manifest again, the fence's slot."""
    store = await opened_and_closed(3)
    before = set(store.objects)
    recorded = Recorded(store)
    await opener_on(recorded).open(lanes=1, alpha=8)

    assert len(set(store.objects) - before) == 1
    ops = [record.op for record in recorded.records]
    assert ops.count("put") == 1
    assert len(ops) <= 6


async def test_a_log_opened_a_hundred_times_has_an_object_for_each() -> None:
    """A fence and a record; and what is read is all that was written."""
    store = await opened_and_closed(100)

    assert len([key for key in store.objects if key.startswith("epoch/")]) == 2 * 100
    assert len((await load_head(store)).manifest.chain.epochs) <= 32  # type: ignore[union-attr]
    assert await contents(SLOTS, store) == {n + 1: b"%d" % n for n in range(100)}


async def test_a_false_claim_of_a_clean_close_loses_nothing() -> None:
    """It only chooses where the first fence goes: what is there already is walked past."""
    store = MemoryStore()
    await make_slots(store)
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
    """A writer in doubt goes on over its own epochs, and never deposes whoever took over."""
    store = MemoryStore()
    await make_slots(store)
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
