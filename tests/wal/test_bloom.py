"""Which streams a fragment holds: never a wrong no, and seldom a wrong yes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptionError
from tidelog.wal.format.json import Fields, parse, render
from tidelog.wal.format.stream_set import (
    BYTES_MAX,
    LISTED_BYTES_MAX,
    LISTED_MAX,
    Bloom,
    bloom_of,
    encode_stream_set,
    may_hold,
    stream_set_in,
    stream_set_of,
)

STREAMS = st.sets(st.binary(max_size=40), max_size=60)


def stored(value: object) -> Fields:
    return parse(render({"streams": value}), where="x")


@given(members=STREAMS)
def test_a_filter_never_denies_a_member(members: set[bytes]) -> None:
    """Whoever skips what it denies would lose records."""
    bloom = bloom_of(members)

    assert all(bloom.may_hold(member) for member in members)
    assert bloom == bloom_of(sorted(members, reverse=True))


@pytest.mark.parametrize("count", [17, 100, 1_000, 3_000])
def test_a_filter_is_seldom_wrong(count: int) -> None:
    """Among strangers, fewer than three in a hundred; it is to spare requests."""
    bloom = bloom_of([b"stream-%d" % n for n in range(count)])
    wrong = sum(bloom.may_hold(b"stranger-%d" % n) for n in range(20_000))

    assert wrong / 20_000 < 0.03
    assert len(bloom.bits) <= BYTES_MAX


def test_a_filter_does_not_grow_for_ever() -> None:
    """It is kept in a manifest, hundreds of times; it is wrong more often instead."""
    members = [b"%d" % n for n in range(10_000)]
    bloom = bloom_of(members)
    wrong = sum(bloom.may_hold(b"stranger-%d" % n) for n in range(5_000))

    assert len(bloom.bits) == BYTES_MAX
    assert all(bloom.may_hold(member) for member in members)
    assert wrong / 5_000 < 0.5


@given(streams=STREAMS)
def test_what_a_fragment_holds_comes_back(streams: set[bytes]) -> None:
    """A few by name, and exactly; many as a filter; and the order does not matter."""
    held = stream_set_of(streams)

    assert stream_set_in(stored(encode_stream_set(held)), "streams") == held
    assert held == stream_set_of(sorted(streams, reverse=True))
    assert all(may_hold(held, stream) for stream in streams)
    if len(streams) <= LISTED_MAX and sum(map(len, streams)) <= LISTED_BYTES_MAX:
        assert held == tuple(sorted(streams))
        assert not may_hold(held, b"x" * 41)


def test_nothing_known_may_be_anything() -> None:
    """Logs that were written before fragments said so are read whole."""
    assert may_hold(None, b"x")
    assert not may_hold((), b"x")
    assert stream_set_in(parse(b"{}", where="x"), "streams") == ()


def test_long_ids_are_not_listed() -> None:
    """Sixteen of the longest would be twenty kilobytes, for each fragment."""
    assert isinstance(stream_set_of([b"%d" % n * 500 for n in range(3)]), Bloom)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["bits", "hashes", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=VALUES)
def test_garbage_is_refused(value: object) -> None:
    """Or it is what could have been written."""
    try:
        held = stream_set_in(stored(value), "streams")
    except CorruptionError:
        return
    assert stream_set_in(stored(encode_stream_set(held)), "streams") == held


@pytest.mark.parametrize(
    "value",
    [
        ["YQ==", "YQ=="],
        ["Yg==", "YQ=="],
        ["?"],
        [""] * 17,
        {"bits": "", "hashes": 1},
        {"bits": "AA==", "hashes": 0},
        {"bits": "AA==", "hashes": 17},
        {"bits": "A" * 8_000, "hashes": 1},
        "YQ==",
        3,
    ],
)
def test_what_was_never_written_is_refused(value: object) -> None:
    """Twice the same, out of order, no base64, too many, or no filter."""
    with pytest.raises(CorruptionError):
        stream_set_in(stored(value), "streams")
