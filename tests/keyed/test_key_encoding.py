"""Storage keys of OpenData's log: the same bytes as other implementations, and the same order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.key_encoding import (
    EntryKey,
    decode_draft,
    decode_entry,
    decode_listing,
    decode_number,
    encode_draft,
    encode_entry,
    encode_listing,
    encode_number,
    encode_segment,
    encode_sequence_block,
    entry_prefix_range,
    entry_range,
    escape_key,
    unescape_key,
)
from tidelog.errors import UsageError

NUMBERS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 15).flatmap(
        lambda n: st.sampled_from([2 ** (4 + 8 * (n // 2)) - n % 2, 2 ** (8 * (n // 2))])
    ),
).filter(lambda number: number < 2**64)
# Bytes next to the escaped ones, and all others.
KEYS = st.one_of(
    st.binary(max_size=12), st.lists(st.sampled_from([0, 1, 2, 0x61, 0xFE, 0xFF])).map(bytes)
)
SEGMENTS = st.integers(0, 2**32 - 1)
GOLDEN_HEAD = bytes.fromhex("0301 00000001 10")
GOLDEN = [
    (1, b"hello", 5, "0301 00000001 10 68656c6c6f 00 05"),
    (1, b"hello", 100, "0301 00000001 10 68656c6c6f 00 10 64"),
    (
        1,
        b"a\x00b\x01c\xffd",
        4096,
        "0301 00000001 10 61 0101 62 0102 63 ff 64 00 20 10 00",
    ),
    (2, b"", 0, "0301 00000002 10 00 00"),
]


@pytest.mark.parametrize(("segment", "key", "relative", "spelled"), GOLDEN)
def test_entries_are_spelled_as_opendata_spells_them(
    segment: int, key: bytes, relative: int, spelled: str
) -> None:
    """The encoder produces the bytes of OpenData's examples."""
    data = bytes.fromhex(spelled)

    assert encode_entry(segment, key, relative) == data
    assert decode_entry(data) == EntryKey(segment, key, relative)


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        (15, "0f"),
        (16, "10 10"),
        (4095, "1f ff"),
        (4096, "20 10 00"),
        (2**32, "41 00 00 00 00"),
        (2**60 - 1, "7f" + "ff" * 7),
        (2**60, "80 10" + "00" * 7),
        (2**64 - 1, "80" + "ff" * 8),
    ],
)
def test_numbers_are_spelled_as_opendata_spells_them(number: int, spelled: str) -> None:
    """Numbers have OpenData's bytes. The examples include both sides of each change of length."""
    assert encode_number(number) == bytes.fromhex(spelled)
    assert decode_number(bytes.fromhex(spelled)) == (number, len(bytes.fromhex(spelled)))


def test_what_is_no_entry_is_spelled_as_well() -> None:
    """Drafts, listings, segments and sequence blocks also have OpenData's bytes."""
    assert encode_draft(b"a", 1) == bytes.fromhex("01 01 61 00 00 00 00 00 00 00 01")
    assert encode_listing(7, b"a\0b") == bytes.fromhex("0301 00000007 40 610062")
    assert encode_segment(7) == bytes.fromhex("0301 00000000 30 00000007")
    assert encode_sequence_block() == bytes.fromhex("0301 00000000 20")


@given(one=st.tuples(SEGMENTS, KEYS, NUMBERS), other=st.tuples(SEGMENTS, KEYS, NUMBERS))
def test_entries_sort_as_what_they_say(
    one: tuple[int, bytes, int], other: tuple[int, bytes, int]
) -> None:
    """The bytes of entries sort like their segment, key and sequence.

    A scan then reads adjacent bytes.
    """
    spelled, others = encode_entry(*one), encode_entry(*other)

    assert (spelled < others) == (one < other)
    assert (spelled == others) == (one == other)
    assert decode_entry(spelled) == EntryKey(*one)


@given(one=KEYS, other=KEYS)
def test_escaped_keys_sort_as_keys_and_none_begins_another(one: bytes, other: bytes) -> None:
    """Escaped keys sort like keys, and none is a prefix of another.

    With a terminator alone, "a" could follow "a" with a zero.
    """
    assert (escape_key(one) < escape_key(other)) == (one < other)
    assert one == other or not escape_key(one).startswith(escape_key(other))
    assert unescape_key(b"x" + escape_key(one) + b"y", 1) == (one, len(escape_key(one)) + 1)


def test_escaping_ff_would_break_the_order() -> None:
    """An escape for ff, as a text of the RFC has it, would break the order."""

    def escaped(key: bytes) -> bytes:
        return escape_key(key).replace(b"\xff", b"\x01\x03")

    keys = [b"a", b"\xff"]

    assert sorted(keys, key=escape_key) == sorted(keys)
    assert sorted(keys, key=escaped) != sorted(keys)


@given(segment=SEGMENTS, key=KEYS, other=KEYS, relative=NUMBERS)
def test_ranges_hold_what_they_are_of_and_no_more(
    segment: int, key: bytes, other: bytes, relative: int
) -> None:
    """The range of a key or prefix contains exactly its entries, also if it ends in ff."""
    spelled = encode_entry(segment, other, relative)
    first, limit = entry_range(segment, key)
    prefix_first, prefix_end = entry_prefix_range(segment, key)

    assert (first <= spelled < limit) == (other == key)
    assert (prefix_first <= spelled < prefix_end) == other.startswith(key)


@given(one=st.tuples(KEYS, NUMBERS), other=NUMBERS, listed=st.tuples(SEGMENTS, KEYS))
def test_drafts_and_listings_come_back(
    one: tuple[bytes, int], other: int, listed: tuple[int, bytes]
) -> None:
    """Drafts of one key sort by sequence.

    Drafts of several keys need not, because a key has no terminator.
    """
    assert decode_draft(encode_draft(*one)) == one
    assert (encode_draft(*one) < encode_draft(one[0], other)) == (one[1] < other)
    assert decode_listing(encode_listing(*listed)) == listed


@given(data=st.one_of(st.binary(max_size=20), st.binary(max_size=12).map(GOLDEN_HEAD.__add__)))
def test_other_bytes_are_refused_or_are_the_only_ones_of_their_kind(data: bytes) -> None:
    """Other bytes raise UsageError, or encode to themselves.

    Otherwise equal keys could be two records.
    """
    try:
        found = decode_entry(data)
    except UsageError:
        return
    assert encode_entry(found.segment, found.key, found.relative) == data


@pytest.mark.parametrize(
    "spelled",
    [
        "0301 00000001 10 61 00",
        "0301 00000001 10 61 00 10",
        "0301 00000001 10 61 00 00 00",
        "0301 00000001 10 61 01 00 00",
        "0301 00000001 10 61 0103 00 00",
        "0301 00000001 10 61 00 10 05",
        "0301 00000001 10 61 00 81" + "00" * 8,
        "0301 00000001 10 61 00 90" + "00" * 9,
        "0301 00000001 40 61 00 00",
        "0401 00000001 10 61 00 00",
        "",
    ],
)
def test_what_is_cut_off_or_spelled_otherwise_is_refused(spelled: str) -> None:
    """A missing number, an unknown escape or an overlong encoding raises UsageError."""
    with pytest.raises(UsageError, match="not a storage key"):
        decode_entry(bytes.fromhex(spelled))


@pytest.mark.parametrize(("segment", "relative"), [(-1, 0), (2**32, 0), (0, -1), (0, 2**64)])
def test_numbers_that_do_not_fit_are_refused(segment: int, relative: int) -> None:
    """A number out of range raises UsageError. It would have the encoding of another number."""
    with pytest.raises(UsageError, match="the number must be"):
        encode_entry(segment, b"a", relative)
