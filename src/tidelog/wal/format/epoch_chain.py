"""The epochs that a slot log's manifest knows: one after the other, up to the seal. Pure.

An epoch ends at the first slot, in slot order, that holds a fence; the next begins at that same
slot. Epochs that are over leave the manifest for immutable objects that it names.
Source: wal3-draft, "Fencing"; design page 3, "Slot commit"; decision 12.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from tidelog.errors import UsageError
from tidelog.setsum import SHA_256
from tidelog.wal.format.epoch import Epoch, decode_epoch, encode_epoch
from tidelog.wal.format.json import Fields
from tidelog.wal.format.paths import log_in, own_path_in
from tidelog.wal.format.streams import Streams, encode_streams, streams_in

DEPTH_MAX: Final = 16
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The end of a log: no slot after it is ever read. ``successor`` is the next log's name.

    ``reach`` is the first slot past all fences by which it was sealed.
    """

    slot: int
    successor: str = ""
    reach: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The log of which this is a fork, and the pin there that holds what they share."""

    log: str
    pin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEpochs:
    """An immutable object that lists epochs which are over: the numbers ``[first, limit)``.

    They had the slots ``[first_slot, limit_slot)``. ``depth`` is 0 if it lists them itself.
    """

    path: str
    depth: int
    first: int
    limit: int
    first_slot: int
    limit_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The epochs that a manifest knows, the first of which nobody writes to, and the seal.

    Of many epochs the newest alone are in ``epochs``, and ``past`` says where the older are listed.
    ``is_closed`` says that the last epoch's writer was closed, and will put nothing into the next
    slot. ``streams_at_start`` are open at the oldest position that is left, ``streams`` at the next
    one. ``is_destroyed`` says that the log is no more: what is left are the fences that keep
    writers who slept through it from taking its slots for free.
    """

    epochs: tuple[Epoch, ...]
    past: tuple[PastEpochs, ...] = ()
    seal: Seal | None = None
    origin: Origin | None = None
    is_closed: bool = False
    is_destroyed: bool = False
    streams_at_start: Streams = field(default_factory=Streams)
    streams: Streams = field(default_factory=Streams)

    @property
    def last(self) -> Epoch:
        return self.epochs[-1]

    def of(self, slot: int) -> Epoch:
        """Return the epoch in which the data of a slot lies.

        The first that is known, if the slot is older than all that are.
        """
        after = bisect_right(self.epochs, slot, key=lambda epoch: epoch.first_slot)
        return self.epochs[max(0, after - 1)]

    def knows(self, slot: int) -> bool:
        """Say whether the epoch of a slot is among those that the chain itself lists."""
        return not self.past or self.epochs[0].first_slot <= slot

    def ends(self) -> Iterator[tuple[Epoch, int]]:
        """Yield the epochs that have ended, each with the slot of the fence that ended it.

        Where a fork begins there is no fence: the log it shares with goes on.
        """
        for one, other in pairwise(self.epochs):
            if one.log == other.log:
                yield one, other.first_slot
        if self.seal is not None:
            yield self.last, self.seal.slot

    def after(self, epoch: Epoch) -> Epoch | None:
        """Return the epoch that followed one; None if none did, as far as is known."""
        # Numbers follow each other.
        place = epoch.number - self.epochs[0].number
        if not 0 <= place < len(self.epochs) - 1 or self.epochs[place].name != epoch.name:
            return None
        return self.epochs[place + 1]

    def reach_after(self, epoch: Epoch) -> int:
        """Return the first slot past all fences by which an epoch was ended."""
        if (following := self.after(epoch)) is not None:
            return following.reach
        return 0 if self.seal is None else self.seal.reach


def problems_of_chain(chain: Chain, next_slot: int) -> Iterator[str]:
    """Yield all that is wrong with the epochs of a manifest whose next slot is ``next_slot``."""
    yield from _problems_of_past(chain)
    for one, other in pairwise(chain.epochs):
        if other.number != one.number + 1:
            yield f"the epoch {other.name} does not follow {one.name}"
        if other.first_slot < one.first_slot:
            yield f"the epoch {other.name} starts before {one.name}"
    if chain.last.first_slot > next_slot:
        yield f"the epoch {chain.last.name} starts after the last slot"
    if chain.seal is not None and chain.seal.slot != next_slot:
        yield "its seal is not at the last slot"


def _problems_of_past(chain: Chain) -> Iterator[str]:
    first = chain.epochs[0]
    ends = [(past.first, past.first_slot) for past in chain.past] + [
        (first.number, first.first_slot)
    ]
    for past, (number, slot) in zip(chain.past, ends[1:], strict=True):
        if (past.limit, past.limit_slot) != (number, slot) or past.first >= past.limit:
            yield f"what it says of older epochs does not lead on to epoch {number}"


def encode_chain(chain: Chain) -> dict[str, Any]:
    """Return plain values; what most logs have not is left out."""
    seal, origin = chain.seal, chain.origin
    found: dict[str, Any] = {
        "version": VERSION,
        "item_hash": SHA_256,
        "epochs": [encode_epoch_of_chain(epoch) for epoch in chain.epochs],
        "seal": None if seal is None else _encode_seal(seal),
    }
    if chain.past:
        found["past"] = [encode_past(one) for one in chain.past]
    if chain.is_closed:
        found["is_closed"] = True
    if origin is not None:
        found["origin"] = {"log": origin.log, "pin": origin.pin}
    if chain.is_destroyed:
        found["is_destroyed"] = True
    for name, streams in (
        ("streams_at_start", chain.streams_at_start),
        ("streams", chain.streams),
    ):
        if streams:
            found[name] = encode_streams(streams)
    return found


def decode_chain(found: Fields) -> Chain:
    """Read what `encode_chain` gave.

    Raises:
        CorruptionError: it is none. UsageError: a newer tidelog wrote it.
    """
    if (version := found.whole("version")) != VERSION:
        raise UsageError(
            f"this log is of version {version}, and this tidelog knows version {VERSION}: "
            "update tidelog",
            path=found.where,
        )
    if (item_hash := found.text("item_hash")) != SHA_256:
        raise UsageError(
            f"this log's setsums are made of {item_hash!r}, and this tidelog knows {SHA_256!r} "
            "alone for logs of slot commits: update tidelog",
            path=found.where,
        )
    epochs = decode_epochs_of_chain(found)
    seal = None
    if found.has("seal"):
        child = found.child("seal")
        seal = Seal(
            slot=child.whole("slot"),
            successor=child.text("successor"),
            reach=child.whole("reach"),
        )
    origin = None
    if found.has("origin"):
        child = found.child("origin")
        origin = Origin(log=log_in(child, "log"), pin=child.text("pin"))
    return Chain(
        epochs=epochs,
        past=tuple(map(decode_past, found.children("past"))) if found.has("past") else (),
        seal=seal,
        origin=origin,
        is_closed=found.flag("is_closed", default=False),
        is_destroyed=found.flag("is_destroyed", default=False),
        streams_at_start=streams_in(found, "streams_at_start"),
        streams=streams_in(found, "streams"),
    )


def encode_epoch_of_chain(epoch: Epoch) -> dict[str, Any]:
    """Return plain values of an epoch whose place in its log is known."""
    return {
        **encode_epoch(epoch),
        "first_slot": epoch.first_slot,
        "reach": epoch.reach,
        **({"log": epoch.log} if epoch.log else {}),
    }


def decode_epochs_of_chain(found: Fields) -> tuple[Epoch, ...]:
    """Read a list of what `encode_epoch_of_chain` returned.

    Raises:
        CorruptionError: it is none, or it is empty.
    """
    epochs = tuple(
        replace(
            decode_epoch(child, first_slot=child.whole("first_slot"), reach=child.whole("reach")),
            log=log_in(child, "log"),
        )
        for child in found.children("epochs")
    )
    if not epochs:
        raise found.wrong("epochs", "is empty")
    return epochs


def encode_past(past: PastEpochs) -> dict[str, Any]:
    """Return plain values."""
    return {name: getattr(past, name) for name in PastEpochs.__dataclass_fields__}


def decode_past(found: Fields) -> PastEpochs:
    """Read what `encode_past` returned.

    Raises:
        CorruptionError: it is none.
    """
    return PastEpochs(
        path=own_path_in(found, "path"),
        depth=found.whole("depth", most=DEPTH_MAX),
        first=found.whole("first"),
        limit=found.whole("limit"),
        first_slot=found.whole("first_slot"),
        limit_slot=found.whole("limit_slot"),
    )


def _encode_seal(seal: Seal) -> dict[str, Any]:
    return {"slot": seal.slot, "successor": seal.successor, "reach": seal.reach}
