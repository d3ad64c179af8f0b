"""Scrubs of ranges, and the comparisons of a slot log's scrub beyond single objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kit.protocols import (
    ALL,
    CLOCK,
    KINDS,
    SLOTS,
    WAL3,
    Kind,
    collect_to,
    slot_reader,
    slot_store,
    slot_writer,
    wal3_reader,
)
from kit.stores import InterposedStore, Once
from tidelog.core.setsum import Setsum
from tidelog.errors import PositionCollected, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import (
    MANIFEST,
    Manifest,
    chain_of,
    decode_manifest,
    encode_manifest,
)
from tidelog.wal.log import Log
from tidelog.wal.opening import open_log
from tidelog.wal.scrub.slot_scrub import scrub_slots

BOTH = pytest.mark.parametrize("kind", KINDS, ids=str)


async def written(kind: Kind, store: Store, count: int) -> None:
    """Write fragments of two records each, by two writers in turn."""
    await kind.make(store)
    for half in range(2):
        async with kind.writer(store, name=f"w{half}") as writer:
            for number in range(count // 2):
                await writer.append([b"%d-%d" % (half, number), b"x"])


async def opened(store: Store) -> Log:
    return await open_log(store, name="log", clock=CLOCK, writer="w")


async def changed(store: Store, change: Callable[[Manifest], Manifest]) -> None:
    manifest = decode_manifest((await store.get(MANIFEST)).data)
    await store.put(MANIFEST, encode_manifest(change(manifest)))


@BOTH
async def test_a_range_costs_what_it_holds(kind: Kind) -> None:
    """A scrub of a range costs its fragments and the snapshots above them."""
    inner = MemoryStore()
    await written(kind, inner, 30)
    whole = await (await opened(inner)).scrub()
    assert (whole.records, whole.fragments, whole.is_clean) == (60, 30, True)
    store = MeteringStore(inner, clock=CLOCK)
    log = await opened(store)
    for start, limit, records, fragments in (
        (1, 3, 2, 1),
        (2, 4, 4, 2),
        (31, 35, 4, 2),
        (59, None, 2, 1),
        (0, 2, 2, 1),
        (61, None, 0, 0),
    ):
        before = store.usage().get_count
        found = await log.scrub(start, limit=limit)
        assert (found.records, found.fragments) == (records, fragments), (start, limit)
        assert found.is_clean
        assert found.unnamed == []
        assert store.usage().get_count - before <= fragments + 8


@BOTH
async def test_damage_is_told_by_the_ranges_that_hold_it(kind: Kind) -> None:
    """A scrub reports damage if its range holds it, and otherwise not."""
    store = MemoryStore()
    await written(kind, store, 30)
    fragments = await fragments_of(kind, store)
    broken = fragments[7]
    await store.delete([broken.path])
    log = await opened(store)
    for start in range(1, 60, 6):
        found = await log.scrub(start, limit=start + 6)
        holds = start <= broken.start < start + 6
        assert [problem.path for problem in found.problems] == [broken.path] * holds


@BOTH
@pytest.mark.parametrize(("start", "limit"), [(-1, None), (5, 5), (6, 5), (0, 0)])
async def test_what_is_no_range_is_refused(kind: Kind, start: int, limit: int | None) -> None:
    """A wrong range raises UsageError before any request."""
    inner = MemoryStore()
    await kind.make(inner)
    store = MeteringStore(inner, clock=CLOCK)
    log = await opened(store)
    before = store.usage().requests_count
    with pytest.raises(UsageError):
        await log.scrub(start, limit=limit)
    assert store.usage().requests_count == before


@BOTH
async def test_a_range_that_was_collected_is_told(kind: Kind) -> None:
    """A scrub of a collected range raises PositionCollected: it must not look intact."""
    store = MemoryStore()
    await written(kind, store, 4)

    await changed(store, lambda m: replace(m, snapshots=(), fragments=m.fragments[-2:]))
    manifest = decode_manifest((await store.get(MANIFEST)).data)
    with pytest.raises(PositionCollected, match="the oldest record is"):
        await (await opened(store)).scrub(manifest.oldest - 1)


def with_last_epoch(**changes: Any) -> Callable[[Manifest], Manifest]:
    """Return a change of the last epoch."""

    def change(manifest: Manifest) -> Manifest:
        chain = chain_of(manifest)
        last = replace(chain.last, **changes)
        return replace(manifest, chain=replace(chain, epochs=(*chain.epochs[:-1], last)))

    return change


def with_other_sums(manifest: Manifest) -> Manifest:
    """Return a consistent manifest that claims earlier, collected records."""
    extra = Setsum.of(b"never written")
    return replace(manifest, setsum=manifest.setsum + extra, collected=manifest.collected + extra)


def with_more_bytes(manifest: Manifest) -> Manifest:
    grown = with_other_sums(manifest)
    return replace(grown, acc_bytes=grown.acc_bytes + 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (with_last_epoch(opener="somebody else"), "names another next epoch"),
        (with_last_epoch(alpha=9), "names another next epoch"),
        (with_other_sums, "log_setsum"),
        (with_more_bytes, "bytes before it"),
    ],
)
async def test_what_the_manifest_says_is_held_against_links_and_fences(
    change: Callable[[Manifest], Manifest], told: str
) -> None:
    """A scrub compares a manifest that adds up with links and fences."""
    store = MemoryStore()
    await written(KINDS[1], store, 6)
    assert (await scrub_slots(slot_reader(store))).is_clean
    await changed(store, change)
    found = await scrub_slots(slot_reader(store))
    assert any(told in problem.why for problem in found.problems)


async def test_concurrent_writes_give_no_false_alarm() -> None:
    """Epochs that begin between a scrub's walk and its listing are no damage."""
    inner = await slot_store()
    async with slot_writer(inner) as writer:
        await writer.append([b"one"])

    async def write() -> None:
        for name in ("two", "three"):
            async with slot_writer(inner, name=name) as other:
                await other.append([b"more"])

    # The read of the plan comes after the walk, and before the listing.
    hook = Once("get", "gc/GARBAGE", write)
    found = await scrub_slots(slot_reader(InterposedStore(inner, before=hook)))
    assert hook.met
    assert found.problems == []
    assert found.records == 1
    assert (await scrub_slots(slot_reader(inner))).records == 3


class CollectedStore(InterposedStore):
    """A store whose log is collected just before some requests.

    ``at`` maps a count of requests for fragments or snapshots to the cutoff of a collection.
    """

    def __init__(self, store: Store, at: dict[tuple[str, int], int]) -> None:
        super().__init__(store, before=self._meddle)
        self.inner = store
        self.at = dict(at)
        self.asked = Counter[str]()

    async def _meddle(self, op: str, key: str) -> None:
        kind = "snapshot" if key.startswith("snapshot/") else "fragment"
        if op == "get" and key.startswith(("snapshot/", "log/", "epoch/")):
            position = self.at.pop((kind, self.asked[kind]), None)
            self.asked[kind] += 1
            if position is not None:
                await collect_to(self.inner, position)


MEANWHILE = {
    "fragments go": {("fragment", 3): 9},
    "a snapshot goes": {("snapshot", 1): 50},
    "before the first is read": {("fragment", 0): 57},
    "twice": {("fragment", 2): 7, ("fragment", 12): 41},
    "each time again": {("snapshot", n): 3 + 3 * n for n in range(1, 19)},
}


@BOTH
@pytest.mark.parametrize("name", MEANWHILE)
async def test_a_collection_meanwhile_gives_no_false_alarm(kind: Kind, name: str) -> None:
    """Objects collected during a scrub are no damage: the newer manifest shows that."""
    inner = MemoryStore()
    await written(kind, inner, 30)
    store = CollectedStore(inner, MEANWHILE[name])
    found = await (await opened(store)).scrub()
    assert store.at.keys() < MEANWHILE[name].keys()
    assert found.problems == []
    assert 2 <= found.records <= 60
    # A range whose start is collected is refused, as if it was collected before.
    if name == "before the first is read":
        inner = MemoryStore()
        await written(kind, inner, 30)
        with pytest.raises(PositionCollected, match="the oldest record is 57"):
            await (await opened(CollectedStore(inner, MEANWHILE[name]))).scrub(2, limit=9)


@BOTH
@pytest.mark.parametrize("name", MEANWHILE)
async def test_damage_is_told_whatever_is_collected_meanwhile(kind: Kind, name: str) -> None:
    """A scrub reports all remaining damage, and only that, although a collection runs during it."""
    inner = MemoryStore()
    await written(kind, inner, 30)
    paths = [fragment.path for fragment in await fragments_of(kind, inner)]
    lost, changed_one = paths[-1], paths[-2]
    await inner.delete([lost])
    data = (await inner.get(changed_one)).data
    await inner.put(changed_one, data[:-20] + bytes(20))
    clean = {problem.path for problem in (await (await opened(inner)).scrub()).problems}
    assert clean == {lost, changed_one}
    found = await (await opened(CollectedStore(inner, MEANWHILE[name]))).scrub()
    assert {problem.path for problem in found.problems} == clean


async def fragments_of(kind: Kind, store: Store) -> list[Fragment]:
    tree = (wal3_reader if kind is WAL3 else slot_reader)(store).tree
    return await tree.fragments_of(await tree.manifest())


async def test_a_pin_released_during_a_scrub_gives_no_false_alarm() -> None:
    """Objects of a pin released during a scrub are no damage, those of another pin are."""
    inner = MemoryStore()
    await written(SLOTS, inner, 30)
    log = await opened(inner)
    await log.create_pin("p", start=1, limit=41)
    await log.create_pin("q", start=11, limit=15)
    held = [f.path for f in await fragments_of(SLOTS, inner) if 11 <= f.start < 15]
    await collect_to(inner, 51)

    async def release() -> None:
        await log.drop_pin("p")
        await log.collect(keep=ALL, grace_us=0)

    hook = Once("get", f"{5:016x}.parquet", release)
    found = await (await opened(InterposedStore(inner, before=hook))).scrub()
    assert hook.met
    assert found.problems == []
    await inner.delete(held)
    found = await log.scrub()
    assert {problem.path for problem in found.problems} == set(held)


async def test_a_collection_does_not_hide_what_a_pin_has_lost() -> None:
    """A scrub reports a lost fragment that only a pin still needs, although a collection runs."""
    inner = MemoryStore()
    await written(SLOTS, inner, 30)
    await (await opened(inner)).create_pin("p", start=1, limit=9)
    lost = (await fragments_of(SLOTS, inner))[1].path
    await inner.delete([lost])
    found = await (await opened(CollectedStore(inner, {("fragment", 4): 21}))).scrub()
    assert {problem.path for problem in found.problems} == {lost}
