"""Json lines: the result of a line depends on that line alone, not on its neighbours."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.decoding import decoded as decoded_range
from tidelog.collection.formats.lines import record_ends
from tidelog.collection.source.decode import DecodedRows

COLUMNS: dict[str, pa.DataType] = {
    "s": pa.string(),
    "n": pa.int64(),
    "x": pa.float64(),
    "b": pa.bool_(),
    "d": pa.decimal128(10, 2),
    "l": pa.list_(pa.field("item", pa.int64())),
    "t": pa.struct([pa.field("a", pa.int64())]),
}
WANTED = pa.schema(COLUMNS)


def decode(data: bytes, *, base: int = 100, required: tuple[str, ...] = ()) -> DecodedRows:
    """Decode lines that start at offset ``base`` of their file."""
    return decoded_range(data, WANTED, base=base, required=required)


def rows(decoded: DecodedRows) -> list[str]:
    return sorted(repr(row) for row in decoded.rows.to_pylist())


def errors(decoded: DecodedRows) -> list[str]:
    return sorted(repr(row) for row in decoded.errors.to_pylist())


# Fragments of json, valid and broken, for random input.
RAW = st.lists(
    st.sampled_from(
        b'{ } [ ] " : , \\ 1 - .5 {"s": {"n":1} "s" "l":[1,null] null true NaN 1e9'.split()
        + rb'{"s":"a\u0000\ud83d\ude00"} {"u":{"v":[1,{}]}}'.split()
        + b"\n|\r| |\xff|{}\n|\xc3\xa9".split(b"|")
    ),
    max_size=16,
).map(b"".join)

VALUES = {
    "s": st.text(max_size=5) | st.just('quote " and {brace}'),
    "n": st.integers(-(2**63), 2**63 - 1),
    "x": st.floats(allow_nan=False, allow_infinity=False),
    "b": st.booleans(),
    "d": st.integers(-(10**7), 10**7),
    "l": st.lists(st.none() | st.integers(-5, 5), max_size=3),
    "t": st.fixed_dictionaries({"a": st.none() | st.integers(-5, 5)}),
    "unknown": st.integers() | st.text(max_size=3) | st.lists(st.none(), max_size=2),
    "other": st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
}
OBJECTS = st.fixed_dictionaries({}, optional={n: st.none() | v for n, v in VALUES.items()})
ANYTHING = st.dictionaries(
    st.sampled_from([*COLUMNS, "u"]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.lists(st.integers(), max_size=2),
    max_size=3,
)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Return valid objects, objects that may not fit the schema, and lines that are not objects."""
    texts = draw(
        st.lists(
            OBJECTS.map(json.dumps)
            | ANYTHING.map(json.dumps)
            | st.sampled_from(["", "  ", "{", "[1]", '{"n":1}{"n":2}', '{"n":1,"n":2}', "nul"]),
            max_size=8,
        )
    )
    return "".join(text + draw(st.sampled_from(["\n", "\r\n"])) for text in texts).encode()


@settings(max_examples=250)
@given(data=RAW | lines(), cut=st.integers(0, 12))
def test_lines_do_not_know_their_neighbours(data: bytes, cut: int) -> None:
    """If a range is cut at a line end, both parts give the rows, errors and counts of the whole."""
    ends = [0, *record_ends(data).tolist()]
    place = ends[cut % len(ends)]

    whole = decode(data)
    before, after = decode(data[:place]), decode(data[place:], base=100 + place)

    assert rows(whole) == sorted([*rows(before), *rows(after)])
    assert errors(whole) == sorted([*errors(before), *errors(after)])
    names = {*before.dropped, *after.dropped}
    together = {n: before.dropped.get(n, 0) + after.dropped.get(n, 0) for n in names}
    assert dict(whole.dropped) == together


@settings(max_examples=150)
@given(data=RAW | lines())
def test_every_line_is_a_row_or_an_error(data: bytes) -> None:
    """Each line that is not blank gives exactly one row or one error."""
    whole = decode(data)
    offsets: list[Any] = [
        *whole.rows.column("_tidelog_offset").to_pylist(),
        *whole.errors.column("offset").to_pylist(),
    ]
    wanted, at = [], 100
    for line in data.split(b"\n"):
        if line.strip(b" \t\r\n"):
            wanted.append(at)
        at += len(line) + 1

    assert sorted(offsets) == wanted


@settings(max_examples=150)
@given(objects=st.lists(OBJECTS, max_size=6))
def test_what_python_writes_is_read(objects: list[dict[str, Any]]) -> None:
    """Values survive the round trip. Missing fields are null, and unknown fields are counted."""
    data = "".join(json.dumps(o) + "\n" for o in objects).encode()

    decoded = decode(data)

    assert errors(decoded) == []
    found = [
        {n: v for n, v in row.items() if n != "_tidelog_offset"} for row in decoded.rows.to_pylist()
    ]
    assert found == [{n: _plain(n, o.get(n)) for n in COLUMNS} for o in objects]
    unknown = [(n, v is not None) for o in objects for n, v in o.items() if n not in COLUMNS]
    assert dict(decoded.dropped) == {n: unknown.count((n, True)) for n, _ in unknown}


def _plain(name: str, value: Any) -> Any:
    if name == "d" and value is not None:
        return Decimal(value)
    return value


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "the line is not one json value"),
        ('{"n":1}{"n":2}', "the line is not one json value"),
        ("[1]", "the line is not a json object"),
        ("null", "the line is not a json object"),
        ('"text"', "the line is not a json object"),
        ('{"n":"1"}', "column 'n' does not fit its type BIGINT"),
        ('{"n":1.5}', "column 'n' does not fit its type BIGINT"),
        ('{"n":9223372036854775808}', "column 'n' does not fit its type BIGINT"),
        ('{"s":1}', "column 's' does not fit its type VARCHAR"),
        ('{"b":"yes"}', "column 'b' does not fit its type BOOLEAN"),
        ('{"l":[1,"x"]}', "column 'l' does not fit its type BIGINT[]"),
        ('{"t":{"a":"x"}}', "column 't' does not fit its type STRUCT(\"a\" BIGINT)"),
        ('{"d":1.234}', "column 'd' does not fit its type DECIMAL(10, 2)"),
        ('{"n":1,"n":2}', "a field is named twice"),
    ],
)
def test_a_bad_line_says_why(line: str, reason: str) -> None:
    """The error states the reason and the text, so that a user can correct the file."""
    decoded = decode(f'{{"n":1}}\n{line}\n{{"n":2}}\n'.encode())

    (error,) = decoded.errors.to_pylist()
    assert error == {"file": "p", "offset": 108, "reason": reason, "text": line}
    assert decoded.rows.num_rows == 2


def test_bytes_that_are_no_text_say_so() -> None:
    """The error shows the text with replacement characters."""
    (error,) = decode(b'{"s":"\xff"}\n').errors.to_pylist()

    assert error["reason"] == "the line is not UTF-8"
    assert error["text"] == '{"s":"\ufffd"}'


def test_a_null_where_none_may_be_is_an_error() -> None:
    """A row with null in a required column is an error: without a key or time it has no place."""
    decoded = decode(b'{"s":"a","n":1}\n{"s":null,"n":1}\n{"n":1}\n', required=("s",))

    assert decoded.rows.num_rows == 1
    assert [e["reason"] for e in decoded.errors.to_pylist()] == ["column 's' is null"] * 2


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_it() -> None:
    """Some editors write a byte order mark. Only at the start of a file is it ignored."""
    line = b'\xef\xbb\xbf{"n":1}\n'

    assert decode(line, base=0).rows.num_rows == 1
    assert decode(line, base=5).rows.num_rows == 0


@pytest.mark.parametrize("text", ["1E5", "0.1", "-0.0", "5e-324", "NaN", "Infinity", "-Infinity"])
def test_a_float_keeps_its_exact_value(text: str) -> None:
    """A float is the nearest one to the text. Infinity and NaN count only if they are written."""
    (value,) = decode(f'{{"x":{text}}}\n'.encode()).rows.column("x").to_pylist()

    assert repr(value) == repr(float(text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.decimal128(10, 2), "9999999999"),
        (pa.decimal128(10, 2), '"9999999999"'),
        (pa.decimal128(10, 2), "-1e8"),
        (pa.decimal128(18, 2), "9" * 17),
        (pa.decimal128(38, 2), "9" * 38),
    ],
    ids=str,
)
def test_a_number_past_the_digits_of_its_decimal_is_an_error(kind: pa.DataType, text: str) -> None:
    """A number with too many digits for its decimal is an error. Its scale also needs digits."""
    wanted = pa.schema([pa.field("d", kind), pa.field("l", pa.list_(pa.field("item", kind)))])
    data = f'{{"d":1,"l":[]}}\n{{"d":{text},"l":[]}}\n{{"d":2,"l":[{text}]}}\n'.encode()

    decoded = decoded_range(data, wanted)

    assert decoded.rows.column("d").to_pylist() == [Decimal(1)]
    reasons = [str(why)[:24] for why in decoded.errors.column("reason").to_pylist()]
    assert reasons == ["column 'd' does not fit ", "column 'l' does not fit "]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.float64(), "9" * 400),
        (pa.float64(), "1e400"),
        (pa.float64(), "-1e400"),
        (pa.float64(), "-" + "9" * 5_000),
        (pa.float32(), "3.5e38"),
        (pa.float32(), "1e39"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_number_past_the_range_of_its_float_is_an_error(kind: pa.DataType, text: str) -> None:
    """A number too large for its float type is an error. A literal Infinity is accepted."""
    wanted = pa.schema([pa.field("x", kind), pa.field("l", pa.list_(pa.field("item", kind)))])
    data = f'{{"x":-Infinity}}\n{{"x":{text}}}\n{{"x":1,"l":[{text}]}}\n{{"x":3e38}}\n'.encode()

    decoded = decoded_range(data, wanted)

    assert decoded.rows.num_rows == 2
    assert decoded.errors.num_rows == 2
    reasons = [str(why) for why in decoded.errors.column("reason").to_pylist()]
    assert all("does not fit its type" in why or "is too large" in why for why in reasons)
