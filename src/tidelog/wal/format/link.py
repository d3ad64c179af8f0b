"""Links: the description of a slot's object, and of the log up to that object. Pure.

A data link carries the setsum of the whole log up to its end. So the chain of links proves itself
without a manifest.
Source: wal3-draft, "Fragments"; design page 3, "Slot commit".
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from tidelog.core.setsum import Setsum
from tidelog.wal.format.epoch import Epoch, decode_epoch, encode_epoch
from tidelog.wal.format.fragment import TIME_MAX_US, Fragment
from tidelog.wal.format.json import Fields
from tidelog.wal.format.key_set import KeySet, encode_key_set, key_set_in
from tidelog.wal.format.stream_set import StreamSet, encode_stream_set, stream_set_in
from tidelog.wal.format.streams import Controls, Streams, decode_controls, encode_controls


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


def link_fields(link: Link) -> dict[str, Any]:
    """Return plain values."""
    place: dict[str, Any] = {"epoch": link.epoch, "slot": link.slot, "writer": link.writer}
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
