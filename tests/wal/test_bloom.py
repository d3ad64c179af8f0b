"""Stream sets: the streams that a fragment may hold.

A set never denies a stored stream and seldom admits a wrong one.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptionError
from tidelog.wal.format.fragment_sets import (
    BYTES_MAX,
    LISTED_BYTES_MAX,
    LISTED_MAX,
    Bloom,
    bloom_of,
    encode_key_set,
    encode_stream_set,
    key_set_in,
    may_hold,
    stream_set_in,
    stream_set_of,
)
from tidelog.wal.format.json import Fields, parse, render

STREAMS = st.sets(st.binary(max_size=40), max_size=60)


def stored(value: object) -> Fields:
    return parse(render({"streams": value}), where="x")


@given(members=STREAMS)
def test_a_filter_never_denies_a_member(members: set[bytes]) -> None:
    """A filter admits every member, or a reader that skips a fragment would lose records."""
    bloom = bloom_of(members)

    assert all(bloom.may_hold(member) for member in members)
    assert bloom == bloom_of(sorted(members, reverse=True))


@pytest.mark.parametrize("count", [17, 100, 1_000, 3_000])
def test_a_filter_is_seldom_wrong(count: int) -> None:
    """A filter admits fewer than three of a hundred unknown streams. It exists to save requests."""
    bloom = bloom_of([b"stream-%d" % n for n in range(count)])
    wrong = sum(bloom.may_hold(b"stranger-%d" % n) for n in range(20_000))

    assert wrong / 20_000 < 0.03
    assert len(bloom.bits) <= BYTES_MAX


def test_a_filter_does_not_grow_for_ever() -> None:
    """A filter has a maximal size; with more members it is wrong more often."""
    members = [b"%d" % n for n in range(10_000)]
    bloom = bloom_of(members)
    wrong = sum(bloom.may_hold(b"stranger-%d" % n) for n in range(5_000))

    assert len(bloom.bits) == BYTES_MAX
    assert all(bloom.may_hold(member) for member in members)
    assert wrong / 5_000 < 0.5


@given(streams=STREAMS)
def test_what_a_fragment_holds_comes_back(streams: set[bytes]) -> None:
    """A stream set survives storage; a few short ids are listed, more become a filter."""
    held = stream_set_of(streams)

    assert stream_set_in(stored(encode_stream_set(held)), "streams") == held
    assert held == stream_set_of(sorted(streams, reverse=True))
    assert all(may_hold(held, stream) for stream in streams)
    if len(streams) <= LISTED_MAX and sum(map(len, streams)) <= LISTED_BYTES_MAX:
        assert held == tuple(sorted(streams))
        assert not may_hold(held, b"x" * 41)


def test_nothing_known_may_be_anything() -> None:
    """A fragment without a stream set, as older logs have, may hold any stream."""
    assert may_hold(None, b"x")
    assert not may_hold((), b"x")
    assert stream_set_in(parse(b"{}", where="x"), "streams") == ()


def test_long_ids_are_not_listed() -> None:
    """Long ids become a filter: sixteen of the longest would take 20 kB in each fragment."""
    assert isinstance(stream_set_of([b"%d" % n * 500 for n in range(3)]), Bloom)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("any"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["bits", "hashes", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
# Sets of keys are stored like sets of streams.
FORMS = pytest.mark.parametrize(
    ("decode", "encode"), [(stream_set_in, encode_stream_set), (key_set_in, encode_key_set)]
)


@FORMS
@given(value=VALUES)
def test_garbage_is_refused(decode: Any, encode: Any, value: object) -> None:
    """A stored value raises CorruptionError, or it decodes to a set that encodes again."""
    try:
        held = decode(stored(value), "streams")
    except CorruptionError:
        return
    assert decode(stored(encode(held)), "streams") == held


@FORMS
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
        "some",
        3,
    ],
)
def test_values_that_no_writer_produces_are_refused(
    decode: Any, encode: object, value: object
) -> None:
    """Duplicates, wrong order or base64, too many, bad filters and words raise."""
    del encode
    with pytest.raises(CorruptionError):
        decode(stored(value), "streams")
