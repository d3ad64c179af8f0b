"""The chain of a slot log past its manifest: the meaning of each object in slot order. Pure.

A walk visits the slots in order and decides nothing about a slot before it knows every lower slot.
The reason: the first fence in slot order ends the epoch, and makes all objects in higher slots of
that epoch void.
Invariants: two walks of one log return the same steps, as far as both go. So if one walk extended a
manifest, the other walk can extend it further from the same place.
Source: wal3-draft, "Recovery"; design page 3, "Slot commit".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from tidelog.errors import CorruptionError, UsageError
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import ControlFragment, DataLink, Epoch, Link, Tail, fragment_of, plain
from tidelog.wal.format.manifest import Manifest, chain_of
from tidelog.wal.format.manifest_update import add_fragment
from tidelog.wal.format.streams import apply_controls

Step: TypeAlias = Fragment | Epoch | Seal


def step(tail: Tail, link: Link, size_bytes: int) -> tuple[Tail, Step]:
    """Return the tail after the object at ``tail``, and the step that the object stands for.

    A seal leaves the tail unchanged.

    Raises:
        CorruptionError: the object does not continue the log.
    """
    if (link.epoch, link.slot) != (tail.epoch.name, tail.slot):
        raise _broken("it is the object of another slot", tail)
    if isinstance(link, DataLink):
        if (link.start, link.log_bytes) != (tail.position, tail.log_bytes):
            raise _broken("its records do not continue the previous slot", tail)
        if link.log_setsum != tail.setsum + link.setsum or link.limit <= link.start:
            raise _broken("its setsums do not continue the previous slot", tail)
        try:
            after = tail.after(link, size_bytes)
        except UsageError as error:
            raise _unfit(error, tail.path) from error
        return after, fragment_of(link, tail.path, size_bytes)
    if link.next is None:
        return tail, Seal(slot=tail.slot, successor=link.successor, reach=link.reach)
    if link.next.number != tail.epoch.number + 1:
        raise _broken("the next epoch that it names has the wrong number", tail)
    return replace(tail, epoch=link.next), link.next


def extend(manifest: Manifest, steps: Sequence[Step], *, writer: str) -> Manifest:
    """Return the manifest with those steps of a walk that it does not have yet.

    Raises:
        CorruptionError: the steps do not continue the manifest.
    """
    for one in steps:
        chain = chain_of(manifest)
        if isinstance(one, Fragment):
            if one.limit > manifest.next:
                manifest = _with_fragment(manifest, chain, one, writer=writer)
        elif isinstance(one, Epoch):
            if one.number > chain.last.number:
                _check_fence(one.first_slot, manifest)
                if one.number != chain.last.number + 1:
                    raise CorruptionError(
                        "an epoch does not continue the log's last epoch: scrub the log, and "
                        "restore the objects that the scrub names",
                        epoch=one.name,
                    )
                epochs = (*chain.epochs, one)
                manifest = replace(manifest, chain=replace(chain, epochs=epochs, is_closed=False))
        elif chain.seal is None:
            _check_fence(one.slot, manifest)
            manifest = replace(manifest, chain=replace(chain, seal=one, is_closed=False))
    return manifest


def close(manifest: Manifest, tail: Tail) -> Manifest:
    """Return the manifest with the note that its writer has closed, if the log ends at ``tail``.

    The note is only a hint: it lets the next opener send one fence instead of a burst. If the note
    is wrong, that fence meets data, and the opener goes on with bursts.
    """
    chain = chain_of(manifest)
    here = (chain.last.name, manifest.next_seq_no)
    if here != (tail.epoch.name, tail.slot) or chain.seal is not None or chain.is_closed:
        return manifest
    return replace(manifest, chain=replace(chain, is_closed=True))


def has_passed(manifest: Manifest, fenced: Epoch, slot: int, next_name: str | None) -> bool:
    """Return True if the manifest went past a slot without the fence that a process found there.

    Such a fence is stray: its put found the slot empty only because the slot's data had been
    collected. ``next_name`` is the name of the epoch that the fence opens, or None if the fence is
    a seal. An epoch older than all those that the manifest lists ended long ago, so its fences
    count as passed.
    """
    chain = chain_of(manifest)
    if chain.past and fenced.number < chain.epochs[0].number:
        return True
    if any(epoch.name == fenced.name for epoch in chain.epochs):
        following = chain.after(fenced)
        if following is not None:
            # An opener puts the fence of one epoch into many slots. Only the first one in slot
            # order decides, so the name alone does not prove that this fence is in the log.
            return (following.name, following.first_slot) != (next_name, slot)
        if chain.seal is not None:
            return next_name is not None or chain.seal.slot != slot
    return manifest.next_seq_no > slot


def has_slot(manifest: Manifest, epoch: Epoch, slot: int) -> bool:
    """Return True if the log has, or once had, data of ``epoch`` in a slot.

    The chain must know the epoch of the slot; see `tidelog.wal.read.epoch_history`.
    """
    return manifest.next_seq_no > slot and chain_of(manifest).of(slot).name == epoch.name


def _with_fragment(manifest: Manifest, chain: Chain, one: Fragment, *, writer: str) -> Manifest:
    added = add_fragment(manifest, plain(one), writer=writer)
    if chain.is_closed:
        chain = replace(chain, is_closed=False)
        added = replace(added, chain=chain)
    if not isinstance(one, ControlFragment):
        return added
    try:
        streams = apply_controls(chain.streams, one.controls)
    except UsageError as error:
        raise _unfit(error, one.path) from error
    return replace(added, chain=replace(chain, streams=streams))


def _unfit(error: UsageError, path: str) -> CorruptionError:
    return CorruptionError(
        f"a control record contradicts the open streams ({error.sentence}): restore the object",
        path=path,
    )


def _check_fence(slot: int, manifest: Manifest) -> None:
    if slot != manifest.next_seq_no:
        raise CorruptionError(
            "a fence is not at the log's next slot: scrub the log, and restore the objects that "
            "the scrub names",
            slot=slot,
            expected=manifest.next_seq_no,
        )


def _broken(why: str, tail: Tail) -> CorruptionError:
    return CorruptionError(f"a slot's object breaks the chain ({why}): restore it", path=tail.path)
