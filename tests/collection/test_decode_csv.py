"""Csv: what becomes of a record depends on that record alone, whatever stands around it."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelog.collection.binding import SourceRange
from tidelog.collection.decode import Decoded, decode_range
from tidelog.collection.decode_csv import header_names, header_of
from tidelog.collection.lines import record_ends

HEADER = b"a,b\n"
WANTED = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.string())])


def decode(data: bytes, *, base: int = 100, header: bytes = HEADER) -> Decoded:
    """Decode records that stand at ``base`` of their file."""
    limit = base + len(data)
    found = SourceRange(
        path="p", start=base, limit=limit, sum=b"", head=b"", head_bytes=0, header=header
    )
    return decode_range(data, found, WANTED, format="csv")


def rows(decoded: Decoded) -> list[tuple[Any, ...]]:
    names = ["_offset", "a", "b"]
    return sorted(zip(*(decoded.rows.column(n).to_pylist() for n in names), strict=True))


def errors(decoded: Decoded) -> list[tuple[Any, ...]]:
    names = ["offset", "reason", "text"]
    return sorted(zip(*(decoded.errors.column(n).to_pylist() for n in names), strict=True))


# Every byte that means something to a reader of csv, and some that do not.
RAW = st.lists(
    st.sampled_from([b"a", b"1", b",", b'"', b"\n", b"\r", b"\r\n", b" ", b"\xc3\xa9", b"\xff"]),
    max_size=24,
).map(b"".join)


@settings(max_examples=300)
@example(data=b'1,a"b\n2,c"d\na"b,"c\nd"e"\n', cut=1)
@given(data=RAW, cut=st.integers(0, 10))
def test_records_do_not_know_their_neighbours(data: bytes, cut: int) -> None:
    """Cut at any end of a record, the pieces give what the whole gives."""
    ends = [0, *record_ends(data, quoted=True).tolist()]
    place = ends[cut % len(ends)]

    whole = decode(data)
    before, after = decode(data[:place]), decode(data[place:], base=100 + place)

    assert rows(whole) == sorted([*rows(before), *rows(after)])
    assert errors(whole) == sorted([*errors(before), *errors(after)])


@settings(max_examples=200)
@given(data=RAW)
def test_every_record_is_a_row_or_an_error(data: bytes) -> None:
    """None vanishes, and none is two things."""
    whole = decode(data)
    ends = record_ends(data, quoted=True).tolist()
    starts = [0, *ends]
    pieces = [data[a:b] for a, b in zip(starts, [*ends, len(data)], strict=True)]
    there = [100 + a for a, piece in zip(starts, pieces, strict=True) if piece.strip()]

    assert sorted(r[0] for r in [*rows(whole), *errors(whole)]) == there


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\r", exclude_categories=["Cs"]),
    max_size=6,
)


@settings(max_examples=200)
@given(given_=st.lists(st.tuples(TEXTS, TEXTS), max_size=6), crlf=st.booleans())
def test_what_python_writes_is_read(given_: list[tuple[str, str]], crlf: bool) -> None:
    """Quotes, commas and line ends inside of fields; the empty string is told from null."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n" if crlf else "\n")
    writer.writerows(given_)

    decoded = decode(out.getvalue().encode())

    assert [r[1:] for r in rows(decoded)] == given_
    assert errors(decoded) == []


def test_a_field_that_is_empty_is_null_and_in_quotes_it_is_not() -> None:
    """Csv has no null; this is the difference that writers make."""
    assert [r[1:] for r in rows(decode(b'x,\n,y\n"",""\n'))] == [
        ("x", None),
        (None, "y"),
        ("", ""),
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"a\n", "the record has 1 fields, the header 2"),
        (b"a,b,c\n", "the record has 3 fields, the header 2"),
        (b"a,\xff\n", "the record is not UTF-8"),
    ],
)
def test_a_bad_record_says_why(record: bytes, reason: str) -> None:
    """A person corrects the file by it."""
    decoded = decode(b"x,y\n" + record + b"x,y\n")

    assert [e[:2] for e in errors(decoded)] == [(104, reason)]
    assert len(rows(decoded)) == 2


def test_columns_that_the_schema_lacks_are_counted_and_missing_ones_are_null() -> None:
    """Files of one source need not have all the same header."""
    decoded = decode(b"1,2,3\n4,,6\n", header=b"b,more,other\n")

    assert [r[1:] for r in rows(decoded)] == [(None, "1"), (None, "4")]
    assert decoded.dropped == {"more": 1, "other": 2}


def test_of_two_columns_of_one_name_the_first_is_meant() -> None:
    """That is whose type was inferred under that name."""
    assert [r[1:] for r in rows(decode(b"1,2,3\n", header=b"a,b,a\n"))] == [("1", "2")]


def test_the_header_is_read_once_and_whole() -> None:
    """A byte order mark is none of its name; a line end in quotes does not end it."""
    assert header_of(b"a,b") is None
    assert header_of(b"a,b\nx") == b"a,b\n"
    assert header_of(b'"a\nb",c\nx') == b'"a\nb",c\n'
    assert header_names('\ufeffa,"b,c"\r\n'.encode()) == ["a", "b,c"]
    decoded = decode(HEADER + b"1,2\n", base=0)
    assert rows(decoded) == [(4, "1", "2")]
