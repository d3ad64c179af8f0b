"""A driver's view of a log, with concurrent writers, roll-ups and collectors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.protocols import CLOCK, KINDS, Kind, make_slots, slot_writer
from kit.stores import InterposedStore
from tidelog.core.setsum import Setsum
from tidelog.errors import ContentionError, CorruptionError, NoSuchLog, PositionCollected
from tidelog.spark.log_share import LogPlace, groups_of, share_log
from tidelog.spark.log_view import open_view
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Epoch, FenceLink
from tidelog.wal.format.manifest import MANIFEST, Manifest, chain_of, encode_manifest, tail_of
from tidelog.wal.format.slot_object import encode_fence
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter

PLACE = LogPlace(location_url="s3://bucket/lake", name="log", is_slots=True)


def lazy_writer(store: Store) -> SlotWriter:
    """Return a writer that never rolls up, even when it is closed."""

    async def before(op: str, key: str) -> None:
        if op == "put" and key == MANIFEST:
            raise ContentionError("another is always first")

    return SlotWriter(
        store=InterposedStore(store, before=before), clock=CLOCK, writer="w", shape=Shape(alpha=1)
    )


async def fill(store: Store, count: int) -> None:
    async with lazy_writer(store) as writer:
        for number in range(count):
            await writer.append([b"%d" % number])


async def collect_all(store: Store) -> Manifest:
    """Roll up and collect the whole log, as other processes would."""
    head, steps = await load_head(store), list[Step]()
    async for passed in ChainReader(store=store, clock=CLOCK).walk(tail_of(head.manifest)):
        steps.append(passed.step)
    manifest = (
        await Checkpointer(store=store, clock=CLOCK, writer="other").roll_up(head, steps)
    ).manifest
    left = replace(
        manifest,
        fragments=(),
        collected=manifest.setsum,
        initial_offset=manifest.next,
        initial_seq_no=manifest.next_seq_no,
    )
    await store.put(MANIFEST, encode_manifest(left))
    await store.delete([fragment.path for fragment in manifest.fragments])
    return left


def seal_of(epoch: Epoch, slot: int) -> bytes:
    fence = FenceLink(epoch=epoch.name, slot=slot, writer="sleeper", id="5" * 16, next=None)
    return encode_fence(fence)


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_fragments_of_any_range_are_those_that_hold_it(kind: Kind) -> None:
    """Each position of a range is in exactly one fragment, in a snapshot or in the tail."""
    store = MemoryStore()
    await kind.make(store)
    async with kind.writer(store) as writer:
        for number in range(23):
            await writer.append([b"x"] * (1 + number % 3))
    view = await open_view(store, clock=CLOCK)
    await view.renew()
    assert (view.oldest, view.next) == (1, 46)
    for start in range(1, 46):
        for limit in (start, start + 1, start + 7, 46):
            found = await view.fragments(start, min(limit, 46))
            held = [p for f in found for p in range(f.start, f.limit)]
            assert [p for p in held if start <= p < limit] == [*range(start, min(limit, 46))]
            assert all(f.limit > start and f.start < limit for f in found)


async def test_a_view_that_was_overtaken_starts_over() -> None:
    """A view whose tail was collected starts again from the manifest."""
    store = MemoryStore()
    await make_slots(store)
    await fill(store, 3)
    view = await open_view(store, clock=CLOCK)
    await view.renew()
    assert [f.start for f in view.beyond] == [1, 2, 3]
    await fill(store, 2)
    left = await collect_all(store)
    await fill(store, 4)
    await view.renew()

    assert (view.oldest, view.next) == (left.oldest, 10)
    assert [f.start for f in await view.fragments(6, 10)] == [6, 7, 8, 9]
    with pytest.raises(PositionCollected, match=r"option\('start', 6\)"):
        await view.fragments(3, 10)


async def test_a_seal_that_a_sleeper_put_into_a_collected_slot_is_not_believed() -> None:
    """A late seal in a collected slot must not end a stream."""
    store = MemoryStore()
    await make_slots(store)
    writer = lazy_writer(store)
    await writer.append([b"one"])
    view = await open_view(store, clock=CLOCK)
    await view.renew()
    (seen,) = view.beyond
    await writer.append([b"two"])
    epoch = chain_of(await collect_all(store)).of(seen.seq_no)
    await store.put(epoch.path(seen.seq_no + 1), seal_of(epoch, seen.seq_no + 1))
    await writer.append([b"three"])
    await writer.close()
    await view.renew()

    assert (view.oldest, view.next) == (3, 4)


async def test_a_snapshot_that_is_collected_under_way_is_told_from_one_that_is_lost() -> None:
    """A collected snapshot raises PositionCollected; a lost one is damage."""
    store = MemoryStore()
    await make_slots(store)
    async with slot_writer(store) as writer:
        for number in range(30):
            await writer.append([b"%d" % number])
    manifest = (await load_head(store)).manifest
    (first, *_) = manifest.snapshots
    whole = (await store.get(first.path)).data
    view = await open_view(store, clock=CLOCK)
    await store.delete([first.path])
    with pytest.raises(CorruptionError, match="missing object: restore it"):
        await view.fragments(1, 30)
    await store.put(first.path, whole)

    async def before(op: str, key: str) -> None:
        if op == "get" and key == first.path:
            left = replace(
                manifest,
                snapshots=manifest.snapshots[1:],
                collected=first.setsum,
                initial_offset=first.limit,
                initial_seq_no=1,
            )
            await store.put(MANIFEST, encode_manifest(left))
            await store.delete([first.path])

    late = await open_view(InterposedStore(store, before=before), clock=CLOCK)
    with pytest.raises(PositionCollected, match=f"the oldest record is {first.limit}"):
        await late.fragments(1, 30)


async def test_a_log_that_is_gone_is_told() -> None:
    """A log without a manifest raises NoSuchLog."""
    store = MemoryStore()
    await make_slots(store)
    view = await open_view(store, clock=CLOCK)
    await store.delete([MANIFEST])
    with pytest.raises(NoSuchLog):
        await view.renew()


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), max_size=30),
    data=st.data(),
)
def test_shares_cover_a_range_once(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """The shares of a range contain each record exactly once, for any object sizes."""
    fragments, at = [], 1
    for number, (count, size) in enumerate(sizes):
        fragments.append(
            Fragment(
                path=str(number),
                seq_no=number,
                start=at,
                limit=at + count,
                num_bytes=size,
                setsum=Setsum.zero(),
            )
        )
        at += count
    start = data.draw(st.integers(1, at), label="start")
    limit = data.draw(st.integers(start, at), label="limit")
    within = [f for f in fragments if f.limit > start and f.start < limit]

    shares = share_log(within, start, limit, place=PLACE)
    assert [p for s in shares for p in range(s.start, s.limit)] == list(range(start, limit))
    groups = list(groups_of(within, size_bytes=60, count=4))
    assert [f for group in groups for f in group] == within
    assert all(len(g) <= 4 and (len(g) == 1 or sum(f.num_bytes for f in g) <= 60) for g in groups)
