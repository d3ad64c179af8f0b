"""Records: the stored changes of a machine's state, and the rollups that they name. Pure.

A rollup and the records before it are deleted once ``seqno_since`` has reached a later rollup. An
object that a change took out of the state is kept for some time, because a reader may still use a
state that names it. A reader does not report each read, so only time protects it. A reader that is
slower finds an object missing, reads the newest state and starts again. Clocks therefore affect
only how often readers start again, not whether they are correct.

Shape: a record is a msgpack map ``{"v": format, "rollup": the newest one, or nil, "floor": seqno,
    "erased": seqno, "at_us": the writer's clock, "diffs": [bytes]}``. A rollup is an object at
    ``<prefix>/rollup/<seqno:016x>-<id>``: a map of ``v``, the ``state`` after that seqno, the
    ``floor``, the ``rollups`` before it, ``erased``, and the vanished objects (``gone``).
Invariants: each record names the newest rollup known to its writer, so one read of the newest
    record finds it. All rollups from ``floor`` and all records after ``floor`` are kept.
Source: persist, "Incremental State", "Rollups" and "Garbage Collection"; design page 4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
import xxhash

from tidelog.core.ids import SeqNo
from tidelog.errors import CorruptionError, UsageError

FORMAT: Final = 2
_ROLLUP: Final = re.compile(r"/rollup/([0-9a-f]{16})-[^/]+$")


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """The path of the whole state after ``seqno``, and the size and hash of its bytes."""

    seqno: int
    path: str
    size_bytes: int
    xxh3: bytes


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that were committed together, in the order in which they were decided."""

    v: int = FORMAT
    rollup: Rollup | None = None
    floor: int = 0
    erased: int = 0
    at_us: int = 0
    diffs: tuple[bytes, ...] = ()


class VanishedObjects(msgspec.Struct, frozen=True, array_like=True):
    """Objects that a record took out of the state, with the time by its writer's clock."""

    seqno: int
    at_us: int
    paths: tuple[str, ...]


class RollupBody(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a rollup's object."""

    v: int = FORMAT
    state: bytes
    floor: int = 0
    rollups: tuple[Rollup, ...] = ()
    erased: int = 0
    gone: tuple[VanishedObjects, ...] = ()


def rollup_path(prefix: str, seqno: SeqNo, unique: str) -> str:
    return f"{prefix}/rollup/{seqno:016x}-{unique}"


def rollup_seqno(path: str) -> int:
    """Return the seqno in the path of a rollup; -1 if the path is not a rollup's."""
    match = _ROLLUP.search(path)
    return -1 if match is None else int(match[1], 16)


def describe_rollup(seqno: SeqNo, path: str, data: bytes) -> Rollup:
    return Rollup(seqno=seqno, path=path, size_bytes=len(data), xxh3=xxhash.xxh3_128_digest(data))


def encode_rollup(found: RollupBody) -> bytes:
    return msgspec.msgpack.encode(found)


def decode_rollup(rollup: Rollup, data: bytes) -> RollupBody:
    """Read a rollup and check it against the size and hash in the record that names it.

    Raises:
        CorruptionError: the bytes differ, or cannot be read. UsageError: a newer tidelog wrote it.
    """
    if len(data) != rollup.size_bytes or xxhash.xxh3_128_digest(data) != rollup.xxh3:
        raise CorruptionError(
            "a rollup's bytes do not match its checksum: restore the object", path=rollup.path
        )
    return _decode(RollupBody, data, what="a rollup", path=rollup.path)


def encode_record(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes, *, key: str, seqno: SeqNo) -> Record:
    """Read a record.

    Raises:
        UsageError: a newer tidelog wrote it, or one older than the first release. CorruptionError:
            it is not a record.
    """
    return _decode(Record, data, what="a state record", key=key, seqno=seqno)


_T = TypeVar("_T", Record, RollupBody)


def _decode(kind: type[_T], data: bytes, *, what: str, **where: Any) -> _T:
    try:
        # The format first: the fields of a newer one may not fit this version's types.
        fields: dict[str, Any] = msgspec.msgpack.decode(data, type=dict[str, Any])
        if fields["v"] > FORMAT:
            raise UsageError(
                "a newer tidelog wrote this state: upgrade tidelog to use it",
                format=fields["v"],
                **where,
            )
        if fields["v"] < FORMAT:
            raise UsageError(
                "a tidelog from before the first release wrote this state, in a format that is "
                "no longer read: create the location again",
                format=fields["v"],
                **where,
            )
        return msgspec.convert(fields, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"{what} cannot be decoded: restore it from a backup, or from an older version of its "
            "object",
            **where,
        ) from error


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The known past of a machine at one seqno.

    Shape: ``rollups`` are the kept rollups, ``gone`` the vanished objects that are not yet deleted;
        both are ordered from oldest to newest. Objects that vanished up to ``erased`` are deleted.
        ``changed`` is the seqno of the newest record with a change.
    """

    rollups: tuple[Rollup, ...] = ()
    floor: int = 0
    erased: int = 0
    gone: tuple[VanishedObjects, ...] = ()
    changed: int = 0

    @property
    def rolled_up(self) -> int:
        """The seqno of the newest rollup, which includes all changes up to it; 0 without one."""
        return self.rollups[-1].seqno if self.rollups else 0

    @property
    def is_settled(self) -> bool:
        """Return True if the newest rollup includes all changes and no older past is kept."""
        return self.changed <= self.rolled_up == self.floor

    @property
    def newest(self) -> Rollup | None:
        """The newest rollup that a record names."""
        return self.rollups[-1] if self.rollups else None


def begin_history(rollup: Rollup, found: RollupBody) -> History:
    """Return the history after reading a rollup."""
    rollups = (*found.rollups, rollup)
    return History(
        rollups=rollups,
        floor=found.floor,
        erased=found.erased,
        gone=found.gone,
        changed=rollup.seqno,
    )


def follow(history: History, seqno: int, record: Record, vanished: tuple[str, ...]) -> History:
    """Return the history after one more record."""
    rollups, gone = history.rollups, history.gone
    newest = history.newest
    if record.rollup is not None and (newest is None or newest.seqno < record.rollup.seqno):
        rollups = (*rollups, record.rollup)
    if vanished:
        gone = (*gone, VanishedObjects(seqno, record.at_us, vanished))
    if record.floor > history.floor:
        rollups = tuple(rollup for rollup in rollups if rollup.seqno >= record.floor)
    if record.erased > history.erased:
        gone = tuple(entry for entry in gone if entry.seqno > record.erased)
    return History(
        rollups=rollups,
        floor=max(record.floor, history.floor),
        erased=max(record.erased, history.erased),
        gone=gone,
        changed=seqno if record.diffs else history.changed,
    )


@dataclass(frozen=True, slots=True)
class HistoryGarbage:
    """The parts of a machine's past to delete.

    Objects can be deleted immediately. Records and rollups below ``floor`` can be deleted only
    after a record states the new floor. That record also states ``erased``: objects that vanished
    up to it are deleted.
    """

    floor: int
    raises_floor: bool
    erased: int
    objects: tuple[str, ...]
    rollups: tuple[str, ...]


def plan_collection(
    history: History, seqno_since: int | None, *, before_us: int, eager: bool = False
) -> HistoryGarbage | None:
    """Return the parts of the past to delete; None if nothing is due.

    Objects that vanished at or after ``before_us`` are kept. Unless ``eager``, objects alone are no
    reason to collect: they wait until the floor rises, and are then deleted in one request.
    """
    reached = [
        rollup for rollup in history.rollups if seqno_since is None or rollup.seqno <= seqno_since
    ]
    # Readers may need the states since `seqno_since`. The newest rollup at or before it, with the
    # records after that rollup, gives all of them.
    floor = max(history.floor, reached[-1].seqno if reached else 0)
    due = _due(history, seqno_since, before_us)
    if floor == history.floor and not (due and eager):
        return None
    return HistoryGarbage(
        floor=floor,
        raises_floor=floor > history.floor,
        erased=due[-1].seqno if due else history.erased,
        objects=tuple(path for entry in due for path in entry.paths),
        rollups=tuple(rollup.path for rollup in reached if rollup.seqno < floor),
    )


def _due(history: History, seqno_since: int | None, before_us: int) -> list[VanishedObjects]:
    """Return the oldest entries that vanished long enough ago; stop at the first that did not."""
    # Entries are in the order of their records, so an entry is at least as old as each later one.
    # The minimum over the later entries corrects a writer's clock that ran ahead.
    times = [*accumulate((entry.at_us for entry in reversed(history.gone)), min)][::-1]
    due = []
    for entry, at_us in zip(history.gone, times, strict=True):
        if at_us >= before_us or (seqno_since is not None and entry.seqno > seqno_since):
            break
        due.append(entry)
    return due
