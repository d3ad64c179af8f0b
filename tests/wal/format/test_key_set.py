"""Key sets: the keys that a fragment may hold.

A key set never denies a stored key, seldom admits a wrong one, and is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tidelog.wal.format.fragment_sets import (
    FILTERED_MAX,
    LISTED_BYTES_MAX,
    LISTED_MAX,
    REPEATS,
    KeyBloom,
    KeySet,
    encode_key_set,
    key_set_in,
    key_set_of,
    may_hold,
)
from tidelog.wal.format.json import Fields, parse, render

KEYS = st.lists(st.none() | st.binary(max_size=40), max_size=60)


def column(keys: Sequence[bytes | None]) -> Any:
    return pa.chunked_array([pa.array([*keys, b"cut off"], pa.binary()).slice(0, len(keys))])


def stored(value: object) -> Fields:
    return parse(render({"keys": value}), where="x")


def held_of(count: int, *, times: int = 1) -> KeySet:
    return key_set_of(column([b"key-%d" % n for n in range(count)] * times))


@given(keys=KEYS)
def test_what_a_fragment_holds_comes_back(keys: list[bytes | None]) -> None:
    """A key set survives storage; a few short keys are listed, more keys become a filter."""
    held = key_set_of(column(keys))
    unique = {key for key in keys if key is not None}

    found = key_set_in(
        stored(encode_key_set(held)) if held != () else parse(b"{}", where="x"), "keys"
    )
    assert found == held
    assert key_set_of(column(keys[::-1])) == held
    assert key_set_of(pa.chunked_array([column(keys[:3]).combine_chunks(),
                                        column(keys[3:]).combine_chunks()])) == held  # fmt: skip
    assert all(may_hold(held, key) for key in unique)
    if len(unique) <= LISTED_MAX and sum(map(len, unique)) <= LISTED_BYTES_MAX:
        assert held == tuple(sorted(unique))
        assert not may_hold(held, b"x" * 41)


@pytest.mark.parametrize("count", [17, 100, 1_000, 3_000])
def test_a_filter_is_seldom_wrong(count: int) -> None:
    """A filter admits fewer than three of a hundred unknown keys. It exists to save requests."""
    held = held_of(count)
    wrong = sum(may_hold(held, b"stranger-%d" % n) for n in range(10_000))

    assert isinstance(held, KeyBloom)
    assert all(may_hold(held, b"key-%d" % n) for n in range(count))
    assert wrong / 10_000 < 0.03


def test_a_filter_does_not_grow_for_ever() -> None:
    """A filter has at most 4 KiB; past `FILTERED_MAX` keys it would be wrong, so none is stored."""
    held = held_of(FILTERED_MAX)
    assert isinstance(held, KeyBloom)
    assert len(held.bits) == 4_096
    assert sum(may_hold(held, b"stranger-%d" % n) for n in range(5_000)) / 5_000 < 0.45
    assert held_of(FILTERED_MAX + 1) is None


def test_nothing_is_recorded_where_it_would_skip_nothing() -> None:
    """A filter over keys that each repeat often would skip nothing, so none is stored."""
    assert isinstance(held_of(17, times=REPEATS - 1), KeyBloom)
    assert held_of(17, times=REPEATS) is None
    assert may_hold(None, b"anything")
    assert held_of(16, times=100) == tuple(sorted(b"key-%d" % n for n in range(16)))
    mixed = [b"key-%d" % n for n in range(17)]
    # Records without a key do not count as repeats.
    assert isinstance(key_set_of(column([*mixed, *mixed, *[None] * 1_000])), KeyBloom)
    assert key_set_of(column([None, None])) == ()
    assert encode_key_set(None) == "any"
    assert key_set_in(stored("any"), "keys") is None
    assert key_set_in(parse(b"{}", where="x"), "keys") == ()


def test_long_keys_are_not_listed() -> None:
    """Long keys become a filter: sixteen of the longest would add 256 KiB to each fragment."""
    assert isinstance(key_set_of(column([b"%d" % n * 500 for n in range(3)])), KeyBloom)


def test_filters_are_pinned() -> None:
    """The bits of a stored filter are fixed: another formula would make readers skip records."""
    keys: list[bytes | None] = [b"%d" % n * (1 + n % 40) for n in range(40)]
    held = key_set_of(column([*keys, b""]))
    assert isinstance(held, KeyBloom)

    expected = bytearray(len(held.bits))
    for key in [*keys, b""]:
        assert key is not None
        first, second = (xxhash.xxh3_64_intdigest(key, seed) for seed in (0, 1))
        for number in range(held.hashes):
            place = (first + number * (second | 1)) % 2**64 % (8 * len(expected))
            expected[place // 8] |= 1 << place % 8
    assert (len(held.bits), held.hashes) == (52, 7)
    assert held.bits == bytes(expected)
    assert xxhash.xxh3_64_hexdigest(held.bits) == "7e6ef3f95cac35e0"
