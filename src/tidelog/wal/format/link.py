"""Epochs and links: the chain of writers, and the description of each slot's object. Pure.

Only the opener of an epoch writes data into its directory. An epoch ends at the first slot, in slot
order, that holds a fence. The fence's link names the next epoch, which begins at that same slot, so
slot numbers of data have no gap across epochs. Slot s of an epoch with k lanes is in lane s % k.

A data link carries the setsum of the whole log up to its end. So the chain of links proves itself
without a manifest.
Source: wal3-draft, "Sharding", "Fencing" and "Fragments"; design page 3, "Slot commit".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Final, TypeAlias

from tidelog.core.arguments import check_whole
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, UsageError
from tidelog.store.keys import BESIDE
from tidelog.wal.format.arrays import POSITION_MAX, log_full
from tidelog.wal.format.fragment import TIME_MAX_US, Fragment
from tidelog.wal.format.fragment_sets import (
    KeySet,
    StreamSet,
    encode_key_set,
    encode_stream_set,
    key_set_in,
    stream_set_in,
)
from tidelog.wal.format.json import Fields
from tidelog.wal.format.streams import (
    Controls,
    Streams,
    apply_controls,
    decode_controls,
    encode_controls,
)

LANES_MAX: Final = 4_096
ALPHA_MAX: Final = 256
FIRST_SLOT: Final = 1
EPOCHS: Final = "epoch/"
FIRST_EPOCHS: Final = f"{EPOCHS}{0:016x}-"
# A greater distance is a forgery that would make a collector delete arbitrary paths.
VOID_MAX: Final = 100_000
_ID: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The slots that one writer may fill.

    ``id`` is random, so two concurrent openers do not share a directory. ``alpha`` bounds the puts
    in flight. ``opener`` is a name for people. ``reach`` is the first slot past all fences that
    opened the epoch. ``log`` is the name of the log that owns the objects if a fork shares them,
    else "".
    """

    number: int
    id: str
    first_slot: int
    lanes: int = 1
    alpha: int = 1
    opener: str = ""
    reach: int = 0
    log: str = ""

    @property
    def name(self) -> str:
        """Return the name of the epoch's directory."""
        return f"{self.number:016x}-{self.id}"

    def path(self, slot: int) -> str:
        """Return the only path for a slot's object, if the slot belongs to this epoch."""
        beside = f"{BESIDE}{self.log}/" if self.log else ""
        return f"{beside}{EPOCHS}{self.name}/{slot % self.lanes:03x}/{slot:016x}.parquet"

    def void_paths(self, fence: int, reach: int) -> list[str]:
        """Return the possible paths of void objects once the epoch has ended at the slot ``fence``.

        The writer has at most alpha slots in flight, counted from the lowest unsettled slot, which
        is at or below the fence. The fences of the process that ended the epoch are below
        ``reach``. A sweep finds the fences of other, later openers.
        """
        limit = min(max(fence + self.alpha, reach), fence + VOID_MAX)
        return [self.path(slot) for slot in range(fence + 1, limit)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLink:
    """The link of the records ``[start, limit)``.

    ``setsum`` is the setsum of these records, ``log_setsum`` that of all records up to and
    including them. Readers compare the columns with ``column_sum``. ``log_bytes`` is the bytes of
    all earlier fragments. ``first_us`` and ``last_us`` are the least and the greatest time of the
    records. ``streams`` and ``keys`` describe the streams and keys that occur. ``controls`` repeats
    the control records, so a walk needs only links.
    """

    epoch: str
    slot: int
    writer: str
    start: int
    limit: int
    first_us: int
    last_us: int
    setsum: Setsum
    column_sum: str
    log_setsum: Setsum
    log_bytes: int
    streams: StreamSet = ()
    keys: KeySet = ()
    controls: Controls = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceLink:
    """The link of a fence: it names the next epoch, or with None ends the log.

    ``reach`` is the first slot past all fences that this opener put into the epoch; fences further
    on are another opener's. All slots below ``seen`` were taken when the opener sent the fence. So
    a slot below it that is missing now, and was not collected, was lost.
    """

    epoch: str
    slot: int
    writer: str
    id: str
    next: Epoch | None
    reach: int = 0
    seen: int = 0
    successor: str = ""


Link: TypeAlias = DataLink | FenceLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The place of the next object, and the state of the log before it."""

    epoch: Epoch
    slot: int
    position: int
    setsum: Setsum
    log_bytes: int
    streams: Streams = field(default_factory=Streams)

    @property
    def path(self) -> str:
        return self.epoch.path(self.slot)

    def after(self, link: DataLink, size_bytes: int) -> Tail:
        """Return the tail after an object of ``size_bytes`` with this link.

        Raises:
            UsageError: its control records do not fit the open streams.
        """
        return Tail(
            epoch=self.epoch,
            slot=self.slot + 1,
            position=link.limit,
            setsum=link.log_setsum,
            log_bytes=self.log_bytes + size_bytes,
            streams=apply_controls(self.streams, link.controls) if link.controls else self.streams,
        )

    def refuse_full(self, *, epochs: int = 0) -> None:
        """Raise an error if the log cannot open ``epochs`` more epochs and then take one record.

        Slots, positions, epochs and bytes of data end at 2^63. Fences may have greater numbers, so
        a full log can still be sealed.

        Raises:
            UsageError: a counter has no next value. NOT_APPLIED.
        """
        counters = {
            "slot": self.slot,
            "position": self.position,
            "epoch": self.epoch.number + epochs - 1,
            "byte": self.log_bytes,
        }
        for name, count in counters.items():
            if count > POSITION_MAX:
                raise log_full(name, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFragment(Fragment):
    """A fragment with the control records of its link; manifests store the plain fragment."""

    controls: Controls


def plain(fragment: Fragment) -> Fragment:
    """Return the part of a fragment that a manifest stores."""
    if not isinstance(fragment, ControlFragment):
        return fragment
    return Fragment(**{one.name: getattr(fragment, one.name) for one in fields(Fragment)})


def fragment_of(link: DataLink, path: str, size_bytes: int) -> Fragment:
    """Return the fragment of a slot's object, with its control records if it has any."""
    fragment = Fragment(
        path=path,
        seq_no=link.slot,
        start=link.start,
        limit=link.limit,
        num_bytes=size_bytes,
        setsum=link.setsum,
        last_us=link.last_us,
        streams=link.streams,
        keys=link.keys,
    )
    if not link.controls:
        return fragment
    known = {one.name: getattr(fragment, one.name) for one in fields(Fragment)}
    return ControlFragment(**known, controls=link.controls)


def link_fields(link: Link) -> dict[str, object]:
    """Return plain values."""
    place: dict[str, object] = {"epoch": link.epoch, "slot": link.slot, "writer": link.writer}
    if isinstance(link, FenceLink):
        return {
            "kind": "fence",
            **place,
            "id": link.id,
            "next": None if link.next is None else encode_epoch(link.next),
            "reach": link.reach,
            "seen": link.seen,
            "successor": link.successor,
        }
    return {
        "kind": "data",
        **place,
        "start": link.start,
        "limit": link.limit,
        "first_us": link.first_us,
        "last_us": link.last_us,
        "setsum": link.setsum.hex(),
        "column_sum": link.column_sum,
        "log_setsum": link.log_setsum.hex(),
        "log_bytes": link.log_bytes,
        **({"streams": encode_stream_set(link.streams)} if link.streams else {}),
        **({} if link.keys == () else {"keys": encode_key_set(link.keys)}),
        **({"controls": encode_controls(link.controls)} if link.controls else {}),
    }


def link_of(found: Fields) -> Link:
    """Decode the values of `link_fields`.

    Raises:
        CorruptionError: they are not a link.
    """
    kind, slot = found.text("kind"), found.whole("slot")
    if kind == "fence":
        reach, following = found.whole("reach"), None
        if found.has("next"):
            following = decode_epoch(found.child("next"), first_slot=slot, reach=reach)
        return FenceLink(
            epoch=found.text("epoch"),
            slot=slot,
            writer=found.text("writer"),
            id=found.text("id"),
            next=following,
            reach=reach,
            seen=found.whole("seen"),
            successor=found.text("successor"),
        )
    if kind != "data":
        raise found.wrong("kind", "is not data or fence")
    return DataLink(
        epoch=found.text("epoch"),
        slot=slot,
        writer=found.text("writer"),
        start=found.whole("start"),
        limit=found.whole("limit"),
        first_us=found.whole("first_us", most=TIME_MAX_US),
        last_us=found.whole("last_us", most=TIME_MAX_US),
        setsum=found.setsum("setsum"),
        column_sum=found.text("column_sum"),
        log_setsum=found.setsum("log_setsum"),
        log_bytes=found.whole("log_bytes"),
        streams=stream_set_in(found, "streams"),
        keys=key_set_in(found, "keys"),
        controls=decode_controls(found.children("controls")) if found.has("controls") else (),
    )


def first_epoch(*, id: str, opener: str) -> Epoch:
    """Return the epoch of a new log. The first opener ends it, so it never holds data."""
    return Epoch(number=0, id=id, first_slot=FIRST_SLOT, opener=opener)


def check_shape(*, lanes: int, alpha: int) -> None:
    """Refuse numbers with which an epoch cannot be opened.

    Raises:
        UsageError: a number is too small or too large.
    """
    check_whole(lanes, "the number of lanes")
    check_whole(alpha, "alpha")
    if not 1 <= lanes <= LANES_MAX:
        raise UsageError(f"lanes must be from 1 to {LANES_MAX}", lanes=lanes)
    if not 1 <= alpha <= ALPHA_MAX:
        raise UsageError(
            f"alpha, the number of concurrent puts, must be from 1 to {ALPHA_MAX}", alpha=alpha
        )


def encode_epoch(epoch: Epoch) -> dict[str, object]:
    """Return plain values without the first slot, which is the slot of the opening fence."""
    return {
        "number": epoch.number,
        "id": epoch.id,
        "lanes": epoch.lanes,
        "alpha": epoch.alpha,
        "opener": epoch.opener,
    }


def decode_epoch(found: Fields, *, first_slot: int, reach: int) -> Epoch:
    """Decode the values of `encode_epoch`.

    Raises:
        CorruptionError: they are not an epoch.
    """
    if not _ID.fullmatch(found.text("id")):
        raise found.wrong("id", "is not 16 hex digits")
    try:
        check_shape(lanes=found.whole("lanes"), alpha=found.whole("alpha"))
    except UsageError as error:
        raise CorruptionError(f"{error}: restore the object", path=found.where) from error
    return Epoch(
        number=found.whole("number"),
        id=found.text("id"),
        first_slot=first_slot,
        lanes=found.whole("lanes"),
        alpha=found.whole("alpha"),
        opener=found.text("opener"),
        reach=reach,
    )
