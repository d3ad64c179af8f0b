"""Lines: the ends of records do not depend on the division of the bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.collection.formats import lines
from tidelog.collection.formats.lines import (
    STEPS_MAX,
    CsvDialect,
    outer_bytes,
    record_ends,
    split_records,
    trim_records,
)

RAW = st.lists(
    st.sampled_from([b"a", b'"', b"\n", b"\r\n", b" ", b"\t", b" " * (STEPS_MAX + 3), b"\x00"]),
    max_size=20,
).map(b"".join)
DIALECTS = pytest.mark.parametrize("dialect", [None, CsvDialect(), CsvDialect(multiline=True)])


@given(data=RAW)
def test_records_end_at_line_ends(data: bytes) -> None:
    """Without the multiline option, line ends in quotes end a csv record too."""
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]

    assert record_ends(data).tolist() == ends
    assert record_ends(data, CsvDialect()).tolist() == ends


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b'a,"b\nc"\nd', [8]),
        (b'a"b\nc"\n', [4, 7]),
        (b'"a""\nb",c\nd\n', [10, 12]),
        (b'"a"b\nc\n', [5, 7]),
        (b'"a\nb"c\nd\n', [3, 7, 9]),
        (b'x,"a\nb","c"d\n"e\nf"\n', [5, 13, 19]),
        (b'a,"b\r\nc"\r\n', [10]),
        (b'a,"b\nc\n', [5, 7]),
        (b'"",""\n"\n"\n', [6, 10]),
    ],
)
def test_records_with_line_ends_in_quotes_end_behind_them(data: bytes, ends: list[int]) -> None:
    """A quote opens a field only at its start. An unreadable line ends at its line end."""
    assert record_ends(data, CsvDialect(multiline=True)).tolist() == ends


def test_an_open_quote_waits_for_what_follows_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An open quote at the end waits for more bytes, up to a limit. A writer may still close it."""
    dialect = CsvDialect(multiline=True)
    data = b'a,b\n1,"2\n3,4\n'

    assert record_ends(data, dialect, final=False).tolist() == [4]
    assert record_ends(data, dialect, final=True).tolist() == [4, 9, 13]
    assert record_ends(data + b'"\n', dialect, final=False).tolist() == [4, 15]
    monkeypatch.setattr(lines, "GAP_BYTES_MAX", 5)
    assert record_ends(data, dialect, final=False).tolist() == [4, 9, 13]
    assert record_ends(data + b'"\n', dialect, final=True).tolist() == [4, 9, 13, 15]


@DIALECTS
@given(data=RAW, cut=st.integers(0, 20))
def test_ends_after_an_end_do_not_depend_on_what_was_before(
    dialect: CsvDialect | None, data: bytes, cut: int
) -> None:
    """A reader of a range does not see the earlier bytes."""
    ends = [0, *record_ends(data, dialect).tolist()]
    start = ends[cut % len(ends)]

    before = record_ends(data[:start], dialect).tolist()
    after = [start + end for end in record_ends(data[start:], dialect).tolist()]

    assert ends == [0, *before, *after]


@DIALECTS
@given(data=RAW)
def test_what_is_known_to_end_stays_so(dialect: CsvDialect | None, data: bytes) -> None:
    """Bytes appended later do not change the known ends."""
    known = record_ends(data, dialect, final=False).tolist()

    assert record_ends(data, dialect).tolist()[: len(known)] == known
    for more in (b'"', b'"\n', b"\n", b'x"\n'):
        assert record_ends(data + more, dialect).tolist()[: len(known)] == known


@DIALECTS
@given(data=RAW)
def test_records_are_split_and_blank_ones_left_out(dialect: CsvDialect | None, data: bytes) -> None:
    """A blank line is not a record. The last record may lack its line end."""
    starts, ends = split_records(data, dialect)

    bounds = [0, *record_ends(data, dialect).tolist()]
    if bounds[-1] < len(data):
        bounds.append(len(data))
    pieces = [(a, b) for a, b in itertools.pairwise(bounds) if data[a:b].strip(b" \t\r\n")]
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == pieces


@given(data=RAW)
def test_records_are_trimmed_of_white_space(data: bytes) -> None:
    """White space around a record is trimmed, in any amount."""
    starts, ends = split_records(data)
    first, last = trim_records(data, starts, ends)
    records = [data[a:b] for a, b in zip(starts, ends, strict=True)]

    trimmed = [data[a : b + 1] for a, b in zip(first, last, strict=True)]
    assert trimmed == [record.strip(b" \t\r\n") for record in records]
    if records:
        low, high = outer_bytes(data, starts, ends)
        assert low.tolist() == [t[0] for t in trimmed]
        assert high.tolist() == [t[-1] for t in trimmed]
