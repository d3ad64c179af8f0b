"""Decoding: the result of a record depends on that record alone."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.lines import split_records
from tidelog.collection.formats.parquet import group_span, group_starts, pack_range, read_footer
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import Decoded, decode_range

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "name": pa.string(),
    "price": pa.float64(),
    "ok": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", tz="UTC"),
}
WANTED = pa.schema(COLUMNS)

JSON_LINES = [
    '{"id": 1, "price": 1.5, "ok": true, "day": "2024-01-02", "at": "2024-01-02T03:04:05Z"}',
    '{"id": 21, "deep": ' + "[" * 2_000 + "]" * 2_000 + "}",
    "{}null{}",
    '{"id": 2}',
    "{}",
    '  {"id": 3, "name": "indented"}  ',
    '{"id": 4, "extra": {"deep": [1, 2]}, "other": "x"}',
    '{"id": 5, "extra": 7}',
    '{"id": "6"}',
    '{"id": 7.5}',
    '{"id": 8, "day": "not a day"}',
    '{"id": 9, "at": "2024-01-02T03:04:05+02:00"}',
    '{"id": 10, "name": "quote \\" and { brace }"}',
    '{"id": 11, "id": 12}',
    '{"id": 13}{"id": 14}',
    "{",
    "}",
    '"id": 15}',
    "[1, 2]",
    "17",
    "null",
    "not json",
    '{"id": 99999999999999999999}',
    '{"id": 18, "name": "\\u00e9\\u0000"}',
    "",
    "   ",
]
CSV_LINES = [
    "1,a,1.5,true,2024-01-02,2024-01-02T03:04:05Z",
    "2,,,,,",
    '3,"quoted, with a comma",0,false,,',
    '4,"two\nlines",0,false,,',
    '5,"say ""so""",1,true,,',
    '6,"",1,true,,',
    "7,too,few",
    "8,one,1,true,,,too many",
    "nine,a,1,true,,",
    "10.5,a,1,true,,",
    "11,a,one,true,,",
    "12,a,1,maybe,,",
    "13,a,1,true,2024-13-01,",
    "",
]
HEADER = b"id,name,price,ok,day,at\n"


def decode(data: bytes, *, format: str, start: int = 0, header: bytes = b"") -> Decoded:
    found = FileRange(
        path="f",
        start=start,
        limit=start + len(data),
        header=header,
    )
    dialect = CsvDialect(multiline=True)
    return decode_range(data, found, WANTED, format=format, dialect=dialect)


def told(found: Decoded) -> tuple[list[str], list[str]]:
    """Return the rows and errors as sorted texts, times included."""
    rows = sorted(str(row) for row in found.rows.to_pylist())
    return rows, sorted(str(row) for row in found.errors.to_pylist())


@given(lines=st.lists(st.sampled_from(JSON_LINES), max_size=12), data=st.data())
def test_json_decodes_alike_whole_and_cut(lines: list[str], data: st.DataObject) -> None:
    """Two adjacent ranges decode to the rows of one range, so a resumed run gives equal rows."""
    cut = data.draw(st.integers(0, len(lines)))
    head = "".join(line + "\n" for line in lines[:cut]).encode()
    tail = "".join(line + "\n" for line in lines[cut:]).encode()

    whole = decode(head + tail, format="json")
    first, second = decode(head, format="json"), decode(tail, format="json", start=len(head))

    assert told(whole) == tuple(
        sorted(a + b) for a, b in zip(told(first), told(second), strict=True)
    )
    assert whole.rows.num_rows + whole.errors.num_rows == sum(1 for s in lines if s.strip())


@given(lines=st.lists(st.sampled_from(CSV_LINES), max_size=12), data=st.data())
def test_csv_decodes_alike_whole_and_cut(lines: list[str], data: st.DataObject) -> None:
    """Two adjacent ranges of csv decode like one range, although records may contain line ends."""
    cut = data.draw(st.integers(0, len(lines)))
    head = HEADER + "".join(line + "\n" for line in lines[:cut]).encode()
    tail = "".join(line + "\n" for line in lines[cut:]).encode()

    whole = decode(head + tail, format="csv", header=HEADER)
    first = decode(head, format="csv", header=HEADER)
    second = decode(tail, format="csv", start=len(head), header=HEADER)

    assert told(whole) == tuple(
        sorted(a + b) for a, b in zip(told(first), told(second), strict=True)
    )
    assert whole.rows.num_rows + whole.errors.num_rows == sum(1 for s in lines if s.strip())


def test_json_values_are_what_they_say() -> None:
    """An offset in a time is applied, and other values decode to their declared types."""
    found = decode(("\n".join(JSON_LINES) + "\n").encode(), format="json")
    rows = {row["id"]: row for row in found.rows.to_pylist()}

    assert set(rows) == {None, 1, 2, 3, 4, 5, 9, 10, 18, 21}
    assert str(rows[1]["day"]) == "2024-01-02"
    assert str(rows[9]["at"]) == "2024-01-02 01:04:05+00:00"
    assert rows[10]["name"] == 'quote " and { brace }'
    assert rows[18]["name"] == "é\0"
    assert found.dropped == {"extra": 2, "other": 1, "deep": 1}


def test_each_error_says_where_and_why() -> None:
    """Each error names the offset, the text and the reason, so a user can correct the record."""
    lines = ['{"id": 1}', '{"id": "x"}', "not json", '{"id": 2, "day": "x"}']
    found = decode("\n".join(lines).encode(), format="json")

    assert [(e["offset"], e["text"]) for e in found.errors.to_pylist()] == [
        (10, lines[1]),
        (22, lines[2]),
        (31, lines[3]),
    ]
    reasons = found.errors.column("reason").to_pylist()
    assert reasons[0] == "column 'id' does not fit its type BIGINT"
    assert reasons[1] == "the line is not one json value"
    assert "'day' does not fit" in str(reasons[2])


def test_bytes_that_are_no_text_make_a_bad_record_of_their_own() -> None:
    """A line that is not UTF-8 is one bad record, and its neighbours are rows."""
    data = b'{"id": 1}\n{"name": "\xff"}\n{"id": 2}\n'
    found = decode(data, format="json")

    assert found.rows.column("id").to_pylist() == [1, 2]
    assert found.errors.column("reason").to_pylist() == ["the line is not UTF-8"]


def test_csv_values_are_what_they_say() -> None:
    """An empty field is null, and a quoted empty field is text.

    Fractions are not rounded to integers.
    """
    found = decode(
        HEADER + "".join(s + "\n" for s in CSV_LINES).encode(), format="csv", header=HEADER
    )
    rows = {row["id"]: row for row in found.rows.to_pylist()}

    assert set(rows) == {1, 2, 3, 4, 5, 6}
    assert rows[2]["name"] is None
    assert rows[4]["name"] == "two\nlines"
    assert rows[5]["name"] == 'say "so"'
    assert rows[6]["name"] == ""
    assert found.errors.num_rows == 7


def test_columns_of_csv_go_by_name() -> None:
    """Csv columns match by name: files of one source may order them differently or lack some."""
    header = b"other,day,id\n"
    found = decode(header + b"x,2024-01-02,5\n", format="csv", header=header)

    row = found.rows.to_pylist()[0]
    assert (row["id"], str(row["day"]), row["name"]) == (5, "2024-01-02", None)
    assert found.dropped == {"other": 1}


def test_a_required_column_that_is_null_makes_a_row_bad() -> None:
    """A row without its key cannot be upserted, so it becomes an error."""
    found = FileRange(path="f", start=0, limit=0)
    data = b'{"id": 1}\n{"name": "x"}\n'
    decoded = decode_range(data, found, WANTED, format="json", required=["id"])

    assert decoded.rows.num_rows == 1
    assert decoded.errors.column("reason").to_pylist() == ["column 'id' is null"]


@pytest.mark.parametrize(("start", "limit"), [(0, 4), (0, 1), (1, 3), (3, 4), (2, 2)])
def test_parquet_reads_row_groups_out_of_their_bytes_alone(start: int, limit: int) -> None:
    """A reader of a range fetches its row groups and the footer, not the whole file."""
    table = pa.table(
        {"id": list(range(40)), "name": [f"n{i}" for i in range(40)], "more": [1] * 40}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=10)
    file = sink.getvalue()
    footer = file[-int.from_bytes(file[-8:-4], "little") - 8 :]
    metadata = read_footer(footer)
    first, last = group_span(metadata, start, limit)
    data = pack_range(footer, file[first:last])
    # A row group belongs to the range with its first byte, so a range may end after that byte.
    bounds = [*group_starts(metadata).tolist(), len(file)]
    found = FileRange(path="f", start=bounds[start], limit=bounds[limit])

    decoded = decode_range(data, found, WANTED, format="parquet")

    assert decoded.rows.column("id").to_pylist() == list(range(start * 10, limit * 10))
    assert decoded.rows.column("_tidelog_offset").to_pylist() == list(range(start * 10, limit * 10))
    assert decoded.rows.column("price").null_count == decoded.rows.num_rows


def test_parquet_rows_without_any_known_column_are_rows() -> None:
    """Rows of a file without any column of the schema are bad rows. They do not vanish."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"ID": [6, 7]}), sink)
    file = sink.getvalue()
    footer = file[-int.from_bytes(file[-8:-4], "little") - 8 :]
    first, last = group_span(read_footer(footer), 0, 1)
    found = FileRange(path="f", start=0, limit=len(file))

    decoded = decode_range(
        pack_range(footer, file[first:last]), found, WANTED, format="parquet", required=["id"]
    )

    assert (decoded.rows.num_rows, dict(decoded.dropped)) == (0, {"ID": 2})
    assert decoded.errors.column("text").to_pylist() == ["{'ID': 6}", "{'ID': 7}"]


@given(st.lists(st.sampled_from([b"a", b" ", b"\t", b"\n", b"\r\n", b'"', b"x" * 40, b" " * 40])))
def test_records_are_the_lines_that_are_not_blank(pieces: list[bytes]) -> None:
    """The splitter skips blank lines and returns each other line whole, with its white space."""
    data = b"".join(pieces)
    starts, ends = split_records(data)

    assert [data[s:e] for s, e in zip(starts, ends, strict=True)] == [
        line for line in data.splitlines(keepends=True) if line.strip()
    ] or b"\r" in data.replace(b"\r\n", b"")


def test_a_long_field_is_cut_in_the_errors() -> None:
    """The errors collection shows the first 4,096 characters.

    The file still has the whole field.
    """
    line = json.dumps({"id": "x" * 10_000})
    found = decode(line.encode(), format="json")

    assert len(str(found.errors.column("text").to_pylist()[0])) == 4_096
