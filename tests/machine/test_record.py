"""Records and rollups: they survive storage, and no other bytes pass for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.ids import SeqNo
from tidelog.errors import CorruptionError, UsageError
from tidelog.machine.record import (
    FORMAT,
    Record,
    RollupBody,
    decode_record,
    decode_rollup,
    describe_rollup,
    encode_record,
    encode_rollup,
    rollup_path,
)


def decoded(data: bytes) -> Record:
    return decode_record(data, key="k", seqno=SeqNo(1))


@given(diff=st.binary(), state=st.none() | st.binary(), seqno=st.integers(1, 2**62))
def test_a_record_reads_back(diff: bytes, state: bytes | None, seqno: int) -> None:
    """A record survives storage, because every later process reads it."""
    rollup = None if state is None else describe_rollup(SeqNo(seqno), "some/path", state)
    record = Record(rollup=rollup, floor=seqno, diffs=(diff, b"another"))

    assert decoded(encode_record(record)) == record


@given(data=st.binary(max_size=60))
def test_garbage_is_no_record(data: bytes) -> None:
    """Random bytes raise a named error, or decode to a record of a known format."""
    try:
        decoded(data)
    except (CorruptionError, UsageError):
        return
    assert msgspec.msgpack.decode(data, type=dict[str, Any])["v"] <= FORMAT


def test_a_newer_format_is_refused_and_a_newer_field_is_not() -> None:
    """A newer format is refused, and an unknown field is ignored."""
    with pytest.raises(UsageError, match="newer tidelog"):
        decoded(msgspec.msgpack.encode({"v": FORMAT + 1, "diffs": [], "rollup": None}))
    with pytest.raises(UsageError, match="before the first release"):
        decoded(msgspec.msgpack.encode({"v": 1, "diff": b"", "rollup": None}))

    found = decoded(msgspec.msgpack.encode({"v": FORMAT, "diffs": [b"x"], "new": 1}))
    assert found.diffs == (b"x",)


@given(state=st.binary(), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_rollup_whose_bytes_changed_is_refused(state: bytes, place: int, bit: int) -> None:
    """A changed rollup raises CorruptionError. A state with one wrong bit would stay wrong."""
    body = RollupBody(state=state, floor=3, rollups=(describe_rollup(SeqNo(1), "p", b"older"),))
    data = encode_rollup(body)
    rollup = describe_rollup(SeqNo(4), "p", data)
    flipped = bytearray(data)
    flipped[place % len(data)] ^= 1 << bit

    assert decode_rollup(rollup, data) == body
    for wrong in (bytes(flipped), data[:-1], data + b"\0", b""):
        with pytest.raises(CorruptionError):
            decode_rollup(rollup, wrong)


def test_rollups_sort_by_their_seqno() -> None:
    """Paths of rollups sort by seqno, so a listing shows the newest last."""
    paths = [rollup_path("shard/s", SeqNo(n), "u") for n in (1, 9, 10, 255, 256, 2**40)]

    assert paths == sorted(paths)
