"""Reads of old epochs, which a manifest only points to.

Source: design page 3, "Open for writing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidelog.core.clock import run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Chain, PastEpochs
from tidelog.wal.format.epoch_list import EpochList, decode_epoch_list
from tidelog.wal.format.link import Epoch
from tidelog.wal.read.head import read_decoded

READS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class AllEpochs:
    """A chain that lists all epochs of its log, and the paths of the lists of old ones."""

    chain: Chain
    paths: frozenset[str]


async def with_all_epochs(store: Store, chain: Chain) -> AllEpochs:
    """Return the chain with all epochs of its log.

    Raises:
        CorruptionError: a list is missing or changed.
        LocationError: the store failed.
    """
    return await _with(store, chain, lambda _: True)


async def with_epochs_of(store: Store, chain: Chain, first_slot: int) -> Chain:
    """Return the chain with the epochs of all slots from ``first_slot`` on.

    Raises:
        CorruptionError: see `with_all_epochs`.
        LocationError: see `with_all_epochs`.
    """
    if chain.knows(first_slot):
        return chain
    return (await _with(store, chain, lambda past: past.limit_slot >= first_slot)).chain


async def with_epoch(store: Store, chain: Chain, epoch: Epoch) -> Chain:
    """Return the chain with an epoch, if the log has it, and all later epochs.

    Raises:
        CorruptionError: see `with_all_epochs`.
        LocationError: see `with_all_epochs`.
    """
    if not chain.past or epoch.number >= chain.epochs[0].number:
        return chain
    return (await _with(store, chain, lambda past: past.limit > epoch.number)).chain


async def _with(store: Store, chain: Chain, is_wanted: Callable[[PastEpochs], bool]) -> AllEpochs:
    """Read the wanted lists, which are the newest ones, a level at a time."""
    lists, left = _parted(chain.past, is_wanted)
    paths = {one.path for one in lists}
    while any(one.depth for one in lists):
        read = await _load(store, [one for one in lists if one.depth])
        below = [child for one in lists for child in (read[one].lists if one in read else (one,))]
        lists, older = _parted(below, is_wanted)
        left += older
        paths.update(one.path for one in lists)
    leaves = await _load(store, lists)
    # The last epoch of a list is the first one of the next list.
    epochs = [epoch for one in lists for epoch in leaves[one].epochs[:-1]]
    known = replace(chain, epochs=(*epochs, *chain.epochs), past=tuple(left))
    return AllEpochs(known, frozenset(paths))


def _parted(
    lists: Sequence[PastEpochs], is_wanted: Callable[[PastEpochs], bool]
) -> tuple[list[PastEpochs], list[PastEpochs]]:
    return (
        [one for one in lists if is_wanted(one)],
        [one for one in lists if not is_wanted(one)],
    )


async def _load(store: Store, pointers: Sequence[PastEpochs]) -> dict[PastEpochs, EpochList]:
    work = [partial(_load_one, store, pointer) for pointer in pointers]
    return dict(zip(pointers, await run_all(work, at_once=READS_MAX), strict=True))


async def _load_one(store: Store, pointer: PastEpochs) -> EpochList:
    try:
        return await read_decoded(
            store, pointer.path, lambda read: decode_epoch_list(read.data, pointer)
        )
    except ObjectNotFound as error:
        raise CorruptionError(
            f"the log names a missing list of epochs: restore it ({error})"
        ) from error
