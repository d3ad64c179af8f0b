"""Records and rollups: what a machine writes must read back, and nothing else may pass for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptionError, UsageError
from tidelog.ids import SeqNo
from tidelog.machine.record import (
    FORMAT,
    Record,
    check_rollup,
    decode_record,
    describe_rollup,
    encode_record,
    rollup_path,
)


def decoded(data: bytes) -> Record:
    return decode_record(data, key="k", seqno=SeqNo(1))


@given(diff=st.binary(), state=st.none() | st.binary(), seqno=st.integers(1, 2**62))
def test_a_record_reads_back(diff: bytes, state: bytes | None, seqno: int) -> None:
    """Each record is read by every later process."""
    rollup = None if state is None else describe_rollup(SeqNo(seqno), "some/path", state)
    record = Record(rollup=rollup, diff=diff)

    assert decoded(encode_record(record)) == record


@given(data=st.binary(max_size=60))
def test_garbage_is_no_record(data: bytes) -> None:
    """A value or a named error, nothing else."""
    try:
        decoded(data)
    except (CorruptionError, UsageError):
        return
    assert msgspec.msgpack.decode(data, type=dict[str, Any])["v"] <= FORMAT


def test_a_newer_format_is_refused_and_a_newer_field_is_not() -> None:
    """An older tidelog stops at what it cannot understand, and passes over what it may."""
    with pytest.raises(UsageError, match="newer tidelog"):
        decoded(msgspec.msgpack.encode({"v": FORMAT + 1, "diff": b"", "rollup": None}))

    assert decoded(msgspec.msgpack.encode({"v": FORMAT, "diff": b"x", "new": 1})).diff == b"x"


@given(data=st.binary(min_size=1), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_rollup_whose_bytes_changed_is_refused(data: bytes, place: int, bit: int) -> None:
    """A state that is wrong in one bit would be wrong for ever after."""
    rollup = describe_rollup(SeqNo(1), "p", data)
    flipped = bytearray(data)
    flipped[place % len(data)] ^= 1 << bit

    assert check_rollup(rollup, data) == data
    for wrong in (bytes(flipped), data[:-1], data + b"\0", b""):
        with pytest.raises(CorruptionError):
            check_rollup(rollup, wrong)


def test_rollups_sort_by_their_seqno() -> None:
    """A listing of rollups shows the newest last."""
    paths = [rollup_path("shard/s", SeqNo(n), "u") for n in (1, 9, 10, 255, 256, 2**40)]

    assert paths == sorted(paths)
