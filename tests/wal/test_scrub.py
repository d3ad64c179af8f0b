"""Scrub of a range, and what scrub of a slot log compares beyond the bytes of each object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from interposed import Interposed
from logs import CLOCK, KINDS, Kind, make_slots, slot_reader, slot_writer
from tidelog.errors import PositionCollected, UsageError
from tidelog.setsum import Setsum
from tidelog.store.memory import MemoryStore
from tidelog.store.metered import Metered
from tidelog.store.port import Store
from tidelog.wal.log import Log
from tidelog.wal.manifest import MANIFEST, Manifest, decode_manifest, encode_manifest
from tidelog.wal.protocols import open_log
from tidelog.wal.slot_scrub import scrub_slots
from tidelog.wal.walk import chain_of

BOTH = pytest.mark.parametrize("kind", KINDS, ids=str)


async def written(kind: Kind, store: Store, count: int) -> None:
    """Write fragments of two records each, in the turns of two writers."""
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
def test_a_range_costs_what_it_holds(kind: Kind) -> None:
    """Its fragments, and the snapshots above them; what is wrong elsewhere is not told."""

    async def work() -> None:
        inner = MemoryStore()
        await written(kind, inner, 30)
        whole = await (await opened(inner)).scrub()
        assert (whole.records, whole.fragments, whole.is_clean) == (60, 30, True)
        store = Metered(inner, clock=CLOCK)
        log = await opened(store)
        for start, limit, records, fragments in (
            (1, 3, 2, 1),
            (2, 4, 4, 2),
            (31, 35, 4, 2),
            (59, None, 2, 1),
            (0, 2, 2, 1),
            (61, None, 0, 0),
            (500, 600, 0, 0),
        ):
            before = store.usage().get_count
            found = await log.scrub(start, limit=limit)
            assert (found.records, found.fragments) == (records, fragments), (start, limit)
            assert found.is_clean
            assert found.unnamed == []
            assert store.usage().get_count - before <= fragments + 8

    asyncio.run(work())


@BOTH
def test_damage_is_told_by_the_ranges_that_hold_it(kind: Kind) -> None:
    """And by no other."""

    async def work() -> None:
        store = MemoryStore()
        await written(kind, store, 30)
        reader = kind.reader(store)
        tree: Any = getattr(reader, "tree", reader)
        fragments = await tree.fragments()
        broken = fragments[7]
        await store.delete([broken.path])
        log = await opened(store)
        for start in range(1, 60, 6):
            found = await log.scrub(start, limit=start + 6)
            holds = start <= broken.start < start + 6
            assert [problem.path for problem in found.problems] == [broken.path] * holds

    asyncio.run(work())


@BOTH
@pytest.mark.parametrize(("start", "limit"), [(-1, None), (5, 5), (6, 5), (0, 0)])
def test_what_is_no_range_is_refused(kind: Kind, start: int, limit: int | None) -> None:
    """Before any request."""

    async def work() -> None:
        inner = MemoryStore()
        await kind.make(inner)
        store = Metered(inner, clock=CLOCK)
        log = await opened(store)
        before = store.usage().requests_count
        with pytest.raises(UsageError):
            await log.scrub(start, limit=limit)
        assert store.usage().requests_count == before

    asyncio.run(work())


@BOTH
def test_a_range_that_was_collected_is_told(kind: Kind) -> None:
    """As reads tell it: nobody is to believe that what is gone was found whole."""

    async def work() -> None:
        store = MemoryStore()
        await written(kind, store, 4)

        await changed(store, lambda m: replace(m, snapshots=(), fragments=m.fragments[-2:]))
        manifest = decode_manifest((await store.get(MANIFEST)).data)
        with pytest.raises(PositionCollected, match="the oldest is"):
            await (await opened(store)).scrub(manifest.oldest - 1)

    asyncio.run(work())


def with_opener(manifest: Manifest) -> Manifest:
    chain = chain_of(manifest)
    last = replace(chain.last, opener="somebody else")
    return replace(manifest, chain=replace(chain, epochs=(*chain.epochs[:-1], last)))


def with_alpha(manifest: Manifest) -> Manifest:
    chain = chain_of(manifest)
    last = replace(chain.last, alpha=chain.last.alpha + 1)
    return replace(manifest, chain=replace(chain, epochs=(*chain.epochs[:-1], last)))


def with_other_sums(manifest: Manifest) -> Manifest:
    """Give one that adds up, and says that there was something before."""
    extra = Setsum.of(b"never written")
    return replace(manifest, setsum=manifest.setsum + extra, collected=manifest.collected + extra)


def with_more_bytes(manifest: Manifest) -> Manifest:
    grown = with_other_sums(manifest)
    return replace(grown, acc_bytes=grown.acc_bytes + 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (with_opener, "something else of what follows"),
        (with_alpha, "something else of what follows"),
        (with_other_sums, "log_setsum"),
        (with_more_bytes, "bytes before it"),
    ],
)
def test_what_the_manifest_says_is_held_against_links_and_fences(
    change: Callable[[Manifest], Manifest], told: str
) -> None:
    """Even if it adds up, and has its check, as one has that was written by mistake."""

    async def work() -> None:
        store = MemoryStore()
        await written(KINDS[1], store, 6)
        assert (await scrub_slots(slot_reader(store))).is_clean
        await changed(store, change)
        found = await scrub_slots(slot_reader(store))
        assert any(told in problem.why for problem in found.problems)

    asyncio.run(work())


def test_who_writes_meanwhile_gives_no_false_alarm() -> None:
    """Whole epochs may begin between the end of the walk and the listing."""

    async def work() -> None:
        inner = MemoryStore()
        await make_slots(inner)
        async with slot_writer(inner) as writer:
            await writer.append([b"one"])
        begun: list[str] = []

        async def before(op: str, key: str) -> None:
            # The look at the plan comes after the walk, and before the listing.
            if op == "get" and key == "gc/GARBAGE" and not begun:
                begun.append(key)
                for name in ("two", "three"):
                    async with slot_writer(inner, name=name) as other:
                        await other.append([b"more"])

        store = Interposed(inner, before=before)
        found = await scrub_slots(slot_reader(store))
        assert begun
        assert found.problems == []
        assert found.records == 1
        assert (await scrub_slots(slot_reader(inner))).records == 3

    asyncio.run(work())
