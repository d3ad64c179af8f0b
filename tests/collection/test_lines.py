"""Lines: records end where they end, however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.collection.lines import (
    STEPS_MAX,
    outer_bytes,
    record_ends,
    split_records,
    trim_records,
)

RAW = st.lists(
    st.sampled_from([b"a", b'"', b"\n", b"\r\n", b" ", b"\t", b" " * (STEPS_MAX + 3), b"\x00"]),
    max_size=20,
).map(b"".join)
QUOTED = pytest.mark.parametrize("quoted", [False, True])


def model_ends(data: bytes, *, quoted: bool) -> list[int]:
    """Return the ends of records, byte by byte."""
    found: list[int] = []
    inside = False
    for place, byte in enumerate(data):
        inside ^= quoted and byte == ord('"')
        if byte == ord("\n") and not inside:
            found.append(place + 1)
    return found


@QUOTED
@given(data=RAW)
def test_records_end_at_line_ends_outside_of_quotes(quoted: bool, data: bytes) -> None:
    """The same as reading byte by byte, only quicker."""
    assert record_ends(data, quoted=quoted).tolist() == model_ends(data, quoted=quoted)


@QUOTED
@given(data=RAW, cut=st.integers(0, 20))
def test_ends_after_an_end_do_not_depend_on_what_was_before(
    quoted: bool, data: bytes, cut: int
) -> None:
    """A range begins where another ended, and is read by somebody who saw no more."""
    ends = [0, *model_ends(data, quoted=quoted)]
    start = ends[cut % len(ends)]

    after = [start + end for end in record_ends(data[start:], quoted=quoted).tolist()]

    assert [e for e in ends if e > start] == after


@QUOTED
@given(data=RAW)
def test_records_are_split_and_blank_ones_left_out(quoted: bool, data: bytes) -> None:
    """What has no ink is no record; the last one may lack its line end."""
    starts, ends = split_records(data, quoted=quoted)

    bounds = [0, *model_ends(data, quoted=quoted)]
    if bounds[-1] < len(data):
        bounds.append(len(data))
    pieces = [(a, b) for a, b in itertools.pairwise(bounds) if data[a:b].strip(b" \t\r\n")]
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == pieces


@given(data=RAW)
def test_records_are_trimmed_of_white_space(data: bytes) -> None:
    """However much there is of it."""
    starts, ends = split_records(data, quoted=False)
    first, last = trim_records(data, starts, ends)
    records = [data[a:b] for a, b in zip(starts, ends, strict=True)]

    trimmed = [data[a : b + 1] for a, b in zip(first, last, strict=True)]
    assert trimmed == [record.strip(b" \t\r\n") for record in records]
    if records:
        low, high = outer_bytes(data, starts, ends)
        assert low.tolist() == [t[0] for t in trimmed]
        assert high.tolist() == [t[-1] for t in trimmed]
