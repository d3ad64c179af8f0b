"""Inference of a csv dialect and its types agrees with the csv decoder."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.decoding import decoded
from tidelog.collection.formats import casts
from tidelog.collection.formats.csv.decode import header_of
from tidelog.collection.formats.csv.guess import CsvOptions, check_csv, guess_csv
from tidelog.collection.formats.csv.types import types_of
from tidelog.collection.formats.lines import CsvDialect
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.formats.types import sql_type
from tidelog.errors import UsageError
from tidelog.persist.format.duck import duck


def guessed(text: str, **said: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the dialect options that differ from the defaults, and the column types."""
    dialect, schema = guess_csv(text.encode(), CsvOptions(**said), None)
    plain = msgspec.structs.asdict(CsvDialect())
    assert dialect.is_inferred
    found = msgspec.structs.asdict(dialect) | {"inferred": msgspec.UNSET}
    told = {n: v for n, v in found.items() if v != plain[n]}
    return told, {f.name: sql_type(f.type) for f in schema}


@pytest.mark.parametrize(
    ("text", "told", "types"),
    [
        ("a,b\n1,x\n2,y\n", {}, {"a": "BIGINT", "b": "VARCHAR"}),
        ("a;b\n1;2,5\n2;3,5\n", {"delimiter": ";"}, {"a": "BIGINT", "b": "VARCHAR"}),
        ("a\tb\n1\t2\n", {"delimiter": "\t"}, {"a": "BIGINT", "b": "BIGINT"}),
        ("'a','b'\n'1','x,y'\n", {"quote": "'"}, {"a": "BIGINT", "b": "VARCHAR"}),
        ('n,t\n1,"a\nb"\n2,c\n', {"multiline": True}, {"n": "BIGINT", "t": "VARCHAR"}),
        ('x,y\n5" pipe,1\n6" rod,2\n', {}, {"x": "VARCHAR", "y": "BIGINT"}),
        (
            "1,x,2024-01-02\n2,y,2024-01-03\n",
            {"names": ("column1", "column2", "column3")},
            {"column1": "BIGINT", "column2": "VARCHAR", "column3": "DATE"},
        ),
        ("n,m\n1,NA\nNA,2\n", {"nulls": ("NA",)}, {"n": "BIGINT", "m": "BIGINT"}),
        ("n,m\nx,NA\nNA,y\n", {}, {"n": "VARCHAR", "m": "VARCHAR"}),
        ("d\n13.01.2024\n", {"date_format": "%d.%m.%Y"}, {"d": "DATE"}),
        ("d\n01/02/2024\n", {}, {"d": "VARCHAR"}),
        (
            "t\n13.01.2024 10:20\n",
            {"timestamp_format": "%d.%m.%Y %H:%M"},
            {"t": "TIMESTAMP"},
        ),
        ("t\n2024-01-02 03:04:05\n", {}, {"t": "TIMESTAMP"}),
        ("t\n2024-01-02T03:04:05Z\n", {}, {"t": "TIMESTAMPTZ"}),
        (
            "zip,big,x,b,t\n007,99999999999999999999,1.5,true,10:20\n",
            {},
            {
                "zip": "VARCHAR",
                "big": "DECIMAL(38, 0)",
                "x": "DOUBLE",
                "b": "BOOLEAN",
                "t": "TIME",
            },
        ),
        (
            ' id ," x ",ID;,\n1,2,3,4\n',
            {},
            {"id": "BIGINT", " x ": "BIGINT", "ID;": "BIGINT", "column4": "BIGINT"},
        ),
        ("a,b,a\n1,2,x\n", {}, {"a": "BIGINT", "b": "BIGINT"}),
        ("a,b\n", {}, {"a": "VARCHAR", "b": "VARCHAR"}),
    ],
)
def test_what_is_guessed(text: str, told: dict[str, Any], types: dict[str, str]) -> None:
    """The guess finds the dialect and the types of an unknown file. Ambiguous columns stay text."""
    assert guessed(text) == (told, types)


@pytest.mark.parametrize(
    ("texts", "types"),
    [
        (["a,b\n1,2\n", "a,b\n1.5,\n"], {"a": "DOUBLE", "b": "BIGINT"}),
        (["a,b\n1,\n", "b,a\n2024-01-02,x\n"], {"a": "VARCHAR", "b": "DATE"}),
        (["a,b\n1,2\n", "a,b,c\n1,2,true\n"], {"a": "BIGINT", "b": "BIGINT", "c": "BOOLEAN"}),
        (["a,b\n1,2\n", "x,y\nq,r\n"], {"a": "BIGINT", "b": "BIGINT"}),
        (["a,b\n1,2\n", "a,b,c,d,e\nx,x,3,4,5\n"], {"a": "BIGINT", "b": "BIGINT"}),
        (["a,b\n1,2\n", '\xff\xfe,"\n', "\n"], {"a": "BIGINT", "b": "BIGINT"}),
        (["1,x\n2,y\n", "3.5,z\n"], {"column1": "DOUBLE", "column2": "VARCHAR"}),
    ],
)
def test_later_files_tell_of_types_and_columns(texts: list[str], types: dict[str, str]) -> None:
    """A type from the first file alone would make bad rows of later values."""
    first, *others = [(text.encode("latin-1"), False) for text in texts]
    _, schema = guess_csv(first[0], CsvOptions(), None, others=others)
    assert {f.name: sql_type(f.type) for f in schema} == types


def test_a_later_file_tells_of_line_breaks_in_quotes() -> None:
    """The records of that file would otherwise be bad rows."""
    others = [(b'n,t\n2,"a\nb"\n3,"c\nd"\n', False)]
    dialect, schema = guess_csv(b"n,t\n1,x\n", CsvOptions(), None, others=others)
    assert dialect.multiline
    assert {f.name: sql_type(f.type) for f in schema} == {"n": "BIGINT", "t": "VARCHAR"}


@pytest.mark.parametrize(
    ("text", "said", "types"),
    [
        ("a,b\n1,2\n", {"delimiter": ";"}, {"a,b": "VARCHAR"}),
        ("1,2\n3,4\n", {"header": True}, {"1": "BIGINT", "2": "BIGINT"}),
        ("a,b\n1,2\n", {"header": False}, {"column1": "VARCHAR", "column2": "VARCHAR"}),
        ("n\n1\n-\n", {"nulls": ("x",)}, {"n": "VARCHAR"}),
        ("d\n01/02/2024\n", {"date_format": "%m/%d/%Y"}, {"d": "DATE"}),
        ('"a"\n"1"\n', {"quote": ""}, {'"a"': "VARCHAR"}),
    ],
)
def test_what_is_said_is_not_guessed(
    text: str, said: dict[str, Any], types: dict[str, str]
) -> None:
    """An option that the user sets is never replaced by a guess."""
    told, found = guessed(text, **said)

    assert found == types
    assert all(told.get(n, v) == v for n, v in said.items() if n != "header")


CELLS = st.sampled_from(
    [
        "a\nb",
        "",
        *["1", "-7", "1.5", "x", "true", "2024-01-02", "13.01.2024", "NA", "a,b", 'q"', "007"],
    ]
)


@settings(max_examples=150)
@example(rows=[("", "", "")], delimiter="\t")  # A line of tabs is a record here, not a blank line.
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;\t|"),
)
def test_what_is_inferred_is_what_is_decoded(
    rows: list[tuple[str, str, str]], delimiter: str
) -> None:
    """The schema inferred from a sample makes no record of that sample a bad row."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerows([("first", "second", "third"), *rows])
    sample = out.getvalue().encode()
    options = CsvOptions(delimiter=delimiter, quote='"', header=True, multiline=True)

    dialect, schema = guess_csv(sample, options, None)
    header = header_of(sample, dialect) or b""
    found = decoded(sample, schema, format="csv", header=header, dialect=dialect)

    assert schema.names == ["first", "second", "third"]
    assert found.errors.num_rows == 0
    assert found.rows.num_rows == len(rows)


def test_columns_of_files_without_a_header_are_named_by_the_schema_in_its_order() -> None:
    """A given schema names the columns in its own order, also if the dialect is guessed."""
    columns = pa.schema([("n", pa.int64()), ("m", pa.int64())])

    dialect, _ = guess_csv(b"1,2\n3,4\n", CsvOptions(header=False), columns)
    by_guess, _ = guess_csv(b"1,2\n3,4\n", CsvOptions(), columns)

    assert dialect.names == by_guess.names == ("n", "m")
    assert guess_csv(b"m,n\n3,4\n", CsvOptions(), columns)[0].names == ()


def decode(text: str, dialect: CsvDialect, **columns: pa.DataType) -> tuple[list[Any], int]:
    wanted, header = pa.schema(columns), b"a,b\n"
    found = decoded(text.encode(), wanted, format="csv", base=9, header=header, dialect=dialect)
    rows = found.rows.drop_columns(OFFSET).to_pylist()
    return [tuple(row.values()) for row in rows], found.errors.num_rows


def test_a_dialect_is_obeyed() -> None:
    """The decoder applies each option of the dialect, and also accepts ISO 8601 dates."""
    semicolons = CsvDialect(delimiter=";", quote="'", nulls=("NA", "-"), names=("a", "b"))
    text = pa.string()

    found = decode("'x;y';NA\n'NA';-\n\"z\";'it''s'\n", semicolons, a=text, b=text)
    assert found == ([("x;y", None), ("NA", None), ('"z"', "it's")], 0)
    assert decode('"x,1\n', CsvDialect(quote=""), a=text, b=text) == ([('"x', "1")], 0)
    dated = CsvDialect(date_format="%d.%m.%Y", timestamp_format="%d.%m.%Y %H:%M")
    rows, bad = decode(
        "31.12.2024,1.2.2024 03:04\n2024-12-31,2024-02-01T03:04Z\n32.12.2024,\n,1/2/2024\n",
        dated,
        a=pa.date32(),
        b=pa.timestamp("us", tz="UTC"),
    )
    assert bad == 2
    assert rows[0] == rows[1]
    assert [str(value) for value in rows[0]] == ["2024-12-31", "2024-02-01 03:04:00+00:00"]


@pytest.mark.parametrize(
    "said",
    [
        {"delimiter": ",,"},
        {"delimiter": ""},
        {"delimiter": "é"},
        {"quote": "\n"},
        {"delimiter": '"'},
        {"date_format": "%Q"},
        {"date_format": "yyyy"},
        {"timestamp_format": "%d.%"},
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, Any]) -> None:
    """An impossible option raises UsageError before any file is read."""
    with pytest.raises(UsageError):
        check_csv(CsvOptions(**said))


def test_a_thousand_columns_cost_a_few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding runs one query per kind of column, not one per column."""
    queries = 0

    @contextmanager
    def counted() -> Iterator[duckdb.DuckDBPyConnection]:
        nonlocal queries
        queries += 1
        with duck() as connection:
            yield connection

    monkeypatch.setattr(casts, "duck", counted)
    kinds = ("17", "1.5", "x", "2024-01-02", "2024-01-02 03:04", "01/02/2024", "NA", "10:20")
    names = [f"c{n}" for n in range(1000)]
    cells = [kinds[n % len(kinds)] for n in range(1000)]
    sample = "".join(",".join(row) + "\n" for row in (names, cells, cells)).encode()

    dialect, schema = guess_csv(sample, CsvOptions(), None)
    guesses, queries = queries, 0
    header = header_of(sample, dialect) or b""
    found = decoded(sample, schema, format="csv", header=header, dialect=dialect)

    assert (found.rows.num_rows, found.errors.num_rows) == (2, 0)
    assert len(schema) == 1000
    assert guesses < 1000
    assert queries < 10


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("sign", ["^", ";"])
@pytest.mark.parametrize("has_header", [True, False])
def test_a_first_line_that_says_the_delimiter_is_no_record(
    mark: str, end: str, sign: str, has_header: bool
) -> None:
    """A first line such as `sep=;` sets the delimiter and is not a record, as in Excel."""
    lines = [f"sep={sign}", *[sign.join("ab")] * has_header, f"1,5{sign}x", f"2,5{sign}y"]
    sample = (mark + "".join(line + end for line in lines)).encode()

    dialect, schema = guess_csv(sample, CsvOptions(header=has_header), None)
    header = header_of(sample, dialect) or b""
    found = decoded(sample, schema, format="csv", header=header, dialect=dialect)

    assert dialect.delimiter == sign
    assert schema.names == (["a", "b"] if has_header else ["column1", "column2"])
    assert found.errors.num_rows == 0
    assert found.rows.column(1).to_pylist() == ["x", "y"]
    assert found.rows.column(OFFSET).to_pylist()[0] == sample.index(b"1,5")


def test_a_first_line_that_says_the_delimiter_waits_for_its_header() -> None:
    """With only the `sep=` line, the header is still unknown. The file may be incomplete."""
    assert header_of(b"sep=;\n", CsvDialect(delimiter=";")) is None
    assert header_of(b"sep=;\na;b\n1;2\n", CsvDialect(delimiter=";")) == b"sep=;\na;b\n"


SAMPLES = {
    "BOOLEAN": ["true", "false"],
    "BIGINT": ["1", "-20"],
    "DECIMAL(38, 0)": ["1", "9" * 30],
    "DOUBLE": ["1.5", "-2e3"],
    "DATE": ["2024-01-02", "2024-11-30"],
    "TIME": ["10:20:30", "23:59"],
    "TIMESTAMP": ["2024-01-02 03:04:05", "2024-01-02T03:04"],
    "TIMESTAMPTZ": ["2024-01-02 03:04:05Z", "2024-01-02T03:04+02:00"],
}
LATER = [
    *["007", "+5", " 6", "6 ", "0", "-0", "-7", "01001", "1001", "1.0", "1.5", "+1.5", " 1.5"],
    *["1e3", "01.5", ".5", "-.5", "5.", "inf", "-inf", "infinity", "nan", "NaN", "1_000", "0x1f"],
    *["9" * 19, "9" * 30, "0" * 30, "9" * 39, "true", "TRUE", "t", "yes", "1", " true", "x", "-"],
    *["2024-01-02", "2024-1-2", " 2024-01-02", "20240102", "2024/01/02", "02.01.2024"],
    *["2024-01-02 00:00:00", "2024-01-02 03:04:05.5", " 2024-01-02 03:04:05", "2024-02-30"],
    *["10:20", "1:20", "10:20:30.5", " 10:20", "24:00:00", "2024-01-02 03:04:05Z", "epoch"],
]


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_later_value_fits_where_it_would_not_have_changed_the_type(kind: str) -> None:
    """The decoder accepts a later value only if inference would have kept the column's type.

    Inference reads the first 2 MiB of a file. A time with an offset fits both timestamp types,
    because it converts to UTC.
    """
    header, texts = b"v,w\n", SAMPLES[kind]
    sample = header + "".join(f"{one},x\n" for one in texts).encode()
    dialect, schema = guess_csv(sample, CsvOptions(nulls=(), multiline=False), None)
    assert sql_type(schema.field("v").type) == kind
    joined = {one: sql_type(types_of([pa.array([*texts, one])])[0]) for one in LATER}
    same = {one for one, found in joined.items() if found == kind or found == kind + "TZ"}

    data = header + "".join(f"{one},{one}\n" for one in LATER).encode()
    result = decoded(data, schema, format="csv", header=header, dialect=dialect)

    assert {*result.rows.column("w").to_pylist()} == same


def test_a_given_type_takes_what_its_cast_takes() -> None:
    """A given schema decides how to read a text: 007 is a number in a column of integers."""
    wanted = pa.schema({"n": pa.int64()})
    dialect, _ = guess_csv(b"n\n1\n", CsvOptions(header=True), wanted)
    data = b"n\n1\n007\n+5\n 6\n"

    found = decoded(data, wanted, format="csv", header=b"n\n", dialect=dialect)

    assert (dialect.is_inferred, found.rows.column("n").to_pylist()) == (False, [1, 7, 5, 6])
