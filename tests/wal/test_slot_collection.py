"""Collections of slot logs: data and void slots are deleted, fences that ended an epoch are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.protocols import ALL, CLOCK, SLOTS, contents, log_on, opener_on, slot_store, slot_writer
from kit.stores import copy_of, deaths
from tidelog.core.clock import SystemClock
from tidelog.errors import LogSealed, PositionCollected, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import RecordedStore
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.link import FenceLink
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.gc.orphans import OrphanVerdict, judge_fragment
from tidelog.wal.read.head import TreeReader, load_head
from tidelog.wal.read.tree_paths import paths_named
from tidelog.wal.slot_protocol.burst import SIGNS
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter


async def append_turns(store: Store, turns: Sequence[Sequence[int]], *, alpha: int = 4) -> None:
    """Append batches of these sizes, with another writer for each turn."""
    for number, sizes in enumerate(turns):
        async with slot_writer(store, name=f"w{number}", alpha=alpha) as writer:
            for size in sizes:
                await writer.append([b"%d-%d" % (number, n) * (n + 1) for n in range(size)])


async def log_of(turns: Sequence[Sequence[int]], *, alpha: int = 4) -> MemoryStore:
    store = await slot_store()
    await append_turns(store, turns, alpha=alpha)
    return store


async def fences(store: Store, manifest: Manifest) -> set[str]:
    """Return the paths of the fences that ended epochs, after a check that each exists."""
    chain = manifest.chain
    assert chain is not None
    paths = set()
    for epoch, slot in chain.ends():
        path = epoch.path(slot)
        assert isinstance(decode_link((await store.get(path)).data, path=path), FenceLink)
        paths.add(path)
    return paths


@settings(max_examples=15)
@given(
    turns=st.lists(
        st.lists(st.integers(1, 3), min_size=0, max_size=9), min_size=1, max_size=4
    ).filter(lambda turns: sum(map(sum, turns)) > 0),
    position=st.integers(1, 90),
    alpha=st.integers(1, 5),
)
async def test_what_a_cursor_holds_is_read_as_before(
    turns: list[list[int]], position: int, alpha: int
) -> None:
    """After a collection, only named objects and effective fences remain; reads are the same."""
    store = await log_of(turns, alpha=alpha)
    before = await contents(SLOTS, store)
    await log_on(store).create_cursor("x", min(position, len(before) + 1))
    report = await log_on(store).collect(keep=ALL, grace_us=0)
    after = await contents(SLOTS, store)
    assert after == {n: body for n, body in before.items() if n >= (report.oldest or 0)}
    assert report.oldest is not None
    assert report.oldest <= position
    manifest, named = await paths_named(TreeReader(store=store, clock=CLOCK))
    chain = manifest.chain
    assert chain is not None
    ended = await fences(store, manifest)
    assert {entry.key async for entry in store.list("snapshot/")} <= named
    for key in [entry.key async for entry in store.list("epoch/")]:
        if key in named | ended:
            continue
        place = place_of(key)
        assert place is not None
        assert place.slot >= (manifest.initial_seq_no or 0), "void slots may stay beside data"
    assert not (await log_on(store).sweep(grace_us=0)).unproven
    left = {entry.key async for entry in store.list("epoch/")}
    assert left == {path for path in named if path.startswith("epoch/")} | ended
    await append_turns(store, [[2] * 7])
    again = await contents(SLOTS, store)
    assert list(again) == list(range(report.oldest, len(before) + 15))


async def test_the_newest_fragment_stays() -> None:
    """The newest fragment is never collected, because a rebuild needs one link."""
    store = await log_of([[2] * 6])
    await log_on(store).create_cursor("x", 13)
    report = await log_on(store).collect(keep=ALL, grace_us=0)
    assert (report.oldest, report.fragments) == (11, 5)
    assert (await log_on(store).collect(keep=ALL, grace_us=0)).fragments == 0


async def test_void_slots_go_with_what_is_before_them() -> None:
    """Void slots are deleted together with the records before them.

    Writers that died leave one effective fence and many void ones, which are deleted by name. A
    closed writer leaves only the effective fence.
    """
    store = await slot_store()
    died = [slot_writer(store, name=f"w{number}", alpha=8) for number in range(8)]
    for writer in died:
        await writer.append([b"%d" % len(store.objects)])
    await log_on(store).create_cursor("x", 8)
    keys = {entry.key async for entry in store.list("epoch/")}
    recorded = RecordedStore(store)
    await log_on(recorded).collect(keep=ALL, grace_us=0)
    manifest = (await load_head(store)).manifest
    left = {entry.key async for entry in store.list("epoch/")}
    void = [key for key in left - await fences(store, manifest) if place_of(key)]
    assert len(keys) - len(left) > 40
    # The rest is past the fence of the last ended epoch.
    assert len(void) <= 1 + 7 + SIGNS
    lists = [r for r in recorded.records if r.op == "list" and r.key.startswith("epoch")]
    assert len(lists) <= 3  # To find the end of the log, and again if another process rolls it up.


@pytest.mark.parametrize("happened", [True, False])
async def test_a_collector_may_die_at_any_request(happened: bool) -> None:
    """After a collector dies at any request, the next one reaches the same end state."""
    start = await log_of([[2] * 9, [1] * 4, [2] * 5])
    log = log_on(start)
    await log.create_pin("held", start=3, limit=6)
    await log.create_pin("gone", start=7, limit=11)
    await log.create_cursor("x", 10)
    await log.collect(keep=ALL, grace_us=0)
    await log.drop_pin("gone")
    witness = await log.load_cursor("x")
    await log.move_cursor(witness, 24)
    smooth = copy_of(start)
    await log_on(smooth).collect(keep=ALL, grace_us=0)
    left = await _said(smooth)
    visited = 0

    async for store in deaths(
        start, lambda s: log_on(s).collect(keep=ALL, grace_us=0), happened=happened
    ):
        await log_on(store).collect(keep=ALL, grace_us=0)
        assert await _said(store) == left
        rows = [r["position"] async for t in log_on(store).scan_pin("held") for r in t.to_pylist()]
        assert rows == [3, 4, 5]
        visited += 1
    assert visited > 20


async def _said(store: MemoryStore) -> tuple[set[str], Manifest]:
    return set(store.objects), (await load_head(store)).manifest


async def test_an_overtaken_scan_continues_or_raises_position_collected() -> None:
    """A slow scan continues if its next record remains, else raises with the oldest position."""
    store = await log_of([[1] * 12])
    log = log_on(store)
    scan, behind = log.scan(9), log.scan(1)
    assert (await anext(scan)).num_rows
    await log.create_cursor("x", 9)
    await log.collect(keep=ALL, grace_us=0)
    rest = [row["position"] async for table in scan for row in table.to_pylist()]
    assert rest[-1] == 12
    with pytest.raises(PositionCollected, match="the oldest record is 9"):
        _ = [table async for table in behind]


async def test_a_cursor_may_stand_where_the_manifest_has_not_come_yet() -> None:
    """A cursor may be past the manifest, but not past the end of the log."""
    store = await slot_store()
    shape = Shape(rollup_slots=1_000, rollup_interval_us=3_600_000_000)
    writer = SlotWriter(store=store, clock=SystemClock(), writer="w", shape=shape)
    for _ in range(3):
        await writer.append([b"x"])
    log = log_on(store)
    assert (await load_head(store)).manifest.next == 1
    assert (await log.create_cursor("x", 4)).position == 4
    with pytest.raises(UsageError, match="to its next position"):
        await log.create_cursor("y", 5)
    await writer.close()


async def test_a_writer_goes_on_while_its_log_is_collected() -> None:
    """A writer and a collector both replace the manifest, and no record is lost."""
    store = await slot_store()
    log = log_on(store)
    async with slot_writer(store) as writer:
        await writer.append([b"first"])
        witness = await log.create_cursor("x", 1)
        for number in range(60):
            position = await writer.append([b"%d" % number])
            if number % 7 == 0:
                witness = await log.move_cursor(witness, position)
                await log.collect(keep=ALL, grace_us=0)
    found = await contents(SLOTS, store)
    assert list(found) == list(range(min(found), 62))
    assert min(found) > 50


async def test_a_sealed_log_is_collected_and_stays_sealed() -> None:
    """A sealed log can be collected and stays sealed with its successor."""
    store = await log_of([[1] * 9])
    await opener_on(store).seal(successor="next")
    log = log_on(store)
    await log.create_cursor("x", 9)
    assert (await log.collect(keep=ALL, grace_us=0)).oldest == 9
    assert (await log.bounds()).seal is not None
    with pytest.raises(LogSealed, match="next"):
        await log.append([b"x"])
    assert (await contents(SLOTS, store)).keys() == {9}
    await log.close()


async def test_what_is_dead_is_told_from_what_may_still_come() -> None:
    """A slot object's path decides: dead (also of a skipped epoch), kept, unproven, foreign."""
    store = await log_of([[1] * 6, [1] * 3])
    log = log_on(store)
    await log.create_cursor("x", 4)
    await log.collect(keep=ALL, grace_us=0)
    manifest = (await load_head(store)).manifest
    chain = manifest.chain
    assert isinstance(chain, Chain)
    _, first, last = chain.epochs
    stray = f"epoch/{first.number:016x}-{'f' * 16}/000/{2:016x}.parquet"
    coming = f"epoch/{last.number + 1:016x}-{'f' * 16}/000/{20:016x}.parquet"
    cases = {
        first.path(1): OrphanVerdict.DEAD,
        first.path(last.first_slot): OrphanVerdict.KEPT,
        first.path(last.first_slot + 1): OrphanVerdict.DEAD,
        last.path(12): OrphanVerdict.UNPROVEN,
        stray: OrphanVerdict.DEAD,
        coming: OrphanVerdict.UNPROVEN,
        last.path(12).replace("/000/", "/001/"): OrphanVerdict.FOREIGN,
        last.path(last.first_slot - 1): OrphanVerdict.FOREIGN,
        "epoch/notes.txt": OrphanVerdict.FOREIGN,
    }
    assert {key: judge_fragment(manifest, key) for key in cases} == cases
