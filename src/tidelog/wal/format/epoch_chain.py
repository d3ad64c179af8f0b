"""The chain of epochs that a slot log's manifest knows, up to the seal. Pure.

An epoch ends at the first slot, in slot order, that holds a fence; the next epoch begins at that
same slot. Ended epochs move from the manifest to immutable objects that the manifest names, so its
size does not grow with the number of opens.
Source: wal3-draft, "Fencing"; design page 3, "Slot commit"; decision 12.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from tidelog.core.setsum import SHA_256
from tidelog.errors import UsageError
from tidelog.wal.format.json import Fields
from tidelog.wal.format.link import Epoch, decode_epoch, encode_epoch
from tidelog.wal.format.paths import log_in, own_path_in
from tidelog.wal.format.streams import Streams, encode_streams, streams_in

DEPTH_MAX: Final = 16
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The end of a log: readers read no slot after it. ``successor`` is the name of the next log.

    ``reach`` is the first slot past all fences that sealed the log.
    """

    slot: int
    successor: str = ""
    reach: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The log that this fork was made from, and the pin there that holds the shared records."""

    log: str
    pin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEpochs:
    """A pointer to an immutable object that lists the ended epochs ``[first, limit)``.

    Their slots are ``[first_slot, limit_slot)``. ``depth`` is 0 if the object lists the epochs
    itself, and greater if it lists further such objects.
    """

    path: str
    depth: int
    first: int
    limit: int
    first_slot: int
    limit_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The epochs that a manifest knows, and the seal.

    ``epochs`` has the newest epochs, and ``past`` points to lists of older ones. The first epoch of
    a log is empty. ``is_closed`` is True if the last epoch's writer has closed, and so puts nothing
    into the next slot. ``streams_at_start`` are the streams open at the oldest retained position,
    ``streams`` those open at the next position. ``is_destroyed`` is True if the log was deleted.
    Its fences remain, so a stale writer cannot find its old slots free.
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
        """Return the epoch that holds the data of a slot.

        If the slot is older than all epochs listed here, return the oldest of these.
        """
        after = bisect_right(self.epochs, slot, key=lambda epoch: epoch.first_slot)
        return self.epochs[max(0, after - 1)]

    def knows(self, slot: int) -> bool:
        """Return True if the chain itself lists the epoch of a slot."""
        return not self.past or self.epochs[0].first_slot <= slot

    def ends(self) -> Iterator[tuple[Epoch, int]]:
        """Yield the ended epochs, each with the slot of its ending fence.

        A fork begins without a fence, because its origin log continues there.
        """
        for one, other in pairwise(self.epochs):
            if one.log == other.log:
                yield one, other.first_slot
        if self.seal is not None:
            yield self.last, self.seal.slot

    def after(self, epoch: Epoch) -> Epoch | None:
        """Return the epoch after ``epoch``, or None if there is no known one."""
        # Epoch numbers are contiguous.
        place = epoch.number - self.epochs[0].number
        if not 0 <= place < len(self.epochs) - 1 or self.epochs[place].name != epoch.name:
            return None
        return self.epochs[place + 1]

    def reach_after(self, epoch: Epoch) -> int:
        """Return the first slot past all fences that ended an epoch."""
        if (following := self.after(epoch)) is not None:
            return following.reach
        return 0 if self.seal is None else self.seal.reach


def problems_of_chain(chain: Chain, next_slot: int) -> Iterator[str]:
    """Yield the faults in the epochs of a manifest whose next slot is ``next_slot``."""
    yield from _problems_of_past(chain)
    for one, other in pairwise(chain.epochs):
        if other.number != one.number + 1:
            yield f"the epoch {other.name} does not follow {one.name}"
        if other.first_slot < one.first_slot:
            yield f"the epoch {other.name} starts before {one.name}"
    if chain.last.first_slot > next_slot:
        yield f"the epoch {chain.last.name} starts after the next slot"
    if chain.seal is not None and chain.seal.slot != next_slot:
        yield "its seal is not at the next slot"


def _problems_of_past(chain: Chain) -> Iterator[str]:
    first = chain.epochs[0]
    ends = [(past.first, past.first_slot) for past in chain.past] + [
        (first.number, first.first_slot)
    ]
    for past, (number, slot) in zip(chain.past, ends[1:], strict=True):
        if (past.limit, past.limit_slot) != (number, slot) or past.first >= past.limit:
            yield f"its pointers to older epochs do not end where epoch {number} begins"


def encode_chain(chain: Chain) -> dict[str, object]:
    """Return plain values, without those that most logs do not need."""
    seal, origin = chain.seal, chain.origin
    found: dict[str, object] = {
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
    """Decode the values of `encode_chain`.

    Raises:
        CorruptionError: they are not a chain.
        UsageError: a newer tidelog wrote them.
    """
    if (version := found.whole("version")) != VERSION:
        raise UsageError(
            f"this log has format version {version}, but this tidelog reads only version "
            f"{VERSION}: upgrade tidelog",
            path=found.where,
        )
    if (item_hash := found.text("item_hash")) != SHA_256:
        raise UsageError(
            f"this log's setsums use the hash {item_hash!r}, but this tidelog reads only "
            f"{SHA_256!r} in logs of the slot protocol: upgrade tidelog",
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


def encode_epoch_of_chain(epoch: Epoch) -> dict[str, object]:
    """Return plain values of an epoch, with its first slot and its reach."""
    return {
        **encode_epoch(epoch),
        "first_slot": epoch.first_slot,
        "reach": epoch.reach,
        **({"log": epoch.log} if epoch.log else {}),
    }


def decode_epochs_of_chain(found: Fields) -> tuple[Epoch, ...]:
    """Decode a list of the values of `encode_epoch_of_chain`.

    Raises:
        CorruptionError: it is not such a list, or is empty.
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


def encode_past(past: PastEpochs) -> dict[str, object]:
    """Return plain values."""
    return {name: getattr(past, name) for name in PastEpochs.__dataclass_fields__}


def decode_past(found: Fields) -> PastEpochs:
    """Decode the values of `encode_past`.

    Raises:
        CorruptionError: they are not a pointer to past epochs.
    """
    return PastEpochs(
        path=own_path_in(found, "path"),
        depth=found.whole("depth", most=DEPTH_MAX),
        first=found.whole("first"),
        limit=found.whole("limit"),
        first_slot=found.whole("first_slot"),
        limit_slot=found.whole("limit_slot"),
    )


def _encode_seal(seal: Seal) -> dict[str, object]:
    return {"slot": seal.slot, "successor": seal.successor, "reach": seal.reach}
