"""Stray fences and seals in collected slots: no process believes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.protocols import CLOCK, make_slots, opener_on, slot_reader, slot_writer
from kit.stores import Interposed
from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError, Outcome, PositionCollected
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Epoch
from tidelog.wal.format.link import FenceLink
from tidelog.wal.format.manifest import MANIFEST, encode_manifest
from tidelog.wal.format.slot_object import encode_fence
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import Step, chain_of, tail_of
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
    """A writer recognises its record although a stray fence has its slot.

    The put landed without an answer, the record was collected, and then a suspended writer fenced
    the empty slot.
    """
    store = MemoryStore()
    await make_slots(store)
    happened: list[str] = []

    async def after(op: str, key: str) -> None:
        if op == "put" and key.endswith("2.parquet") and not happened:
            happened.append(key)
            epoch = await epoch_of(store)
            await collect_all(store)
            await put_stray(store, epoch, 2, is_seal=is_seal)
            raise LocationError("the answer was lost", outcome=Outcome.UNKNOWN)

    writer = slot_writer(Interposed(store, after=after), alpha=1)
    answers = [await writer.append([b"%d" % n]) for n in range(4)]
    assert happened
    assert answers == [1, 2, 3, 4]
    await writer.close()
    found = [row async for t in slot_reader(store).scan() for row in t.to_pylist()]
    assert [(row["position"], row["body"]) for row in found] == [(3, b"2"), (4, b"3")]


@pytest.mark.parametrize("is_seal", [False, True], ids=["fence", "seal"])
async def test_nobody_ends_at_a_stray(is_seal: bool) -> None:
    """No process stops at a stray fence.

    Readers report PositionCollected, openers open the log, and the current epoch continues.
    """
    store = MemoryStore()
    await make_slots(store)
    writer = writer_that_waits(store)
    for _ in range(2):
        await writer.append([b"x"])
    epoch = await epoch_of(store)
    tail = tail_of((await load_head(store)).manifest)
    late = list[str]()

    async def before(op: str, key: str) -> None:
        if op == "get" and key == epoch.path(2) and not late:
            late.append(key)
            await collect_all(store)
            await put_stray(store, epoch, 2, is_seal=is_seal)

    slow = Interposed(store, before=before)
    assert tail.slot <= 2, "the reader is to walk to slot 2"
    with pytest.raises(PositionCollected):
        _ = [table async for table in slot_reader(slow).scan(2)]
    assert late
    assert await end_of_epoch(store, epoch, clock=CLOCK) is None
    assert (await slot_reader(store).bounds()).next == 3
    assert await writer.append([b"y"]) == 3
    ended = await opener_on(store).open(lanes=1, alpha=1)
    assert (ended.tail.position, ended.tail.slot) == (4, 4)
    await writer.close()


@pytest.mark.parametrize("is_seal", [False, True], ids=["fence", "seal"])
@pytest.mark.parametrize("who", ["opener", "outcome"])
async def test_who_walked_by_an_old_manifest_looks_again(is_seal: bool, who: str) -> None:
    """A process that walked from an old manifest checks again.

    The stray fence appeared just after its read of the manifest.
    """
    store = MemoryStore()
    await make_slots(store)
    writer = writer_that_waits(store)
    for _ in range(2):
        await writer.append([b"x"])
    epoch = await epoch_of(store)
    late = list[str]()

    async def before(op: str, key: str) -> None:
        if op == "get" and key == epoch.path(2) and not late:
            late.append(key)
            await collect_all(store)
            await put_stray(store, epoch, 2, is_seal=is_seal)

    slow = Interposed(store, before=before)
    if who == "opener":
        ended = await opener_on(slow).open(lanes=1, alpha=1)
        assert (ended.tail.position, ended.tail.slot) == (3, 3)
        chain = chain_of((await load_head(store)).manifest)
        assert chain.last.name == epoch.name
    else:
        assert await end_of_epoch(slow, epoch, clock=CLOCK) is None
    assert late
    await writer.close()
