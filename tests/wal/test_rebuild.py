"""Rebuilds of a lost manifest from links alone: an intact log gets the same manifest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import named_logs
from kit.histories import History
from kit.protocols import ALL, CLOCK, SLOTS, contents, log_on, opener_on, slot_store, slot_writer
from kit.stores import InterposedStore
from tidelog.errors import (
    CorruptionError,
    LocationError,
    LogSealed,
    NameTaken,
    NoSuchLog,
    Outcome,
    UsageError,
)
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import RecordedStore
from tidelog.wal.admin.destroy import destroy_log
from tidelog.wal.admin.rebuild import rebuild_log
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.link import Epoch, FenceLink
from tidelog.wal.format.manifest import MANIFEST, Manifest, chain_of
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.slot_object import encode_fence
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail


async def log_of(
    turns: Sequence[Sequence[int]], *, alpha: int = 4, lanes: int = 1, cutoff: int = 0
) -> MemoryStore:
    """Return a collected log of several openings, each with batches of these sizes."""
    store = await slot_store()
    for number, sizes in enumerate(turns):
        async with slot_writer(store, name=f"w{number}", alpha=alpha, lanes=lanes) as writer:
            for size in sizes:
                await writer.append([b"%d-%d" % (number, n) for n in range(size)])
        if not sizes:
            await opener_on(store).open(lanes=lanes, alpha=alpha)
    if cutoff:
        bounds = await log_on(store).bounds()
        await log_on(store).create_cursor("x", min(cutoff, bounds.next))
        await log_on(store).collect(keep=ALL, grace_us=0)
    await roll_up_tail(store, clock=CLOCK, writer="me")
    return store


def said(manifest: Manifest) -> object:
    """Return the content of a manifest, without its writer and its layout."""
    chain = chain_of(manifest)
    epochs = [(e.number, e.id, e.first_slot, e.lanes, e.alpha) for e in chain.epochs]
    begin = manifest.oldest, manifest.initial_seq_no or 1
    end = manifest.next, manifest.next_seq_no, manifest.acc_bytes
    return epochs, chain.seal, begin, end, manifest.setsum, manifest.collected


@settings(max_examples=20)
@given(
    turns=st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=5),
    alpha=st.integers(1, 4),
    lanes=st.sampled_from([1, 3]),
    cutoff=st.integers(0, 40),
    sealed=st.booleans(),
)
async def test_a_lost_manifest_is_made_again(
    turns: list[list[int]], alpha: int, lanes: int, cutoff: int, sealed: bool
) -> None:
    """A rebuilt manifest has the lost content; the log reads as before and accepts appends."""
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


@pytest.mark.parametrize("at", [2, 5])
async def test_a_fence_in_a_slot_that_was_collected_leads_nowhere(at: int) -> None:
    """A suspended writer's fence in a collected slot is ignored, with those it leads to."""
    store = await log_of([[1] * 9, [1] * 4])
    await log_on(store).create_cursor("x", 8)
    await log_on(store).collect(keep=ALL, grace_us=0)
    lost = (await load_head(store)).manifest
    first, last = chain_of(lost).epochs[1:]
    for epoch in (first, last) if at == 5 else (first,):
        await store.put(epoch.path(at), stray_fence(epoch, at))
    await store.delete([MANIFEST])
    made = await rebuild_log(store, clock=CLOCK, writer="me")
    assert said(made) == said(lost)


def stray_fence(ending: Epoch, slot: int) -> bytes:
    following = Epoch(number=ending.number + 1, id="f" * 16, first_slot=slot, opener="sleeper")
    link = FenceLink(
        epoch=ending.name, slot=slot, writer="sleeper", id=following.id, next=following
    )
    return encode_fence(link)


async def test_only_the_ends_of_objects_are_read() -> None:
    """A rebuild reads only the end of each object, because the link is in the footer."""
    store = await slot_store()
    async with slot_writer(store) as writer:
        for _ in range(5):
            await writer.append([bytes(range(256)) * 2_000])
    await store.delete([MANIFEST])
    recorded = RecordedStore(store)
    await rebuild_log(recorded, clock=CLOCK, writer="me")
    gets = [r for r in recorded.records if r.op == "get" and r.key.startswith("epoch/")]
    assert len(gets) == len([entry async for entry in store.list("epoch/")])
    assert len(await contents(SLOTS, store)) == 5


async def test_what_cannot_be_rebuilt_is_told() -> None:
    """A rebuild is refused if the manifest exists, if no slots exist, or if a slot is missing."""
    store = await log_of([[1] * 6])
    with pytest.raises(NameTaken, match="scrub"):
        await rebuild_log(store, clock=CLOCK, writer="me")
    with pytest.raises(UsageError, match="no objects of a log of the slot protocol"):
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
    with pytest.raises(CorruptionError, match="the object of slot 7 is missing"):
        await rebuild_log(holed, clock=CLOCK, writer="me")


async def rebuilt(store: Store, **options: int) -> Manifest:
    """Delete the manifest and rebuild it."""
    await store.delete([MANIFEST])
    return await rebuild_log(store, clock=CLOCK, writer="me", **options)


async def collected_but(store: MemoryStore, position: int, *, left: Sequence[int]) -> None:
    """Collect up to a position, then restore the objects of some slots."""
    kept = {key: data for key, data in store.objects.items() if _slot(key) in left}
    await log_on(store).create_cursor("x", position)
    await log_on(store).collect(keep=ALL, grace_us=0)
    store.objects.update(kept)


def _slot(key: str) -> int:
    place = place_of(key)
    return 0 if place is None else place.slot


@pytest.mark.parametrize("left", [[1, 2], [2], [5], [2, 4]])
async def test_what_lies_below_the_beginning_was_collected(left: list[int]) -> None:
    """Objects below the start (pinned, shared or late) do not move the start."""
    store = await log_of([[1] * 8])
    await collected_but(store, 6, left=left)
    before, lost = await contents(SLOTS, store), (await load_head(store)).manifest

    made = await rebuilt(store)

    assert said(made) == said(lost)
    assert await contents(SLOTS, store) == before
    async with slot_writer(store) as writer:
        assert await writer.append([b"more"]) == lost.next


@pytest.mark.parametrize("gone", [[], [1], [1, 3, 4], [2, 5], [1, 2, 3, 4, 5]])
async def test_a_deletion_that_was_broken_off_loses_nothing(gone: list[int]) -> None:
    """A rebuilt log starts before a half-deleted range if it is complete, else after it."""
    store = await log_of([[1] * 8])
    before = await contents(SLOTS, store)
    await log_on(store).create_cursor("x", 6)
    dying = DyingStore(store, gone)
    with pytest.raises(LocationError):
        await log_on(dying).collect(keep=ALL, grace_us=0)

    made = await rebuilt(store)

    assert (made.oldest, made.next) == (6 if gone else 1, 9)
    assert await contents(SLOTS, store) == {
        at: body for at, body in before.items() if at >= made.oldest
    }
    await log_on(store).collect(keep=ALL, grace_us=0)
    assert min(await contents(SLOTS, store)) == 6


class DyingStore(InterposedStore):
    """A store that deletes only some slots and then fails."""

    def __init__(self, store: Store, slots: Sequence[int]) -> None:
        super().__init__(store)
        self._slots = slots

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([key for key in keys if _slot(key) in self._slots])
        raise LocationError("died", outcome=Outcome.UNKNOWN)


async def test_an_epoch_whose_only_data_is_void_is_healthy() -> None:
    """A writer's first put was lost, its second landed, another took over: a valid epoch."""
    history = History()
    await history.begin()
    await history.die_writing([False, True, True])
    await history.write(2)
    lost = (await load_head(history.within)).manifest

    made = await rebuilt(history.within)

    assert said(made) == said(lost)


async def test_a_burst_across_the_beginning_is_healthy() -> None:
    """A burst of fences across the log's start is valid.

    A suspended writer's fences landed in collected slots and in the next one. So some fences that
    name its epoch are strays, and one ended the epoch before.
    """
    history = History()
    await history.begin()
    await history.go_on(2)
    await history.sleep_opening()
    await history.go_on(2)
    await history.collect(1)
    await history.wake()
    lost = (await load_head(history.within)).manifest

    assert lost.initial_seq_no == 4
    assert said(await rebuilt(history.within)) == said(lost)


async def test_data_past_the_end_that_no_fence_voids_is_refused() -> None:
    """Data past the end without a fence may hide a lost record, so it is refused."""
    history = History()
    await history.begin()
    await history.die_writing([True, False, True])
    await history.within.delete([MANIFEST])
    keys = set(history.store.objects)

    with pytest.raises(CorruptionError, match="the object of slot 2 is missing"):
        await rebuild_log(history.within, clock=CLOCK, writer="me")
    assert set(history.store.objects) == keys


@pytest.mark.parametrize("lost", [1, 4, 8, 9])
async def test_a_record_that_was_lost_is_told(lost: int) -> None:
    """A lost record raises, except at the end; lost oldest ones do not count as collected."""
    store = await log_of([[1] * 8, [1] * 4])
    chain = chain_of((await load_head(store)).manifest)
    await store.delete([chain.of(lost).path(lost)])
    with pytest.raises(CorruptionError, match="missing"):
        await rebuilt(store)


async def test_a_rebuild_without_the_plan_needs_a_start_from_the_caller() -> None:
    """A rebuild without the collection plan is refused until the caller states the start."""
    store = await log_of([[1] * 8, [1] * 4], cutoff=6)
    lost, before = (await load_head(store)).manifest, await contents(SLOTS, store)
    await store.delete([GARBAGE])
    with pytest.raises(CorruptionError, match="missing"):
        await rebuilt(store)
    with pytest.raises(UsageError, match="no object of the log begins"):
        await rebuild_log(store, clock=CLOCK, writer="me", start=2)
    assert said(await rebuild_log(store, clock=CLOCK, writer="me", start=6)) == said(lost)
    assert await contents(SLOTS, store) == before


@pytest.mark.parametrize("who", ["cursor", "pin"])
async def test_a_cursor_past_the_end_shows_that_records_are_lost(who: str) -> None:
    """A rebuild must not give out positions again that a cursor or a pin has seen."""
    store = await log_of([[1] * 8])
    if who == "cursor":
        await log_on(store).create_cursor("x", 9)
    else:
        await log_on(store).create_pin("p", start=8, limit=9)
    manifest = (await load_head(store)).manifest
    await store.delete([chain_of(manifest).of(8).path(8)])
    with pytest.raises(CorruptionError, match="newest records"):
        await rebuilt(store)


async def test_a_destroyed_log_is_not_made_again() -> None:
    """A destroyed log is not rebuilt: its fences and its plan remain."""
    store = await log_of([[1] * 8])
    await destroy_log(store, clock=CLOCK, writer="me", grace_us=0)
    with pytest.raises(NoSuchLog, match="dropped"):
        await rebuilt(store)


async def test_a_copy_is_made_again_though_one_was_broken_off_before() -> None:
    """A copy from a later position is rebuilt over the objects of an interrupted copy."""
    store = MemoryStore()
    await named_logs.log_of(store, "a", 8)
    for name in ("copy", "other"):
        await named_logs.shelf_on(store).copy("a", name, start=4)
    for key in [key for key in store.objects if key.startswith("log/other/epoch/")]:
        store.objects[key.replace("/other/", "/copy/")] = store.objects[key]
    await named_logs.append(store, "copy", 2)
    within = Within(store, "log/copy")
    await roll_up_tail(within, clock=CLOCK, writer="me")
    lost = (await load_head(within)).manifest

    assert said(await rebuilt(within)) == said(lost)


async def test_streams_are_what_they_were() -> None:
    """A rebuilt log has the same streams: the plan holds those of collected records."""
    store = await log_of([[1] * 4])
    log = log_on(store)
    await log.open_stream(b"a", b"of old")
    await log.append([b"x"], stream=b"a")
    for _ in range(4):
        await log.append([b"y"])
    await log.close()
    streams = await log.streams()
    await log.create_cursor("x", 9)
    await log.collect(keep=ALL, grace_us=0)
    for cutoff in (10, 11):
        await rebuilt(store)
        assert await log_on(store).streams() == streams
        await log.move_cursor(await log.load_cursor("x"), cutoff)
        with pytest.raises(LocationError):
            await log_on(DyingStore(store, [])).collect(keep=ALL, grace_us=0)
