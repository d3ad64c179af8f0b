"""Thrift's compact protocol: written structs are read, and other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.parquet_bytes import LIST, STRUCT, thrift, varint
from tidelog.wal.format.parquet_meta import BINARY, I32, I64, Shape, read_struct

SHAPE: Shape = {1: I32, 2: I64, 3: BINARY, 4: {1: I32, 9: BINARY}, 5: ({1: I32},)}
I32S = st.integers(-(2**31), 2**31 - 1)
I64S = st.integers(-(2**63), 2**63 - 1)
# Kinds and values of unknown fields.
OTHERS = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from([1, 2]), st.just(b"")),
        st.tuples(st.just(3), st.binary(min_size=1, max_size=1)),
        st.tuples(st.sampled_from([4, 5, 6]), I32S),
        st.tuples(st.just(7), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just(8), st.binary(max_size=200)),
        st.tuples(st.sampled_from([9, 10]), st.tuples(st.just(5), st.lists(I32S, max_size=20))),
        st.tuples(st.just(9), st.tuples(st.just(1), st.lists(st.just(b"\1"), max_size=3))),
    ),
    lambda inner: st.tuples(
        st.just(STRUCT), st.dictionaries(st.integers(1, 15), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=50)
@given(
    number=I32S,
    large=I64S,
    text=st.binary(max_size=300),
    items=st.lists(I32S, max_size=20),
    others=st.dictionaries(st.integers(6, 15), OTHERS, max_size=4),
    within=st.dictionaries(st.integers(2, 8), OTHERS, max_size=2),
    around=st.binary(max_size=3),
)
def test_what_is_asked_for_is_read_and_all_else_skipped(
    number: int,
    large: int,
    text: bytes,
    items: list[int],
    others: dict[int, tuple[int, object]],
    within: dict[int, tuple[int, object]],
    around: bytes,
) -> None:
    """A reader returns the requested fields and skips all others, of any kind and place."""
    struct = thrift(
        {
            1: (I32, number),
            2: (I64, large),
            3: (BINARY, text),
            4: (STRUCT, {1: (I32, number), **within, 9: (BINARY, text)}),
            5: (LIST, (STRUCT, [{1: (I32, item), 2: (I64, large)} for item in items])),
            **others,
        }
    )

    found, end = read_struct(around + struct + around, len(around), SHAPE)

    assert found == {
        1: number,
        2: large,
        3: text,
        4: {1: number, 9: text},
        5: [{1: item} for item in items],
    }
    assert end == len(around) + len(struct)


@given(data=st.binary(max_size=60))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    """Other bytes raise ValueError or decode to a struct."""
    try:
        _, end = read_struct(data, 0, SHAPE)
        assert end <= len(data)
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"\x15", "truncated"),
        (thrift({3: (BINARY, b"abc")})[:-2], "truncated"),
        (b"\x38" + varint(2**40) + b"x\0", "truncated"),
        (thrift({1: (I64, 1)}), "has another type or is out of range"),
        (thrift({1: (I32, 2**31)}), "has another type or is out of range"),
        (thrift({2: (I64, 2**63)}), "has another type or is out of range"),
        (b"\x26" + b"\xff" * 10 + b"\1\0", "too large"),
        (thrift({3: (STRUCT, {})}), "another type"),
        (thrift({5: (LIST, (I32, [1]))}), "elements of another type"),
        (b"\x05\x02\x02\0", "out of order"),
        (b"\x6c" * 40 + b"\0" * 40, "too deeply"),
        (b"\x69" + b"\x19" * 40 + b"\0" * 40, "unknown type"),
        (b"\x6b\x00\x00", "unknown type"),
        (b"\x59\xfc" + varint(2**40) + b"\0" * 9, "too long"),
        (b"\x69\xf5" + varint(2**62) + b"\0" * 9, "too long"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, why: str) -> None:
    """A wrong length, count or depth raises ValueError before the reader relies on it."""
    with pytest.raises(ValueError, match=why):
        read_struct(data, 0, SHAPE)
