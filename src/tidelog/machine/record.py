"""Records: the stored changes of a machine's state, and the rollups that they name.

Shape: a record is a msgpack map ``{"v": format, "rollup": the newest one, or nil, "floor": seqno,
    "erased": seqno, "at_us": the writer's clock, "diffs": [bytes]}``. A rollup is an object at
    ``<prefix>/rollup/<seqno:016x>-<id>``: a map of ``v``, the ``state`` after that seqno, the
    ``floor``, the ``rollups`` before it, ``erased``, and the vanished objects (``gone``).
Invariants: each record names the newest rollup known to its writer, so one read of the newest
    record finds it. All rollups from ``floor`` and all records after ``floor`` are kept.
Source: persist, "Incremental State" and "Rollups".
"""

from __future__ import annotations

import re
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


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """Objects that a record took out of the state, with the time by its writer's clock."""

    seqno: int
    at_us: int
    paths: tuple[str, ...]


class RolledUp(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a rollup's object."""

    v: int = FORMAT
    state: bytes
    floor: int = 0
    rollups: tuple[Rollup, ...] = ()
    erased: int = 0
    gone: tuple[Gone, ...] = ()


def rollup_path(prefix: str, seqno: SeqNo, unique: str) -> str:
    return f"{prefix}/rollup/{seqno:016x}-{unique}"


def rollup_seqno(path: str) -> int:
    """Return the seqno in the path of a rollup; -1 if the path is not a rollup's."""
    found = _ROLLUP.search(path)
    return -1 if found is None else int(found[1], 16)


def describe_rollup(seqno: SeqNo, path: str, data: bytes) -> Rollup:
    return Rollup(seqno=seqno, path=path, size_bytes=len(data), xxh3=xxhash.xxh3_128_digest(data))


def encode_rollup(found: RolledUp) -> bytes:
    return msgspec.msgpack.encode(found)


def decode_rollup(rollup: Rollup, data: bytes) -> RolledUp:
    """Read a rollup and check it against the size and hash in the record that names it.

    Raises:
        CorruptionError: the bytes differ, or cannot be read. UsageError: a newer tidelog wrote it.
    """
    if len(data) != rollup.size_bytes or xxhash.xxh3_128_digest(data) != rollup.xxh3:
        raise CorruptionError(
            "a rollup's bytes do not match its checksum: restore it", path=rollup.path
        )
    return _decode(RolledUp, data, what="a rollup", path=rollup.path)


def encode_record(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes, *, key: str, seqno: SeqNo) -> Record:
    """Read a record.

    Raises:
        UsageError: a newer tidelog wrote it, or one older than the first release. CorruptionError:
            it is not a record.
    """
    return _decode(Record, data, what="a state record", key=key, seqno=seqno)


_T = TypeVar("_T", Record, RolledUp)


def _decode(kind: type[_T], data: bytes, *, what: str, **where: Any) -> _T:
    try:
        found: dict[str, Any] = msgspec.msgpack.decode(data, type=dict[str, Any])
        if found["v"] > FORMAT:
            raise UsageError(
                "a newer tidelog wrote this state: update tidelog to use it",
                format=found["v"],
                **where,
            )
        if found["v"] < FORMAT:
            raise UsageError(
                "a tidelog from before the first release wrote this state, in a format that is "
                "no longer read: create the location again",
                format=found["v"],
                **where,
            )
        return msgspec.convert(found, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptionError(f"{what} cannot be read", **where) from error
