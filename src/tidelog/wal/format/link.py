"""Links: what a slot's object says of its place in the log, and of the log up to it. Pure.

A data link carries the log's setsum, so that the chain of links proves itself without a manifest.
Source: wal3-draft, "Fragments"; design page 3, "Slot commit".
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from tidelog.setsum import Setsum
from tidelog.wal.format.epoch import Epoch, decode_epoch, encode_epoch
from tidelog.wal.format.fragment import TIME_MAX_US, Fragment
from tidelog.wal.format.json import Fields
from tidelog.wal.format.key_set import KeySet, encode_key_set, key_set_in
from tidelog.wal.format.stream_set import StreamSet, encode_stream_set, stream_set_in
from tidelog.wal.format.streams import Controls, Streams, decode_controls, encode_controls


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLink:
    """Records ``[start, limit)``, and how they continue the log.

    ``setsum`` is theirs, ``log_setsum`` that of all records up to them, ``column_sum`` what reads
    compare their columns with; ``log_bytes`` counts the
    bytes of all fragments before this one. ``first_us`` and ``last_us`` are their least and
    greatest time, ``streams`` says which streams they are in, ``keys`` which keys they have, and
    ``controls`` what those of them say that are in the control stream, so that who walks needs only
    links.
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
    """The end of an epoch: the next one, or (None) the end of the log, with its successor.

    ``reach`` is the first slot past all fences that its opener put into the epoch, this one
    included: what lies further is not theirs. All slots below ``seen`` were taken when it was sent:
    if one is missing now, and was not collected, it was lost.
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
    """Where the next object goes, all that its link says of what is before it, and what is open."""

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
    """A fragment with control records, as its link shows it; manifests keep the plain one."""

    controls: Controls


def plain(fragment: Fragment) -> Fragment:
    """Return what a manifest keeps of a fragment."""
    if not isinstance(fragment, ControlFragment):
        return fragment
    return Fragment(**{one.name: getattr(fragment, one.name) for one in fields(Fragment)})


def fragment_of(link: DataLink, path: str, size_bytes: int) -> Fragment:
    """Return what a manifest says of a slot's object; with its control records, if it has any."""
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
    """Read what `link_fields` gave.

    Raises:
        CorruptionError: it is no link.
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
        raise found.wrong("kind", "is neither data nor fence")
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
