"""Lists of ended epochs, which keep a manifest small however often its log is opened. Pure.

A list is immutable, and its name contains its checksum. It holds epochs and, at its end, the epoch
that followed them: so the list alone shows where each of its epochs ended. Once there are many
lists of one depth, a deeper list replaces them.
Invariants: a chain knows the same epochs before and after it is shortened.
Source: wal3, "Manifest Compaction"; design page 3, "Open for writing".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidelog.wal.format.epoch_chain import (
    Chain,
    PastEpochs,
    decode_epochs_of_chain,
    decode_past,
    encode_epoch_of_chain,
    encode_past,
)
from tidelog.wal.format.json import parse, render
from tidelog.wal.format.link import Epoch
from tidelog.wal.format.new_object import NewObject

PAST: Final = "epochs/"
EPOCHS_MAX: Final = 32  # In a manifest. Beyond that, half of them move to a list.
LISTS_MAX: Final = 16  # Lists of one depth, in a manifest or in a list.


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochList:
    """Ended epochs and the epoch that followed them, or pointers to further lists."""

    epochs: tuple[Epoch, ...] = ()
    lists: tuple[PastEpochs, ...] = ()


def shorten(
    chain: Chain, *, epochs_max: int = EPOCHS_MAX, lists_max: int = LISTS_MAX
) -> tuple[Chain, list[NewObject]]:
    """Return a chain with its older epochs in lists, and the new lists in storing order."""
    made: list[NewObject] = []
    epochs, past = chain.epochs, list(chain.past)
    while len(epochs) > epochs_max:
        count = max(1, epochs_max // 2)
        past.append(_listed(EpochList(epochs=epochs[: count + 1]), made))
        epochs = epochs[count:]
        while len(run := _run_of_lists(past, lists_max)) == lists_max:
            begin = past.index(run[0])
            past[begin : begin + len(run)] = [_listed(EpochList(lists=tuple(run)), made)]
    if not made:
        return chain, []
    return replace(chain, epochs=epochs, past=tuple(past)), made


def decode_epoch_list(data: bytes, pointer: PastEpochs) -> EpochList:
    """Decode a list, and check it against its pointer.

    Raises:
        CorruptionError: the list differs from its pointer.
    """
    found = parse(data, where=pointer.path)
    if pointer.path != _path(pointer.depth, data):
        raise found.wrong(
            "epochs", "or another field was changed: the object's name is not the sum of its bytes"
        )
    if pointer.depth:
        lists = tuple(map(decode_past, found.children("lists")))
        if not lists or any(one.depth >= pointer.depth for one in lists):
            raise found.wrong("lists", "is empty, or names a list that is not less deep")
        read = EpochList(lists=lists)
    else:
        read = EpochList(epochs=decode_epochs_of_chain(found))
    if len(read.epochs) == 1 or _pointer(read, pointer.path) != pointer:
        raise found.wrong("epochs", "differ from the log's description of them")
    return read


def _listed(made: EpochList, to_store: list[NewObject]) -> PastEpochs:
    found: dict[str, object] = (
        {"lists": [encode_past(one) for one in made.lists]}
        if made.lists
        else {"epochs": [encode_epoch_of_chain(epoch) for epoch in made.epochs]}
    )
    data = render(found)
    path = _path(_depth(made), data)
    to_store.append(NewObject(path, data))
    return _pointer(made, path)


def _pointer(made: EpochList, path: str) -> PastEpochs:
    if made.lists:
        begin, end = made.lists[0], made.lists[-1]
        first, limit = begin.first, end.limit
        first_slot, limit_slot = begin.first_slot, end.limit_slot
    else:
        first, limit = made.epochs[0].number, made.epochs[-1].number
        first_slot, limit_slot = made.epochs[0].first_slot, made.epochs[-1].first_slot
    return PastEpochs(
        path=path,
        depth=_depth(made),
        first=first,
        limit=limit,
        first_slot=first_slot,
        limit_slot=limit_slot,
    )


def _depth(made: EpochList) -> int:
    return max((one.depth for one in made.lists), default=-1) + 1


def _path(depth: int, data: bytes) -> str:
    return f"{PAST}EPOCHS.{depth:02x}.{hashlib.blake2b(data, digest_size=32).hexdigest()}"


def _run_of_lists(past: Sequence[PastEpochs], lists_max: int) -> list[PastEpochs]:
    """Return the newest lists that have one depth; deeper lists are older."""
    return [one for one in past if one.depth == past[-1].depth][-lists_max:]
