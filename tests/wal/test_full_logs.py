"""Logs whose counters are at their limits: they refuse records before they store anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kit.clocks import SwiftClock
from kit.protocols import SLOTS, WAL3, Kind, contents, opener_on
from tidelog.core.setsum import Setsum
from tidelog.errors import Outcome, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.format.manifest import MANIFEST, Manifest, decode_manifest, encode_manifest
from tidelog.wal.log import Log
from tidelog.wal.opening import open_log

Change = Callable[[Manifest], Manifest]
COLLECTED = Setsum.of(b"records that were collected")


def at_slot(manifest: Manifest, slot: int) -> Manifest:
    assert manifest.chain is not None
    epoch = replace(manifest.chain.last, first_slot=slot)
    return replace(manifest, initial_seq_no=slot, chain=replace(manifest.chain, epochs=(epoch,)))


def at_epoch(manifest: Manifest, number: int) -> Manifest:
    assert manifest.chain is not None
    epoch = replace(manifest.chain.last, number=number)
    return replace(manifest, chain=replace(manifest.chain, epochs=(epoch,)))


def at_bytes(manifest: Manifest, count: int) -> Manifest:
    return replace(manifest, acc_bytes=count, collected=COLLECTED, setsum=COLLECTED)


async def begun(kind: Kind, change: Change) -> MemoryStore:
    """Return an empty log with a changed manifest, as a collection leaves it."""
    store = MemoryStore()
    await kind.make(store)
    manifest = decode_manifest((await store.get(MANIFEST)).data)
    await store.put(MANIFEST, encode_manifest(change(manifest)))
    return store


async def keys_of(store: Store) -> list[str]:
    return [entry.key async for entry in store.list("")]


async def opened(store: Store) -> Log:
    return await open_log(store, name="full", clock=SwiftClock(), writer="w")


FULL = [
    (WAL3, lambda m: replace(m, initial_seq_no=2**64 - 1)),
    (WAL3, lambda m: replace(m, initial_offset=2**63)),
    (WAL3, lambda m: replace(m, initial_offset=2**64 - 1)),
    (WAL3, lambda m: at_bytes(m, 2**63)),
    (WAL3, lambda m: at_bytes(m, 2**64 - 1)),
    (SLOTS, lambda m: at_slot(m, 2**63)),
    (SLOTS, lambda m: at_slot(m, 2**64 - 1)),
    (SLOTS, lambda m: replace(m, initial_offset=2**63)),
    (SLOTS, lambda m: replace(m, initial_offset=2**64 - 1)),
    (SLOTS, lambda m: at_bytes(m, 2**63)),
    (SLOTS, lambda m: at_bytes(m, 2**64 - 1)),
    (SLOTS, lambda m: at_epoch(m, 2**63)),
    (SLOTS, lambda m: at_epoch(m, 2**64 - 1)),
]


@pytest.mark.parametrize(("kind", "change"), FULL)
async def test_a_full_log_refuses_an_append_before_it_stores_anything(
    kind: Kind, change: Change
) -> None:
    """An append that would make a full log unreadable raises UsageError and stores nothing."""
    store = await begun(kind, change)
    before = await keys_of(store)
    for _ in range(2):
        log = await opened(store)
        with pytest.raises(UsageError, match="the log is full") as refused:
            await log.append([b"one"])
        await log.close()

        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert await keys_of(store) == before
    assert await contents(kind, store) == {}
    assert not (await kind.scrub(store)).problems


@pytest.mark.parametrize(
    ("kind", "change", "first"),
    [
        (WAL3, lambda m: replace(m, initial_seq_no=2**64 - 3), 1),
        (WAL3, lambda m: replace(m, initial_offset=2**63 - 2), 2**63 - 2),
        (SLOTS, lambda m: at_slot(m, 2**63 - 2), 1),
        (SLOTS, lambda m: replace(m, initial_offset=2**63 - 2), 2**63 - 2),
        (SLOTS, lambda m: at_epoch(m, 2**63 - 2), 1),
    ],
)
async def test_the_last_records_of_a_log_stay_readable(
    kind: Kind, change: Change, first: int
) -> None:
    """A log accepts records up to its limit, and they stay readable."""
    store = await begun(kind, change)
    for number in range(2):
        log = await opened(store)
        assert await log.append([b"%d" % number]) == first + number
        await log.close()
    log = await opened(store)
    with pytest.raises(UsageError, match="the log is full"):
        await log.append([b"one more"])
    await log.close()

    assert await contents(kind, store) == {first: b"0", first + 1: b"1"}
    assert not (await kind.scrub(store)).problems
    assert (await log.bounds()).next == first + 2


async def test_a_writer_goes_on_after_an_append_that_does_not_fit() -> None:
    """After an append that does not fit, the same handle accepts a smaller one."""
    for kind in (SLOTS, WAL3):
        store = await begun(kind, lambda m: replace(m, initial_offset=2**63 - 2))
        log = await opened(store)
        with pytest.raises(UsageError, match="the log is full"):
            await log.append([b"1", b"2", b"3"])
        assert await log.append([b"1", b"2"]) == 2**63 - 2
        await log.close()

        assert await contents(kind, store) == {2**63 - 2: b"1", 2**63 - 1: b"2"}


async def test_a_full_log_can_be_sealed() -> None:
    """A full log can be sealed. The fences of a seal use slots above the last record."""
    for change in (
        lambda m: at_slot(m, 2**63),
        lambda m: replace(m, initial_offset=2**63),
        lambda m: at_epoch(m, 2**63),
    ):
        store = await begun(SLOTS, change)
        await opener_on(store).seal(successor="next")
        bounds = await (await opened(store)).bounds()

        assert bounds.seal is not None
        assert bounds.seal.successor == "next"
        assert not (await SLOTS.scrub(store)).problems


async def test_a_full_log_can_be_collected() -> None:
    """The manifest of a full, emptied log names the number of the next fragment."""
    store = await begun(WAL3, lambda m: replace(m, initial_seq_no=2**64 - 2))
    log = await opened(store)
    await log.append([b"one"])
    await log.create_cursor("reader", 2)
    await log.collect(grace_us=0, force=True)
    assert (await log.bounds()).oldest == 2
    with pytest.raises(UsageError, match="the log is full"):
        await log.append([b"two"])
    await log.close()

    assert not (await WAL3.scrub(store)).problems


async def test_a_seal_that_no_reader_accepts_is_refused() -> None:
    """A seal at the last slot is refused: its fence would name a slot after 2^64-1."""
    store = await begun(SLOTS, lambda m: at_slot(m, 2**64 - 1))
    before = await keys_of(store)
    with pytest.raises(UsageError, match="the log is full"):
        await opener_on(store).seal()

    assert await keys_of(store) == before
