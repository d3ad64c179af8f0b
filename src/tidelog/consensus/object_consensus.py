"""Consensus objects: one object holds a key's records if the store is the consensus.

Shape: a msgpack array ``[format, xxh3-128 of the body, body]``; the body is an array ``[format,
    stamp, spills, records, writes]``. A spill names an immutable object, sealed in the same way,
    that holds older records. A record is ``[seqno, write id, data]``. ``writes`` are the newest 64
    pairs ``[seqno, write id]``, which stay when their records are truncated.
Invariants: seqnos are dense over spills and records, oldest first. The newest record is always in
    the object. ``stamp`` differs between any two bodies, because a store's e_tag may be a hash of
    them.
Does no I/O: see `tidelog.consensus.store`.
Source: persist, "Consensus"; style.md, "Errors".
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import xxhash

from tidelog.errors import CorruptionError, UsageError

FORMAT: Final = 1
WRITES_KEPT: Final = 64
RECORDS_MAX: Final = 128
BYTES_MAX: Final = 256 * 1024


_SEQNO: Final = re.compile("[0-9a-f]{16}")


class ConsensusEntry(msgspec.Struct, frozen=True, array_like=True):
    """One record, and the id of the call that wrote it."""

    seqno: int
    write_id: str
    data: bytes


class Spill(msgspec.Struct, frozen=True, array_like=True):
    """The path of an object that holds the older records ``[first, last]``."""

    path: str
    first: int
    last: int


class ConsensusObject(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a key's object."""

    format: int
    stamp: str
    spills: tuple[Spill, ...]
    records: tuple[ConsensusEntry, ...]
    writes: tuple[tuple[int, str], ...]

    @property
    def head_seqno(self) -> int:
        return self.records[-1].seqno if self.records else 0

    @property
    def first_seqno(self) -> int:
        if self.spills:
            return self.spills[0].first
        return self.records[0].seqno if self.records else 1

    def wrote(self, seqno: int) -> str | None:
        """Return the write id of record ``seqno``; None if the object no longer contains it."""
        for entry in self.records:
            if entry.seqno == seqno:
                return entry.write_id
        return dict(self.writes).get(seqno)


EMPTY: Final = ConsensusObject(FORMAT, "", (), (), ())


def append_record(contents: ConsensusObject, data: bytes, *, write_id: str) -> ConsensusObject:
    """Return the object with one more record; its write id becomes the stamp of the new body."""
    return adopt_record(contents, contents.head_seqno + 1, data, write_id=write_id)


def adopt_record(
    contents: ConsensusObject, seqno: int, data: bytes, *, write_id: str
) -> ConsensusObject:
    """Return the object with one more record of a given seqno; see `append_record`."""
    # A writer whose answer was lost looks for its write id here, because its record may have moved
    # to a spill, or may be truncated.
    writes = (*contents.writes, (seqno, write_id))[-WRITES_KEPT:]
    records = (*contents.records, ConsensusEntry(seqno, write_id, data))
    return ConsensusObject(FORMAT, write_id, contents.spills, records, writes)


def follows(newer: ConsensusObject, older: ConsensusObject) -> bool:
    """Return True if ``newer`` can be a later version of ``older``.

    It cannot if its newest seqno is lower, or if another write has the seqno of the older object's
    newest record. The store was then set back to an earlier version.
    """
    writer = newer.wrote(older.head_seqno)
    return newer.head_seqno >= older.head_seqno and writer in (
        None,  # The write id is no longer in the object.
        older.wrote(older.head_seqno),
    )


def plan_spill(contents: ConsensusObject) -> tuple[ConsensusEntry, ...]:
    """Return the older half of the records if the object is too large, else an empty tuple."""
    if (
        len(contents.records) <= RECORDS_MAX
        and sum(len(e.data) for e in contents.records) <= BYTES_MAX
    ):
        return ()
    # Half, so that only one in many appends writes a spill.
    return contents.records[: len(contents.records) // 2]


def spill_path(folder: str, first: int, stamp: str) -> str:
    """Return the path of a spill whose first record is ``first``."""
    return f"{folder}/{first:016x}-{stamp}"


def spill_seqno(name: str) -> int | None:
    """Return the seqno of a spill's first record, from its name in the folder of its key.

    None if the name is not a spill's: an object in the folder of another key, or a foreign object.
    """
    first = name.partition("-")[0]
    return int(first, 16) if _SEQNO.fullmatch(first) and "/" not in name else None


def spill_records(contents: ConsensusObject, spill: Spill) -> ConsensusObject:
    """Return the object without the records up to ``spill.last``, which the spill now holds."""
    kept = tuple(e for e in contents.records if e.seqno > spill.last)
    return ConsensusObject(FORMAT, contents.stamp, (*contents.spills, spill), kept, contents.writes)


def truncate_records(contents: ConsensusObject, before: int, *, stamp: str) -> ConsensusObject:
    """Return the object without the records before ``before``; a spill goes only as a whole."""
    spills = tuple(s for s in contents.spills if s.last >= before)
    kept = tuple(e for e in contents.records if e.seqno >= before)
    return ConsensusObject(FORMAT, stamp, spills, kept, contents.writes)


def encode_object(contents: ConsensusObject) -> bytes:
    return seal(msgspec.msgpack.encode(contents))


def decode_object(data: bytes, *, key: str) -> ConsensusObject:
    """Read a consensus object.

    Raises:
        UsageError: a newer tidelog wrote it. CorruptionError: it is not an object, or was changed.
    """
    body = unseal(data, where=key)
    try:
        return msgspec.msgpack.decode(body, type=ConsensusObject)
    except GARBAGE as error:
        raise CorruptionError(
            "a consensus object cannot be decoded: restore its newest intact version", key=key
        ) from error


def encode_spill(entries: tuple[ConsensusEntry, ...]) -> bytes:
    return seal(msgspec.msgpack.encode(entries))


def decode_spill(data: bytes, *, path: str) -> tuple[ConsensusEntry, ...]:
    """Read spilled records.

    Raises:
        UsageError: a newer tidelog wrote them. CorruptionError: they are not records, or were
            changed.
    """
    body = unseal(data, where=path)
    try:
        return msgspec.msgpack.decode(body, type=tuple[ConsensusEntry, ...])
    except GARBAGE as error:
        raise CorruptionError(
            "an object of spilled consensus records cannot be decoded: restore it", path=path
        ) from error


GARBAGE: Final = (msgspec.MsgspecError, UnicodeDecodeError)


def seal(body: bytes) -> bytes:
    """Return the bytes of an object: its format, a checksum, and its body."""
    return msgspec.msgpack.encode((FORMAT, xxhash.xxh3_128_digest(body), body))


def unseal(data: bytes, *, where: str) -> bytes:
    """Return the body of an object; see `seal`.

    Raises:
        UsageError: a newer tidelog wrote it. CorruptionError: it was changed.
    """
    try:
        form, *sealed = msgspec.msgpack.decode(data, type=tuple[Any, ...])
    except (*GARBAGE, ValueError) as error:
        raise CorruptionError(
            "a consensus object cannot be decoded: restore its newest intact version", where=where
        ) from error
    if isinstance(form, int) and form > FORMAT:
        raise UsageError(
            "a newer tidelog wrote this object: upgrade tidelog to read it",
            where=where,
            format=form,
        )
    body = sealed[-1] if sealed else None
    if not isinstance(body, bytes) or [form, *sealed] != [
        FORMAT,
        xxhash.xxh3_128_digest(body),
        body,
    ]:
        raise CorruptionError(
            "a consensus object's bytes do not match its checksum: restore it", where=where
        )
    return body
