"""Decoding: the result of a record depends on that record alone."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from kit.decoding import decoded, decoded_parquet, parquet
from tidelog.collection.formats.lines import CsvDialect
from tidelog.collection.formats.parquet import group_span, group_starts, pack_range, read_footer
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import decode_range

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


def test_json_values_are_what_they_say() -> None:
    """An offset in a time is applied, and other values decode to their declared types."""
    found = decoded(("\n".join(JSON_LINES) + "\n").encode(), WANTED)
    rows = {row["id"]: row for row in found.rows.to_pylist()}

    assert set(rows) == {None, 1, 2, 3, 4, 5, 9, 10, 18, 21}
    assert str(rows[1]["day"]) == "2024-01-02"
    assert str(rows[9]["at"]) == "2024-01-02 01:04:05+00:00"
    assert rows[10]["name"] == 'quote " and { brace }'
    assert rows[18]["name"] == "é\0"
    assert found.dropped == {"extra": 2, "other": 1, "deep": 1}


def test_csv_values_are_what_they_say() -> None:
    """An empty field is null, a quoted one is text. Fractions are not rounded to integers."""
    data = HEADER + "".join(s + "\n" for s in CSV_LINES).encode()
    dialect = CsvDialect(multiline=True)
    found = decoded(data, WANTED, format="csv", header=HEADER, dialect=dialect)
    rows = {row["id"]: row for row in found.rows.to_pylist()}

    assert set(rows) == {1, 2, 3, 4, 5, 6}
    assert rows[2]["name"] is None
    assert rows[4]["name"] == "two\nlines"
    assert rows[5]["name"] == 'say "so"'
    assert rows[6]["name"] == ""
    assert found.errors.num_rows == 7


@pytest.mark.parametrize(("start", "limit"), [(0, 4), (0, 1), (1, 3), (3, 4), (2, 2)])
def test_parquet_reads_row_groups_out_of_their_bytes_alone(start: int, limit: int) -> None:
    """A reader of a range fetches its row groups and the footer, not the whole file."""
    table = pa.table(
        {"id": list(range(40)), "name": [f"n{i}" for i in range(40)], "more": [1] * 40}
    )
    file, footer = parquet(table, row_group_size=10)
    metadata = read_footer(footer)
    first, last = group_span(metadata, start, limit)
    data = pack_range(footer, file[first:last])
    # A row group belongs to the range with its first byte, so a range may end after that byte.
    bounds = [*group_starts(metadata).tolist(), len(file)]
    found = FileRange(path="f", start=bounds[start], limit=bounds[limit])

    rows = decode_range(data, found, WANTED, format="parquet").rows

    assert rows.column("id").to_pylist() == list(range(start * 10, limit * 10))
    assert rows.column("_tidelog_offset").to_pylist() == list(range(start * 10, limit * 10))
    assert rows.column("price").null_count == rows.num_rows


def test_parquet_rows_without_any_known_column_are_rows() -> None:
    """Rows of a file without any column of the schema are bad rows. They do not vanish."""
    found = decoded_parquet(pa.table({"ID": [6, 7]}), WANTED, required=("id",))

    assert (found.rows.num_rows, dict(found.dropped)) == (0, {"ID": 2})
    assert found.errors.column("text").to_pylist() == ["{'ID': 6}", "{'ID': 7}"]


def test_a_long_field_is_cut_in_the_errors() -> None:
    """The errors collection shows the first 4,096 characters. The file has the whole field."""
    line = json.dumps({"id": "x" * 10_000})
    found = decoded(line.encode(), WANTED)

    assert len(str(found.errors.column("text").to_pylist()[0])) == 4_096
