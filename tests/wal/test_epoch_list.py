"""Lists of old epochs: the manifest stays small, and no epoch is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.format.epoch_list import shorten
from tidelog.wal.format.link import Epoch
from tidelog.wal.format.manifest import Manifest, decode_manifest, encode_manifest
from tidelog.wal.read.epoch_history import with_all_epochs, with_epoch, with_epochs_of
from tidelog.wal.slot_protocol.chain import has_passed


def chain_of(first_slots: list[int]) -> Chain:
    """Return a chain of epochs that begin at these slots."""
    return Chain(
        epochs=tuple(
            Epoch(number=number, id=f"{number:016x}", first_slot=slot, alpha=8, opener="w")
            for number, slot in enumerate(first_slots)
        )
    )


async def opened(steps: list[int], *, epochs_max: int, lists_max: int) -> tuple[Chain, MemoryStore]:
    """Return the chain of a log that was opened repeatedly, shortened at each roll-up."""
    store, chain, slot = MemoryStore(), chain_of([1]), 1
    for step in steps:
        slot += step
        following = replace(chain.last, number=chain.last.number + 1, first_slot=slot)
        epoch = replace(following, id=f"{following.number:016x}")
        chain, lists = shorten(
            replace(chain, epochs=(*chain.epochs, epoch)),
            epochs_max=epochs_max,
            lists_max=lists_max,
        )
        for one in lists:
            await store.put(one.path, one.data)
    return chain, store


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.integers(2, 6),
    st.integers(2, 4),
)
async def test_what_is_told_of_epochs_is_the_same_as_if_all_were_listed(
    steps: list[int], epochs_max: int, lists_max: int
) -> None:
    """Answers about epochs do not change if older ones are in lists that readers load."""
    slots = [1]
    for step in steps:
        slots.append(slots[-1] + step)
    whole = chain_of(slots)
    chain, store = await opened(steps, epochs_max=epochs_max, lists_max=lists_max)

    assert len(chain.epochs) <= epochs_max
    assert (await with_all_epochs(store, chain)).chain == whole
    for slot in range(1, slots[-1] + 1):
        assert (await with_epochs_of(store, chain, slot)).of(slot) == whole.of(slot)
    for epoch in whole.epochs:
        known = await with_epoch(store, chain, epoch)
        assert known.after(epoch) == whole.after(epoch)
        assert epoch in known.epochs


async def test_ten_thousand_openings_leave_a_small_manifest() -> None:
    """Ten thousand openings leave a small manifest."""
    chain, store = await opened([0] * 10_000, epochs_max=32, lists_max=16)
    manifest = Manifest(writer="w", chain=chain)
    data = encode_manifest(manifest)

    assert len(data) < 20_000
    assert decode_manifest(data).chain == chain
    assert len((await with_all_epochs(store, chain)).chain.epochs) == 10_001


async def test_a_list_that_was_changed_or_lost_is_told() -> None:
    """A changed or lost list of epochs, which decides who owns a slot, raises."""
    chain, store = await opened([1] * 40, epochs_max=4, lists_max=3)
    path = chain.past[-1].path
    data = store.objects[path].data

    for bad in (data[:-1], data.replace(b'"opener":"w"', b'"opener":"x"', 1), b"{}", b""):
        await store.put(path, bad)
        with pytest.raises(CorruptionError):
            await with_all_epochs(store, chain)
    await store.delete([path])
    with pytest.raises(CorruptionError, match="missing list"):
        await with_all_epochs(store, chain)


async def test_an_epoch_older_than_all_that_are_listed_has_been_passed() -> None:
    """An epoch older than all listed ones is over, so its opener starts again."""
    chain, _ = await opened([1] * 40, epochs_max=4, lists_max=3)
    manifest = Manifest(writer="w", initial_seq_no=41, initial_offset=41, chain=chain)
    old = chain_of([1, 2]).epochs[1]

    assert has_passed(manifest, old, 3, "any")
    assert not has_passed(manifest, chain.last, 41, "any")


def test_the_epoch_of_a_slot_is_the_last_that_begins_there() -> None:
    """The last epoch that begins at a slot owns it: earlier ones there wrote nothing."""
    chain = replace(chain_of([1, 4, 4, 9]), seal=Seal(slot=9))

    assert [chain.of(slot).number for slot in (1, 3, 4, 8, 9, 20)] == [0, 0, 2, 2, 3, 3]
