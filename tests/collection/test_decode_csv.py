"""Csv: the result of a record depends on that record alone, not on its neighbours."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.decoding import decoded as decoded_range
from tidelog.collection.formats.csv.decode import _Records, header_names, header_of
from tidelog.collection.formats.lines import CsvDialect, Int64s, record_ends
from tidelog.collection.source.decode import DecodedRows

HEADER = b"a,b\n"
WANTED = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.string())])


LINES = CsvDialect()
MULTILINE = CsvDialect(multiline=True)
DIALECTS = pytest.mark.parametrize("dialect", [LINES, MULTILINE])


def decode(
    data: bytes, *, base: int = 100, header: bytes = HEADER, dialect: CsvDialect = MULTILINE
) -> DecodedRows:
    """Decode records that start at offset ``base`` of their file."""
    return decoded_range(data, WANTED, format="csv", base=base, header=header, dialect=dialect)


def rows(decoded: DecodedRows) -> list[tuple[Any, ...]]:
    names = ["_tidelog_offset", "a", "b"]
    return sorted(zip(*(decoded.rows.column(n).to_pylist() for n in names), strict=True))


def errors(decoded: DecodedRows) -> list[tuple[Any, ...]]:
    names = ["offset", "reason", "text"]
    return sorted(zip(*(decoded.errors.column(n).to_pylist() for n in names), strict=True))


# Each byte with a meaning in csv, and some plain bytes.
RAW = st.lists(
    st.sampled_from([b"a", b"1", b",", b'"', b"\n", b"\r", b"\r\n", b" ", b"\xc3\xa9", b"\xff"]),
    max_size=24,
).map(b"".join)


@DIALECTS
@settings(max_examples=300)
@example(data=b'1,a"b\n2,c"d\na"b,"c\nd"e"\n', cut=1)
@given(data=RAW, cut=st.integers(0, 10))
def test_records_do_not_know_their_neighbours(dialect: CsvDialect, data: bytes, cut: int) -> None:
    """A range cut at the end of a record gives, in two parts, the rows and errors of the whole."""
    ends = [0, *record_ends(data, dialect).tolist()]
    place = ends[cut % len(ends)]

    whole = decode(data, dialect=dialect)
    before = decode(data[:place], dialect=dialect)
    after = decode(data[place:], base=100 + place, dialect=dialect)

    assert rows(whole) == sorted([*rows(before), *rows(after)])
    assert errors(whole) == sorted([*errors(before), *errors(after)])


@DIALECTS
@settings(max_examples=200)
@given(data=RAW)
def test_every_record_is_a_row_or_an_error(dialect: CsvDialect, data: bytes) -> None:
    """Each record that is not blank gives exactly one row or one error."""
    whole = decode(data, dialect=dialect)
    ends = record_ends(data, dialect).tolist()
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
    """Fields from Python's csv writer survive: quotes, commas, line ends and empty strings."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n" if crlf else "\n")
    writer.writerows(given_)

    decoded = decode(out.getvalue().encode())

    assert [r[1:] for r in rows(decoded)] == given_
    assert errors(decoded) == []


def test_a_field_that_is_empty_is_null_and_in_quotes_it_is_not() -> None:
    """An empty field is null, and a quoted empty field is empty text. Csv has no other null."""
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
        (b'a,"b\n', "a quote is not closed"),
        (b'"a"b,c\n', "text follows a closing quote"),
        (b"a\rb,c\n", "a carriage return is outside quotes"),
    ],
)
@DIALECTS
def test_a_bad_record_says_why(dialect: CsvDialect, record: bytes, reason: str) -> None:
    """A user can correct the record by the reason. The next line is decoded."""
    decoded = decode(b"x,y\n" + record + b"x,y\n", dialect=dialect)

    assert [e[:2] for e in errors(decoded)] == [(104, reason)]
    assert len(rows(decoded)) == 2


def test_columns_that_the_schema_lacks_are_counted_and_missing_ones_are_null() -> None:
    """Files may have different headers."""
    decoded = decode(b"1,2,3\n4,,6\n", header=b"b,more,other\n")

    assert [r[1:] for r in rows(decoded)] == [(None, "1"), (None, "4")]
    assert decoded.dropped == {"more": 1, "other": 2}


def test_the_first_of_two_csv_columns_of_one_name_counts() -> None:
    """If two columns have one name, the first one counts. Inference uses the first one too."""
    assert [r[1:] for r in rows(decode(b"1,2,3\n", header=b"a,b,a\n"))] == [("1", "2")]


def test_the_header_is_read_once_and_whole() -> None:
    """The header excludes a byte order mark, and a quoted line end does not end it."""
    assert header_of(b"a,b", LINES) is None
    assert header_of(b"a,b\nx", LINES) == b"a,b\n"
    assert header_of(b'"a\nb",c\nx', MULTILINE) == b'"a\nb",c\n'
    assert header_of(b'"a\nb', MULTILINE) is None
    assert header_names('\ufeffa,"b,c"\r\n'.encode(), LINES) == ["a", "b,c"]
    decoded = decode(HEADER + b"1,2\n", base=0)
    assert rows(decoded) == [(4, "1", "2")]


# This model reads one byte after another. It resumes after the line of a bad record.
def model_of(data: bytes, *, multiline: bool) -> list[tuple[Any, ...]]:
    """Return the rows with two fields: the offset and both values."""
    found: list[tuple[Any, ...]] = []
    at = 0
    while at < len(data):
        line = data.find(b"\n", at) + 1 or len(data)
        read = _model_record(data if multiline else data[:line], at)
        limit, fields = (line, None) if read is None else read
        blank = not data[at:limit].strip(b" \t\r\n")
        # A lone carriage return makes a record bad, but does not end it.
        odd = fields is not None and any(plain and b"\r" in text for text, plain in fields)
        if fields is not None and len(fields) == 2 and not blank and not odd:
            try:
                texts = [text.decode() or (None if plain else "") for text, plain in fields]
                found.append((100 + at, *texts))
            except UnicodeDecodeError:
                pass
        at = limit
    return found


def _model_record(data: bytes, at: int) -> tuple[int, list[tuple[bytes, bool]]] | None:
    """Read one record. Return its end, and its fields with a flag for unquoted ones."""
    fields: list[tuple[bytes, bool]] = []
    while True:
        text, plain = bytearray(), data[at : at + 1] != b'"'
        if not plain:
            at += 1
            while data[at : at + 1] != b'"' or data[at : at + 2] == b'""':
                if at >= len(data):
                    return None
                text.append(data[at])
                at += 2 if data[at : at + 2] == b'""' else 1
            at += 1
        else:
            while data[at : at + 1] not in (b"", b",", b"\n") and data[at:] != b"\r":
                if data[at : at + 2] == b"\r\n":
                    break
                text.append(data[at])
                at += 1
        fields.append((bytes(text), plain))
        rest = data[at : at + 2]
        if rest[:1] == b",":
            at += 1
            continue
        if rest in (b"", b"\r"):
            return len(data), fields
        if rest[:1] == b"\n" or rest == b"\r\n":
            return at + (1 if rest[:1] == b"\n" else 2), fields
        return None


@DIALECTS
@settings(max_examples=500)
@example(data=b'5" pipe,x\n6" pipe,y\n')
@example(data=b'"a\nb","c"d\n1,2\n')
@example(data=b'\ra,"b\nc"\n1,2\n')
@given(data=RAW)
def test_fields_are_what_a_plain_reader_finds(dialect: CsvDialect, data: bytes) -> None:
    """A quote opens a field only at its start. A record that does not parse costs one line."""
    assert rows(decode(data, dialect=dialect)) == model_of(data, multiline=dialect.multiline)


@DIALECTS
def test_an_inch_mark_swallows_nothing(dialect: CsvDialect) -> None:
    """An inch mark is part of its field. The lines up to the next inch mark are rows."""
    data = b'5" pipe,1\nplain,2\n6" pipe,3\n'

    assert [r[1:] for r in rows(decode(data, dialect=dialect))] == [
        ('5" pipe', "1"),
        ("plain", "2"),
        ('6" pipe', "3"),
    ]


@DIALECTS
def test_a_quote_that_is_not_closed_costs_one_line(dialect: CsvDialect) -> None:
    """An unclosed quote spoils its own line only, not the rest of the range."""
    data = b'a,"b\n1,2\n3,4\n'

    decoded = decode(data, dialect=dialect)

    assert [r[1:] for r in rows(decoded)] == [("1", "2"), ("3", "4")]
    assert [e[0] for e in errors(decoded)] == [100]


@pytest.mark.parametrize("bad", ["a", "a,b,c", 'a,"b', '"a"b,c', "a\rb,c", "a,\udcff"], ids=ascii)
@DIALECTS
def test_bad_records_of_one_in_a_hundred_have_little_parsed_again(
    dialect: CsvDialect, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any kind of bad record, Arrow's reader parses each byte about twice at most."""
    lines = [f'"name, {n}",{n}' for n in range(4_000)]
    lines[50::100] = [bad] * 40
    data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
    parsed: list[int] = []
    parse = _Records.parse

    def counted(records: _Records, some: Int64s) -> pa.Table | None:
        parsed.append(int(np.sum(records.ends[some] - records.starts[some])))
        return parse(records, some)

    monkeypatch.setattr(_Records, "parse", counted)
    decoded = decode(data, dialect=dialect)

    assert (decoded.rows.num_rows, decoded.errors.num_rows) == (3_960, 40)
    assert sum(parsed) <= 2.1 * len(data)
    assert len(parsed) <= 50
