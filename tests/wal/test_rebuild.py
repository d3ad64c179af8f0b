"""A lost manifest, made again from the links alone: from any log that was whole, the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.protocols import CLOCK, SLOTS, contents, make_slots, opener_on, slot_writer
from tidelog.errors import CorruptionError, LogSealed, NameTaken, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Recorded
from tidelog.wal.admin.rebuild import rebuild_log
from tidelog.wal.format.epoch import Epoch
from tidelog.wal.format.link import FenceLink
from tidelog.wal.format.manifest import MANIFEST, Manifest
from tidelog.wal.format.slot_object import encode_fence
from tidelog.wal.gc.plan import Keep
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.chain import chain_of
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail


def log_on(store: Store) -> SlotLog:
    return SlotLog(name="x", store=store, clock=CLOCK, writer="me")


async def log_of(
    turns: Sequence[Sequence[int]], *, alpha: int = 4, lanes: int = 1, cutoff: int = 0
) -> MemoryStore:
    """Return a log of so many openings, each with batches of so many records, collected."""
    store = MemoryStore()
    await make_slots(store)
    for number, sizes in enumerate(turns):
        async with slot_writer(store, name=f"w{number}", alpha=alpha, lanes=lanes) as writer:
            for size in sizes:
                await writer.append([b"%d-%d" % (number, n) for n in range(size)])
        if not sizes:
            await opener_on(store).open(lanes=lanes, alpha=alpha)
    if cutoff:
        bounds = await log_on(store).bounds()
        await log_on(store).create_cursor("x", min(cutoff, bounds.next))
        await log_on(store).collect(keep=Keep(share_max=1), grace_us=0)
    await roll_up_tail(store, clock=CLOCK, writer="me")
    return store


def said(manifest: Manifest) -> object:
    """Return what a manifest says of its log; who wrote it, and how it is laid out, left aside."""
    chain = chain_of(manifest)
    epochs = [(e.number, e.id, e.first_slot, e.lanes, e.alpha) for e in chain.epochs]
    begin = manifest.oldest, manifest.initial_seq_no or 1
    end = manifest.next, manifest.next_seq_no, manifest.acc_bytes
    return epochs, chain.seal, begin, end, manifest.setsum, manifest.collected


@settings(max_examples=40)
@given(
    turns=st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=5),
    alpha=st.integers(1, 4),
    lanes=st.sampled_from([1, 3]),
    cutoff=st.integers(0, 40),
    sealed=st.booleans(),
)
def test_a_lost_manifest_is_made_again(
    turns: list[list[int]], alpha: int, lanes: int, cutoff: int, sealed: bool
) -> None:
    """It says what the lost one said, and the log reads and goes on as before."""

    async def work() -> None:
        store = await log_of(turns, alpha=alpha, lanes=lanes, cutoff=cutoff)
        if sealed:
            await opener_on(store).seal(successor="next")
            await roll_up_tail(store, clock=CLOCK, writer="me")
        before, lost = await contents(SLOTS, store), (await load_head(store)).manifest
        await store.delete([MANIFEST])
        made = await rebuild_log(store, clock=CLOCK, writer="me")
        assert said(made) == said(lost)
        assert await contents(SLOTS, store) == before
        if sealed:
            with pytest.raises(LogSealed, match="next"):
                await slot_writer(store).append([b"x"])
            return
        async with slot_writer(store) as writer:
            assert await writer.append([b"more"]) == lost.next
        assert await contents(SLOTS, store) == {**before, lost.next: b"more"}

    asyncio.run(work())


@pytest.mark.parametrize("at", [2, 5])
def test_a_fence_in_a_slot_that_was_collected_leads_nowhere(at: int) -> None:
    """A sleeper put it there; and what an opener put into the epoch that it names is as void."""

    async def work() -> None:
        store = await log_of([[1] * 9, [1] * 4])
        await log_on(store).create_cursor("x", 8)
        await log_on(store).collect(keep=Keep(share_max=1), grace_us=0)
        lost = (await load_head(store)).manifest
        first, last = chain_of(lost).epochs[1:]
        for epoch in (first, last) if at == 5 else (first,):
            await store.put(epoch.path(at), stray_fence(epoch, at))
        await store.delete([MANIFEST])
        made = await rebuild_log(store, clock=CLOCK, writer="me")
        assert said(made) == said(lost)

    asyncio.run(work())


def stray_fence(ending: Epoch, slot: int) -> bytes:
    following = Epoch(number=ending.number + 1, id="f" * 16, first_slot=slot, opener="sleeper")
    link = FenceLink(
        epoch=ending.name, slot=slot, writer="sleeper", id=following.id, next=following
    )
    return encode_fence(link)


def test_only_the_ends_of_objects_are_read() -> None:
    """However large they are: the link stands in the footer."""

    async def work() -> None:
        store = MemoryStore()
        await make_slots(store)
        async with slot_writer(store) as writer:
            for _ in range(5):
                await writer.append([bytes(range(256)) * 2_000])
        await store.delete([MANIFEST])
        recorded = Recorded(store)
        await rebuild_log(recorded, clock=CLOCK, writer="me")
        gets = [r for r in recorded.records if r.op == "get" and r.key.startswith("epoch/")]
        assert len(gets) == len([entry async for entry in store.list("epoch/")])
        assert len(await contents(SLOTS, store)) == 5

    asyncio.run(work())


def test_what_cannot_be_rebuilt_is_told() -> None:
    """A log that has its manifest, a folder without slots, a log with a hole in the middle."""

    async def work() -> None:
        store = await log_of([[1] * 6])
        with pytest.raises(NameTaken, match="scrub"):
            await rebuild_log(store, clock=CLOCK, writer="me")
        with pytest.raises(UsageError, match="no slots"):
            await rebuild_log(MemoryStore(), clock=CLOCK, writer="me")
        chain = chain_of((await load_head(store)).manifest)
        await store.delete([MANIFEST, chain.epochs[0].path(1)])
        keys = set(store.objects)
        with pytest.raises(CorruptionError, match="first epoch"):
            await rebuild_log(store, clock=CLOCK, writer="me")
        assert set(store.objects) == keys
        holed = await log_of([[1] * 6, [1] * 6])
        chain = chain_of((await load_head(holed)).manifest)
        await holed.delete([MANIFEST, chain.last.path(chain.last.first_slot)])
        with pytest.raises(CorruptionError, match="in the middle is missing"):
            await rebuild_log(holed, clock=CLOCK, writer="me")

    asyncio.run(work())
