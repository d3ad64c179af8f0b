"""Stray fences and seals in collected slots: no process believes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.protocols import CLOCK, opener_on, slot_reader, slot_store, slot_writer
from kit.stores import InterposedStore, Once
from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError, Outcome, PositionCollected
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.format.link import Epoch, FenceLink
from tidelog.wal.format.manifest import MANIFEST, chain_of, encode_manifest, tail_of
from tidelog.wal.format.slot_object import encode_fence
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.chain_reader import ChainReader, end_of_epoch
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter


def writer_that_waits(store: Store) -> SlotWriter:
    """Return a writer that leaves roll-ups to other processes."""
    shape = Shape(alpha=4, rollup_interval_us=60_000_000)
    return SlotWriter(store=store, clock=SystemClock(), writer="w", shape=shape)


async def epoch_of(store: Store) -> Epoch:
    """Return the open epoch, also if the manifest does not know it."""
    tail = tail_of((await load_head(store)).manifest)
    async for passed in ChainReader(store=store, clock=CLOCK).walk(tail):
        tail = passed.tail
    return tail.epoch


async def collect_all(store: Store) -> None:
    """Roll up and collect everything, as another process would."""
    head, steps = await load_head(store), list[Step]()
    async for passed in ChainReader(store=store, clock=CLOCK).walk(tail_of(head.manifest)):
        steps.append(passed.step)
    head = await Checkpointer(store=store, clock=CLOCK, writer="other").roll_up(head, steps)
    manifest = head.manifest
    left = replace(
        manifest,
        fragments=(),
        snapshots=(),
        collected=manifest.setsum,
        initial_offset=manifest.next,
        initial_seq_no=manifest.next_seq_no,
    )
    await store.put(MANIFEST, encode_manifest(left))
    await store.delete([fragment.path for fragment in manifest.fragments])


async def put_stray(store: Store, epoch: Epoch, slot: int, *, is_seal: bool) -> None:
    """Put a fence into the slot where a suspended writer saw the log's end."""
    following = replace(epoch, number=epoch.number + 1, id="5" * 16, first_slot=slot)
    fence = FenceLink(
        epoch=epoch.name,
        slot=slot,
        writer="sleeper",
        id="5" * 16,
        next=None if is_seal else following,
        successor="nowhere" if is_seal else "",
    )
    await store.put(epoch.path(slot), encode_fence(fence), if_absent=True)


@pytest.mark.parametrize("is_seal", [False, True], ids=["fence", "seal"])
async def test_a_writer_knows_its_record_though_a_stray_fence_is_in_its_place(
    is_seal: bool,
) -> None:
    """A writer recognises its collected record although a stray fence has its slot."""
    store = await slot_store()

    async def collect() -> None:
        epoch = await epoch_of(store)
        await collect_all(store)
        await put_stray(store, epoch, 2, is_seal=is_seal)
        raise LocationError("the answer was lost", outcome=Outcome.UNKNOWN)

    hook = Once("put", "2.parquet", collect)
    writer = slot_writer(InterposedStore(store, after=hook), alpha=1)
    answers = [await writer.append([b"%d" % n]) for n in range(4)]
    assert hook.met
    assert answers == [1, 2, 3, 4]
    await writer.close()
    found = [row async for t in slot_reader(store).scan() for row in t.to_pylist()]
    assert [(row["position"], row["body"]) for row in found] == [(3, b"2"), (4, b"3")]


async def overtaken(*, is_seal: bool) -> tuple[MemoryStore, SlotWriter, Epoch, Once]:
    """Return a log of two records, and a hook that collects all before a read of slot 2."""
    store = await slot_store()
    writer = writer_that_waits(store)
    for _ in range(2):
        await writer.append([b"x"])
    epoch = await epoch_of(store)

    async def collect() -> None:
        await collect_all(store)
        await put_stray(store, epoch, 2, is_seal=is_seal)

    return store, writer, epoch, Once("get", epoch.path(2), collect)


@pytest.mark.parametrize("is_seal", [False, True], ids=["fence", "seal"])
async def test_no_process_ends_at_a_stray(is_seal: bool) -> None:
    """Readers, openers and the current epoch pass a stray fence."""
    store, writer, epoch, late = await overtaken(is_seal=is_seal)
    tail = tail_of((await load_head(store)).manifest)
    assert tail.slot <= 2, "the reader is to walk to slot 2"
    with pytest.raises(PositionCollected):
        _ = [table async for table in slot_reader(InterposedStore(store, before=late)).scan(2)]
    assert late.met
    assert await end_of_epoch(store, epoch, clock=CLOCK) is None
    assert (await slot_reader(store).bounds()).next == 3
    assert await writer.append([b"y"]) == 3
    ended = await opener_on(store).open(lanes=1, alpha=1)
    assert (ended.tail.position, ended.tail.slot) == (4, 4)
    await writer.close()


@pytest.mark.parametrize("is_seal", [False, True], ids=["fence", "seal"])
@pytest.mark.parametrize("who", ["opener", "outcome"])
async def test_a_walk_from_an_old_manifest_looks_again(is_seal: bool, who: str) -> None:
    """A walk from an old manifest looks again after a stray fence appears."""
    store, writer, epoch, late = await overtaken(is_seal=is_seal)
    slow = InterposedStore(store, before=late)
    if who == "opener":
        ended = await opener_on(slow).open(lanes=1, alpha=1)
        assert (ended.tail.position, ended.tail.slot) == (3, 3)
        chain = chain_of((await load_head(store)).manifest)
        assert chain.last.name == epoch.name
    else:
        assert await end_of_epoch(slow, epoch, clock=CLOCK) is None
    assert late.met
    await writer.close()
