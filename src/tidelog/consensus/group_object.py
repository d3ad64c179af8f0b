"""Group objects: one object holds the records of several keys, so one put appends to all of them.

Shape: a sealed msgpack array ``[format, stamp, count, writes, members]`` (see `object_consensus`).
    ``count`` is the number of writes so far, and ``writes`` are the ids of the newest 64. A member
    is ``[spills, records]``, by its key. A spill names an immutable object with older records of
    several members. A record is ``[seqno, data]``.
Invariants: the records of a member are dense over its spills and its records, oldest first. Its
    newest record is always in the object. ``stamp`` differs between any two bodies.
Does no I/O: see `tidelog.consensus.groups`.
Source: decision 37.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tidelog.consensus.object_consensus import GARBAGE, Spill, seal, unseal
from tidelog.consensus.port import KeyRecord
from tidelog.core.ids import group_of
from tidelog.errors import CorruptionError

FORMAT: Final = 1
WRITES_KEPT: Final = 64
RECORDS_MAX: Final = 160  # Of one member. A state is rolled up every 64 records.
BYTES_MAX: Final = 1024 * 1024  # Of all members.


class MemberRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record of a member."""

    seqno: int
    data: bytes


class Member(msgspec.Struct, frozen=True, array_like=True):
    """The records of one key."""

    spills: tuple[Spill, ...] = ()
    records: tuple[MemberRecord, ...] = ()

    @property
    def head_seqno(self) -> int:
        return self.records[-1].seqno if self.records else 0

    @property
    def first_seqno(self) -> int:
        if self.spills:
            return self.spills[0].first
        return self.records[0].seqno if self.records else 1

    def kept_from(self, seqno: int) -> Member:
        """Return the member without the records before ``seqno``; a spill goes only as a whole."""
        if seqno <= self.first_seqno:
            return self
        spills = tuple(one for one in self.spills if one.last >= seqno)
        return Member(spills, tuple(one for one in self.records if one.seqno >= seqno))


NOTHING: Final = Member()


class GroupObject(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a group's object."""

    format: int
    stamp: str
    count: int
    writes: tuple[str, ...]
    members: dict[str, Member]

    def member(self, key: str) -> Member:
        return self.members.get(key, NOTHING)

    def takes(self, records: Sequence[KeyRecord]) -> bool:
        """Return True if each record is the next one of its key."""
        return all(self.member(one.key).head_seqno == one.seqno - 1 for one in records)

    def has_landed(self, write: str, since: int) -> bool | None:
        """Return True if a write is in the object that was sent when ``count`` was ``since``.

        The result is None if so many others followed that the object no longer knows.
        """
        if write in self.writes:
            return True
        return False if self.count - since <= WRITES_KEPT else None

    @property
    def spills(self) -> set[str]:
        """Return the paths of all spills."""
        return {spill.path for member in self.members.values() for spill in member.spills}


EMPTY: Final = GroupObject(FORMAT, "", 0, (), {})


def append_records(
    contents: GroupObject, records: Sequence[KeyRecord], *, write: str
) -> GroupObject:
    """Return the object after a write, whose id becomes the stamp of the new body."""
    members = dict(contents.members)
    for one in records:
        member = contents.member(one.key).kept_from(one.kept_from)
        added = MemberRecord(one.seqno, one.data)
        members[one.key] = Member(member.spills, (*member.records, added))
    writes = (*contents.writes, write)[-WRITES_KEPT:]
    return GroupObject(FORMAT, write, contents.count + 1, writes, members)


def with_member(contents: GroupObject, key: str, member: Member, *, stamp: str) -> GroupObject:
    """Return the object with other records of one key."""
    members = {**contents.members, key: member}
    writes = (*contents.writes, stamp)[-WRITES_KEPT:]
    return GroupObject(FORMAT, stamp, contents.count + 1, writes, members)


def follows(newer: GroupObject, older: GroupObject) -> bool:
    """Return True if ``newer`` can be a later version of ``older``: it was not set back."""
    if newer.count < older.count:
        return False
    return not older.writes or newer.has_landed(older.writes[-1], older.count - 1) is not False


def plan_spill(contents: GroupObject) -> dict[str, tuple[MemberRecord, ...]]:
    """Return the older half of each member's records if the object is too large, else nothing."""
    members = contents.members.values()
    size = sum(len(one.data) for member in members for one in member.records)
    if size <= BYTES_MAX and all(len(member.records) <= RECORDS_MAX for member in members):
        return {}
    # Half, so that only one in many appends writes a spill.
    halves = {n: one.records[: len(one.records) // 2] for n, one in contents.members.items()}
    return {name: half for name, half in halves.items() if half}


def spill_path(folder: str, contents: GroupObject) -> str:
    """Return the path of a spill that the body ``contents`` would name."""
    return f"{folder}/{contents.count:016x}-{contents.stamp}"


def with_spill(
    contents: GroupObject, moved: Mapping[str, Sequence[MemberRecord]], path: str
) -> GroupObject:
    """Return the object without the records that a spill now holds."""
    members = dict(contents.members)
    for name, records in moved.items():
        member, spill = members[name], Spill(path, records[0].seqno, records[-1].seqno)
        left = member.records[len(records) :]
        members[name] = Member((*member.spills, spill), left)
    return GroupObject(FORMAT, contents.stamp, contents.count, contents.writes, members)


def encode_group(contents: GroupObject) -> bytes:
    return seal(msgspec.msgpack.encode(contents))


def decode_group(data: bytes, *, group: str) -> GroupObject:
    """Read a group object.

    Raises:
        UsageError: a newer tidelog wrote it. CorruptionError: it is not an object, was changed, or
            is that of another group.
    """
    try:
        contents = msgspec.msgpack.decode(unseal(data, where=group), type=GroupObject)
    except GARBAGE as error:
        raise CorruptionError(
            "a consensus object cannot be decoded: restore its newest intact version", group=group
        ) from error
    if any(group_of(key) != group for key in contents.members):
        raise CorruptionError(
            "a consensus object is that of another group: restore its newest intact version",
            group=group,
        )
    return contents


def encode_spill(moved: Mapping[str, Sequence[MemberRecord]]) -> bytes:
    return seal(msgspec.msgpack.encode(moved))


def decode_spill(data: bytes, *, path: str) -> dict[str, tuple[MemberRecord, ...]]:
    """Read spilled records, by key.

    Raises:
        UsageError: a newer tidelog wrote them. CorruptionError: they are not records, or were
            changed.
    """
    try:
        body = unseal(data, where=path)
        return msgspec.msgpack.decode(body, type=dict[str, tuple[MemberRecord, ...]])
    except GARBAGE as error:
        raise CorruptionError(
            "an object of spilled consensus records cannot be decoded: restore it", path=path
        ) from error
