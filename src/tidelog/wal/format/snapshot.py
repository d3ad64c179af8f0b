"""Snapshots: the inner nodes of a manifest's tree, as values, paths and bytes. Pure.

A snapshot is an immutable object that lists fragments or further snapshots. Its setsum is the sum
of its children's setsums, and its path contains that setsum.

Invariants: see `problems_of_snapshot`. Bytes written by wal3 stay the same after decoding and
encoding.
Source: wal3, "Data Structures"; docs/internals/wal3.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidelog.core.setsum import PRIMES, Setsum
from tidelog.wal.format.fragment import (
    Fragment,
    decode_fragment,
    encode_fragment,
    has_path_of_its_number,
    last_us_in,
)
from tidelog.wal.format.json import CHECK, Fields, check_of, parse, position, render
from tidelog.wal.format.new_object import NewObject
from tidelog.wal.format.paths import path_in

DEPTH_MAX: Final = 255
_MAKER: Final = re.compile(r"snapshot/SNAPSHOT\.[0-9a-f]{2}\.[0-9a-f]{64}\.([0-9a-f]{16})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """A snapshot as its parent describes it.

    ``num_bytes`` is the sum over its direct children, ``last_us`` their greatest time.
    """

    setsum: Setsum
    path: str
    depth: int
    start: int
    limit: int
    num_bytes: int
    last_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A list of fragments, or of further snapshots."""

    path: str
    depth: int
    setsum: Setsum
    writer: str
    snapshots: tuple[Pointer, ...] = ()
    fragments: tuple[Fragment, ...] = ()

    @property
    def children(self) -> list[Pointer | Fragment]:
        """Return its snapshots and fragments, oldest first."""
        return [*self.snapshots, *self.fragments]


def snapshot_path(setsum: Setsum, depth: int | None = None, maker: str = "") -> str:
    """Return the path of a snapshot; in slot logs the path contains the depth.

    A roll-up of many slots makes several levels at once, and may lose its race. The depth keeps a
    leftover snapshot distinct from one of another depth over the same fragments. ``maker`` is a
    random id of a fork, a copy or a rebuild, which stores snapshots before its log has a manifest.
    A snapshot that another process left there may have the same records but name other objects.
    """
    level = "" if depth is None else f"{depth:02x}."
    return f"snapshot/SNAPSHOT.{level}{setsum.hex()}" + (f".{maker}" if maker else "")


def maker_of(path: str) -> str | None:
    """Return the id of the maker in a snapshot's path, or None if the path has no maker."""
    found = _MAKER.fullmatch(path)
    return found and found[1]


def object_of(snapshot: Snapshot) -> NewObject:
    """Return the object of a snapshot, to store before its parent."""
    return NewObject(snapshot.path, encode_snapshot(snapshot))


def decode_snapshot(data: bytes, *, where: str) -> Snapshot:
    """Decode a snapshot.

    Raises:
        CorruptionError: the bytes are not a snapshot.
        UsageError: it is one of wal3's replicated logs.
    """
    return snapshot_of(parse(data, where=where))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot."""
    return render(snapshot_fields(snapshot))


def snapshot_of(found: Fields) -> Snapshot:
    """Decode a snapshot from the fields of an object, which may be part of a larger one."""
    children = [*found.children("snapshots"), *found.children("fragments")]
    has_times = any("last_us" in child.found for child in children)
    if (has_times or CHECK in found.found) and found.text(CHECK) != _check_of_children(found.found):
        raise found.wrong(CHECK, "does not match the snapshot's children")
    return Snapshot(
        path=path_in(found, "path"),
        depth=found.whole("depth", most=DEPTH_MAX),
        setsum=found.setsum("setsum"),
        writer=found.text("writer"),
        snapshots=tuple(decode_pointer(child) for child in found.children("snapshots")),
        fragments=tuple(decode_fragment(child) for child in found.children("fragments")),
    )


def snapshot_fields(snapshot: Snapshot) -> dict[str, object]:
    """Return plain values; in slot logs with a checksum, since setsums omit times and streams."""
    found: dict[str, object] = {
        "path": snapshot.path,
        "depth": snapshot.depth,
        "setsum": snapshot.setsum.hex(),
        "writer": snapshot.writer,
        "snapshots": [encode_pointer(child) for child in snapshot.snapshots],
        "fragments": [encode_fragment(child) for child in snapshot.fragments],
    }
    if any(child.last_us is not None for child in snapshot.children):
        found[CHECK] = _check_of_children(found)
    return found


def _check_of_children(found: Mapping[str, object]) -> str:
    return check_of({name: found[name] for name in ("snapshots", "fragments")})


def decode_pointer(found: Fields) -> Pointer:
    """Decode a pointer from the fields of an object, which may be part of a larger one."""
    return Pointer(
        setsum=found.setsum("setsum"),
        path=path_in(found, "path_to_snapshot"),
        depth=found.whole("depth", most=DEPTH_MAX),
        start=found.position("start"),
        limit=found.position("limit"),
        num_bytes=found.whole("num_bytes"),
        last_us=last_us_in(found),
    )


def encode_pointer(pointer: Pointer) -> dict[str, object]:
    """Return plain values."""
    return {
        "setsum": pointer.setsum.hex(),
        "path_to_snapshot": pointer.path,
        "depth": pointer.depth,
        "start": position(pointer.start),
        "limit": position(pointer.limit),
        "num_bytes": pointer.num_bytes,
        **({} if pointer.last_us is None else {"last_us": pointer.last_us}),
    }


def problems_of_snapshot(snapshot: Snapshot, pointer: Pointer) -> list[str]:
    """Return the faults that a snapshot and its parent's pointer show.

    Its depth may be less than the pointer's. A deeper snapshot with one child has the same setsum
    as that child, and in wal3's form the same path; the object stored first stays.
    """
    children = snapshot.children
    problems = list(problems_of_children(children))
    if snapshot.snapshots and snapshot.fragments:
        problems.append("it names both snapshots and fragments")
    if not children:
        problems.append("it has no children")
    elif (children[0].start, children[-1].limit) != (pointer.start, pointer.limit):
        problems.append("its positions differ from its pointer")
    if sum(child.num_bytes for child in children) != pointer.num_bytes:
        problems.append("its pointer's size is not the total size of its children")
    if any(child.depth >= snapshot.depth for child in snapshot.snapshots):
        problems.append("it is not deeper than its child snapshots")
    if snapshot.depth > pointer.depth or not snapshot.depth:
        problems.append("its depth differs from its pointer")
    if pointer.last_us is not None and last_us_of(children) not in (None, pointer.last_us):
        problems.append("its pointer's last time is not the last time of its children")
    if sum_of(children) != snapshot.setsum:
        problems.append("its setsum is not the sum of its children")
    if snapshot.setsum != pointer.setsum or not is_named_by_its_sum(snapshot):
        problems.append("its name does not match its setsum")
    return problems


def is_named_by_its_sum(snapshot: Snapshot | Pointer) -> bool:
    """Return True if the path of a snapshot follows from its setsum."""
    names = [snapshot_path(snapshot.setsum, depth) for depth in (None, snapshot.depth)]
    if maker := maker_of(snapshot.path):
        names = [snapshot_path(snapshot.setsum, snapshot.depth, maker)]
    return snapshot.path in names


def sum_of(children: Iterable[Pointer | Fragment]) -> Setsum:
    """Return the sum of the setsums of fragments and snapshots."""
    columns = list(zip(*(child.setsum.columns for child in children), strict=True))
    if not columns:
        return Setsum.zero()
    return Setsum(tuple(sum(c) % prime for c, prime in zip(columns, PRIMES, strict=True)))


def last_us_of(children: Iterable[Pointer | Fragment]) -> int | None:
    """Return the greatest time in fragments and snapshots; None if any of them lacks it."""
    times = [child.last_us for child in children]
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def problems_of_children(children: Sequence[Pointer | Fragment]) -> Iterator[str]:
    """Yield the faults in the children of a manifest or a snapshot, in order."""
    for child in children:
        if child.start >= child.limit:
            yield f"{child.path} has no positions: its start is not below its limit"
        if isinstance(child, Pointer):
            if not is_named_by_its_sum(child):
                yield f"the path {child.path} does not match its setsum"
        elif not has_path_of_its_number(child):
            yield f"the path of fragment {child.seq_no} does not match its number"
    for one, other in pairwise(children):
        if one.limit != other.start:
            yield f"positions between {one.path} and {other.path} are missing or occur twice"
    for before, after in pairwise([child for child in children if isinstance(child, Fragment)]):
        if after.seq_no != before.seq_no + 1:
            yield f"the seq_no {after.seq_no} does not follow {before.seq_no}"
