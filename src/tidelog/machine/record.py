"""Records: what a machine writes for each change of its state, and the rollups they name.

Shape: a record is a msgpack map ``{"v": format, "rollup": ref or nil, "diff": bytes}``; a rollup
    is an object at ``<prefix>/rollup/<seqno:016x>-<id>`` with the whole state after that seqno.
Invariants: a rollup's seqno is at or above the earliest record's predecessor; each record names
    the newest rollup known when it was written, so one read of the newest record finds it.
Source: persist, "Incremental State" and "Rollups".
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import xxhash

from tidelog.errors import CorruptionError, UsageError
from tidelog.ids import SeqNo

FORMAT: Final = 1


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """Where the whole state after ``seqno`` lies, and what its bytes must be."""

    seqno: int
    path: str
    size_bytes: int
    xxh3: bytes


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    v: int = FORMAT
    rollup: Rollup | None = None
    diff: bytes


def rollup_path(prefix: str, seqno: SeqNo, unique: str) -> str:
    return f"{prefix}/rollup/{seqno:016x}-{unique}"


def describe_rollup(seqno: SeqNo, path: str, data: bytes) -> Rollup:
    return Rollup(seqno=seqno, path=path, size_bytes=len(data), xxh3=xxhash.xxh3_128_digest(data))


def check_rollup(rollup: Rollup, data: bytes) -> bytes:
    """Return ``data`` back if it is what the rollup's record says.

    Raises:
        CorruptionError: it is not.
    """
    if len(data) != rollup.size_bytes or xxhash.xxh3_128_digest(data) != rollup.xxh3:
        raise CorruptionError("a rollup's bytes are not those that were written", path=rollup.path)
    return data


def encode_record(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes, *, key: str, seqno: SeqNo) -> Record:
    """Read a record.

    Raises:
        UsageError: a newer tidelog wrote it. CorruptionError: it is not a record.
    """
    try:
        found: dict[str, Any] = msgspec.msgpack.decode(data, type=dict[str, Any])
        if found["v"] > FORMAT:
            raise UsageError(
                "a newer tidelog wrote this state: upgrade tidelog to use it",
                key=key,
                format=found["v"],
            )
        return msgspec.convert(found, Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptionError("a state record cannot be read", key=key, seqno=seqno) from error
