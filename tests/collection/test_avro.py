"""Avro: each type becomes a column, and damaged or hostile bytes become bad rows."""

from __future__ import annotations

import datetime as dt
import io
import math
import zlib
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.avro import MARKER, avro_blocks, avro_bytes, block, header, long, record
from kit.decoding import range_of
from tidelog.collection.formats.avro import container
from tidelog.collection.formats.avro.container import (
    ROW_BITS,
    AvroHeader,
    pack_blocks,
    read_header,
)
from tidelog.collection.formats.avro.schema import (
    TYPES_MAX,
    changed_avro_types,
    parse_avro_schema,
)
from tidelog.collection.formats.types import parse_schema, sql_type_of
from tidelog.collection.source.decode import DecodedRows, decode_range
from tidelog.collection.source.infer import _storable
from tidelog.errors import CorruptionError

N = record(n="long")
UTC = dt.UTC


def head_of(file: bytes) -> AvroHeader:
    found = read_header(file)
    assert found is not None
    return found


def decoded(file: bytes, wanted: str | None = None, **more: Any) -> DecodedRows:
    """Decode a whole file; by default into the columns that a source infers."""
    head = head_of(file)
    columns = pa.schema(map(_storable, head.schema.columns))
    schema = columns if wanted is None else parse_schema(wanted)
    found = range_of(file[head.size :], base=head.size)
    data = pack_blocks(file[: head.size], file[head.size :])
    return decode_range(data, found, schema, format="avro", **more)


def values(kind: Any, *given: Any, wanted: str | None = None) -> list[Any]:
    """Return the values of a column of a type, as they come out."""
    file = avro_bytes(record(x=kind), [{"x": one} for one in given])
    found = decoded(file, wanted)
    assert found.errors.num_rows == 0, found.errors.to_pylist()
    return list(found.rows.column("x").to_pylist())


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


WITH_ZONE = dt.datetime(2024, 2, 29, 1, 2, 3, 456_000, UTC)
MOMENT = WITH_ZONE.replace(tzinfo=None)
ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
PRICE = logical("bytes", "decimal", precision=10, scale=2)
FIXED_PRICE = {"type": "fixed", "name": "p", "size": 6, **logical("", "decimal", precision=10)}
FIXED_PRICE |= {"type": "fixed", "scale": 2}
SMALL = {"type": "record", "name": "s", "fields": [{"name": "a", "type": ["null", "string"]}]}
TYPES: list[tuple[Any, str, list[Any], list[Any]]] = [
    ("boolean", "BOOLEAN", [True, False], [True, False]),
    ("int", "INTEGER", [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
    ("long", "BIGINT", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    ("float", "FLOAT", [1.5, -0.25], [1.5, -0.25]),
    ("double", "DOUBLE", [1e300, 0.1], [1e300, 0.1]),
    ("bytes", "BLOB", [b"\xff\0", b""], [b"\xff\0", b""]),
    ("string", "VARCHAR", ["Zürich", ""], ["Zürich", ""]),
    ({"type": "fixed", "name": "f", "size": 2}, "BLOB", [b"ab", b"\xff\0"], [b"ab", b"\xff\0"]),
    (ENUM, "VARCHAR", ["B", "A"], ["B", "A"]),
    (["null", ENUM], "VARCHAR", ["B", None], ["B", None]),
    (["string", "null"], "VARCHAR", ["x", None], ["x", None]),
    (["long"], "BIGINT", [7], [7]),
    ({"type": "array", "items": "string"}, "VARCHAR[]", [["a", "b"], []], [["a", "b"], []]),
    ({"type": "array", "items": ["null", "int"]}, "INTEGER[]", [[1, None]], [[1, None]]),
    (
        {"type": "map", "values": "long"},
        'STRUCT("key" VARCHAR, "value" BIGINT)[]',
        [{"a": 1}, {}],
        [[{"key": "a", "value": 1}], []],
    ),
    (SMALL, 'STRUCT("a" VARCHAR)', [{"a": "x"}, {"a": None}], [{"a": "x"}, {"a": None}]),
    (["null", SMALL], 'STRUCT("a" VARCHAR)', [{"a": "x"}, None], [{"a": "x"}, None]),
    (PRICE, "DECIMAL(10, 2)", [Decimal("-1.25"), Decimal(0)], [Decimal("-1.25"), Decimal("0.00")]),
    (FIXED_PRICE, "DECIMAL(10, 2)", [Decimal("99999999.99")], [Decimal("99999999.99")]),
    (logical("int", "date"), "DATE", [dt.date(1969, 12, 31)], [dt.date(1969, 12, 31)]),
    (logical("int", "time-millis"), "TIME", [dt.time(1, 2, 3)], [dt.time(1, 2, 3)]),
    (logical("long", "time-micros"), "TIME", [dt.time(1, 2, 3, 4)], [dt.time(1, 2, 3, 4)]),
    (logical("long", "timestamp-millis"), "TIMESTAMPTZ", [WITH_ZONE], [WITH_ZONE]),
    (logical("long", "timestamp-micros"), "TIMESTAMPTZ", [WITH_ZONE], [WITH_ZONE]),
    (
        logical("long", "timestamp-nanos"),
        "TIMESTAMPTZ",
        [1_000],
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)],
    ),
    (logical("long", "local-timestamp-millis"), "TIMESTAMP", [MOMENT], [MOMENT]),
    (logical("long", "local-timestamp-micros"), "TIMESTAMP", [MOMENT], [MOMENT]),
    (logical("string", "uuid"), "VARCHAR", ["no uuid"], ["no uuid"]),
    (logical("string", "unknown"), "VARCHAR", ["x"], ["x"]),
    (["int", "long"], "BIGINT", [1, 2**40], [1, 2**40]),
    (["null", "int", "double"], "DOUBLE", [1, 0.5, None], [1.0, 0.5, None]),
    (
        ["null", "long", "string", SMALL],
        "JSON",
        [1, "x", {"a": "y"}, None],
        ["1", '"x"', '{"a":"y"}', None],
    ),
    (
        {"type": "array", "items": ["long", "string"]},
        "VARCHAR[]",
        [[1, "x"], []],
        [["1", '"x"'], []],
    ),
]


@pytest.mark.parametrize(("kind", "sql", "given", "expected"), TYPES)
def test_each_type_becomes_a_column(
    kind: Any, sql: str, given: list[Any], expected: list[Any]
) -> None:
    """The column has the type that a source infers, and the values are unchanged."""
    file = avro_bytes(record(x=kind), [{"x": one} for one in given])
    (column,) = map(_storable, head_of(file).schema.columns)

    assert sql_type_of(column) == sql
    assert values(kind, *given) == expected


def test_a_field_of_nulls_has_no_type_and_loses_nothing() -> None:
    """It takes no bytes, and the values of the other fields stay in their places."""
    schema = record(a="null", n="long", b=["null"])
    file = avro_bytes(schema, [{"a": None, "n": 1, "b": None}])

    found = decoded(file, "n bigint")
    assert found.rows.column("n").to_pylist() == [1]
    assert found.dropped == {}


def test_fields_are_found_by_name() -> None:
    """A file with another schema has nulls for missing fields, and unknown ones are counted."""
    file = avro_bytes(
        record(new="string", n="long", s=SMALL), [{"new": "x", "n": 1, "s": {"a": "y"}}] * 2
    )

    found = decoded(file, "n integer, gone text, s struct(b bigint)")
    assert [(r["n"], r["gone"]) for r in found.rows.to_pylist()] == [(1, None)] * 2
    assert found.dropped == {"new": 2, "s.a": 2}
    folded = decoded(file, "N integer")
    assert folded.dropped["n"] == 2


def test_a_row_whose_value_does_not_fit_is_bad_alone() -> None:
    """The address names the block's first byte and the number of the row."""
    file = avro_bytes(
        record(n="long", u=["long", "string"]),
        [
            {"n": 1, "u": "1"},
            {"n": 2**40, "u": 2},
            {"n": 3, "u": "no number"},
            {"n": 4, "u": 4},
        ],
    )
    first = head_of(file).size << ROW_BITS

    found = decoded(file, "n integer, u integer")
    assert [(r["n"], r["u"]) for r in found.rows.to_pylist()] == [(1, 1), (4, 4)]
    errors = found.errors.to_pylist()
    assert [e["offset"] for e in errors] == [first + 1, first + 2]
    assert [e["reason"] for e in errors] == [
        "column 'n' does not fit its type INTEGER",
        "column 'u' does not fit its type INTEGER",
    ]
    assert "no number" in errors[1]["text"]


def test_text_that_is_not_utf_8_is_a_bad_row() -> None:
    """Writers of other languages need not check text; the other rows of the block stay."""
    rows = b"".join(long(len(one)) + one for one in (b"a\xff", b"x"))
    file = header(record(x="string")) + block(2, rows)

    found = decoded(file)
    assert found.rows.column("x").to_pylist() == ["x"]
    assert found.errors.column("reason").to_pylist() == ["column 'x' does not fit its type VARCHAR"]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_each_codec_is_read_and_its_damage_is_one_bad_row(codec: str) -> None:
    """A block that cannot be inflated costs its own rows alone."""
    rows = [{"n": n} for n in range(600)]
    file = bytearray(avro_bytes(N, rows, rows_a_block=200, codec=codec))
    assert decoded(bytes(file)).rows.column("n").to_pylist() == [*range(600)]
    second = head_of(bytes(file)).size + len(avro_blocks(N, rows[:200], 200, codec))
    third = second + len(avro_blocks(N, rows[200:400], 200, codec))
    file[second + 4 : third - 16] = b"\xff" * (third - 16 - second - 4)

    found = decoded(bytes(file))
    assert found.rows.column("n").to_pylist() == [*range(200), *range(400, 600)]
    (error,) = found.errors.to_pylist()
    assert error["offset"] == second << ROW_BITS
    assert f"the block at byte {second:,} cannot be decoded" in error["reason"]


def test_a_block_that_inflates_without_end_is_one_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may claim to be many: no more than a limit is inflated."""
    monkeypatch.setattr(container, "INFLATED_BYTES_MAX", 1 << 20)
    bomb = zlib.compress(bytes(64 << 20), wbits=-15)
    file = header(N, "deflate") + long(1) + long(len(bomb)) + bomb + MARKER

    (error,) = decoded(file).errors.to_pylist()
    assert "more than 256 MiB" in error["reason"]


HUGE = long(2**62)
DAMAGED: list[tuple[str, Any, bytes, str]] = [
    ("too few rows", N, block(2, long(5)), "says that it has 2 rows"),
    ("too many rows", N, block(1, long(5) + long(6)), "1 bytes follow its last row"),
    ("a huge count", N, long(2**62) + long(1) + long(5) + MARKER, "a block has up to"),
    ("a negative count", N, long(-1) + long(1) + long(5) + MARKER, "a block has up to"),
    ("a huge size", N, long(1) + HUGE + long(5) + MARKER, "before the file's marker, but says"),
    ("a long text", record(x="string"), block(1, HUGE + b"abc"), "EOFError"),
    ("a negative text", record(x="string"), block(1, long(-5) + b"abc"), "Error"),
    ("a long list", record(x={"type": "array", "items": "long"}), block(1, HUGE + b"abc"), "Error"),
    ("an unknown branch", record(x=["null", "long"]), block(1, long(7) + b"abc"), "IndexError"),
    ("an unknown symbol", record(x=ENUM), block(1, long(2)), "Error"),
    ("a number of 70 bits", N, block(1, b"\xff" * 10), "Error"),
    ("an int of 33 bits", record(x="int"), block(1, long(2**32)), "ArrowInvalid"),
    ("a decimal of 32 bytes", record(x=PRICE), block(1, long(32) + b"1" * 32), "ValueError"),
    ("rows without bytes", record(x="null"), block(1, HUGE), "10 bytes follow its last row"),
    ("more rows in their place", N, block(1, long(5) + long(1) + long(6)), "2 bytes follow"),
    ("no bytes", N, MARKER, "ends within its first bytes"),
    ("a marker within", N, block(1, long(5) + MARKER), "before the file's marker, but says"),
]


@pytest.mark.parametrize(
    ("schema", "bad", "why"), [one[1:] for one in DAMAGED], ids=[one[0] for one in DAMAGED]
)
def test_a_damaged_block_is_a_bad_row_and_the_next_ones_are_read(
    schema: Any, bad: bytes, why: str
) -> None:
    """No block stops a source, and no row of a damaged block counts: it may be wrong too."""
    good = block(1, long(7)) if schema is N else b""
    found = decoded(header(schema) + good + bad + good)

    assert found.rows.num_rows == (2 if good else 0)
    reasons = [str(one["reason"]) for one in found.errors.to_pylist()]
    assert why in reasons[0]
    assert all(reason.startswith("the block at byte") for reason in reasons)


@pytest.mark.parametrize("end", [1, 5, 17, 18, 19])
def test_a_file_that_ends_within_a_block_has_a_bad_row(end: int) -> None:
    """An object of a cloud store never grows, so its torn block is bound."""
    file = avro_bytes(N, [{"n": 1}, {"n": 2}], rows_a_block=1)
    found = decoded(file[: len(file) - 19 + end][: len(file) - 1])

    assert found.rows.column("n").to_pylist() == [1]
    assert found.errors.num_rows == 1


RECURSIVE = record(n="long", next=["null", "row"])
DEEP: Any = "long"
for _ in range(5_000):
    DEEP = {"type": "array", "items": DEEP}
WIDE: Any = record(x="long")
for number in range(20):
    WIDE = {
        "type": "record",
        "name": f"r{number}",
        "fields": [{"name": "a", "type": WIDE}, {"name": "b", "type": WIDE["name"]}],
    }
SCHEMAS: dict[str, tuple[Any, str]] = {
    "recursive": (RECURSIVE, r"'row' contains itself"),
    "a list of itself": (record(x={"type": "array", "items": "row"}), r"contains itself"),
    "no record": ("long", r"not a record"),
    "no fields": (record(), r"no fields"),
    "no json": ("{", r"not valid: JSONDecodeError"),
    "an unknown type": (record(x="nothing"), r"'nothing', which it does not define"),
    "no type": (record(x=7), r"7 is not a type"),
    "no items": (record(x={"type": "array"}), r"KeyError"),
    "one name twice": ({**record(), "fields": [{"name": "a", "type": "int"}] * 2}, r"two fields"),
    "values without bytes": (record(x={"type": "array", "items": "null"}), r"without bytes"),
    "too many": (WIDE, rf"more than {TYPES_MAX:,} types"),
    "a negative size": (record(x={"type": "fixed", "name": "f", "size": -1}), r"negative size"),
}


@pytest.mark.parametrize(("schema", "why"), SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_without_columns_is_refused_before_a_row_is_read(schema: Any, why: str) -> None:
    """The message has the reason, and no hostile schema takes long."""
    head = head_of(header('"long"' if schema == "long" else schema))

    with pytest.raises(CorruptionError, match=why):
        _ = head.schema


def test_a_deep_schema_is_refused() -> None:
    """Python's parser of json gives up on it."""
    text = '{"type":"array","items":' * 100_000

    with pytest.raises(CorruptionError, match="not valid"):
        parse_avro_schema(text)


@pytest.mark.parametrize(("data", "why"), [
    (b"PAR1", r"is not avro"),
    (b"Obj\x01" + long(1) + long(-3), r"header of the avro file is damaged"),
    (b"Obj\x01" + b"\xff" * 12, r"more than 64 bits"),
    (header(N, "lzo"), r"codec 'lzo'"),
])  # fmt: skip
def test_a_file_that_is_not_avro_is_refused(data: bytes, why: str) -> None:
    """The reason names the fault."""
    with pytest.raises(CorruptionError, match=why):
        read_header(data)


@given(end=st.integers(0, len(header(N)) - 1))
def test_a_header_that_is_cut_is_not_complete(end: int) -> None:
    """Its writer may still be at work, so this is no error."""
    assert read_header(header(N)[:end]) is None


def test_notices_name_the_columns_whose_values_change() -> None:
    """A user learns of them at creation."""
    nanos = {"type": "array", "items": logical("long", "timestamp-nanos")}
    schema = parse_avro_schema(
        head_of(header(record(n="long", u=["long", "string"], t=nanos))).schema_text
    )

    first, second = changed_avro_types(schema)
    assert first == "column 'u' is a union of several types: its values become JSON"
    assert second.startswith("column 't' has nanoseconds")


LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=5),
    "string": st.text(max_size=5),
}


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Return a schema, and a strategy for its values."""
    form = draw(st.sampled_from(["leaf", "null", "array", "map", "record"] if depth else ["leaf"]))
    if form == "leaf":
        name = draw(st.sampled_from(sorted(LEAVES)))
        return name, LEAVES[name]
    kind, one = draw(typed(depth - 1))
    if form == "null":
        return (kind, one) if isinstance(kind, list) else (["null", kind], st.none() | one)
    if form == "array":
        return {"type": "array", "items": kind}, st.lists(one, max_size=3)
    if form == "map":
        return {"type": "map", "values": kind}, st.dictionaries(
            st.text(max_size=3), one, max_size=3
        )
    name = f"r{draw(st.uuids()).hex}"
    other, another = draw(typed(depth - 1))
    fields = [{"name": "a", "type": kind}, {"name": "b", "type": other}]
    return {"type": "record", "name": name, "fields": fields}, st.fixed_dictionaries(
        {"a": one, "b": another}
    )


def stored(value: Any, kind: Any) -> Any:
    """Return a value as a collection stores it: a map is a list of entries."""
    kind = kind[1] if isinstance(kind, list) else kind
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "array":
        return [stored(one, kind["items"]) for one in value]
    if kind["type"] == "map":
        return [{"key": key, "value": stored(one, kind["values"])} for key, one in value.items()]
    return {one["name"]: stored(value[one["name"]], one["type"]) for one in kind["fields"]}


@settings(max_examples=60)
@given(
    kind=typed(),
    codec=st.sampled_from(["null", "deflate"]),
    interval=st.integers(1, 400),
    data=st.data(),
)
def test_rows_that_fastavro_writes_are_read_back(
    kind: tuple[Any, st.SearchStrategy[Any]], codec: str, interval: int, data: st.DataObject
) -> None:
    """Any schema and values, in blocks of any size."""
    schema = record(x=kind[0])
    rows = data.draw(st.lists(kind[1], max_size=150))
    file = io.BytesIO()
    fastavro.writer(file, schema, [{"x": one} for one in rows], codec=codec, sync_interval=interval)

    found = decoded(file.getvalue())
    assert found.errors.num_rows == 0
    assert found.rows.column("x").to_pylist() == [stored(one, kind[0]) for one in rows]


@settings(max_examples=150)
@given(
    place=st.integers(0, 10_000),
    byte=st.integers(0, 255),
    codec=st.sampled_from(["null", "deflate", "snappy", "zstandard", "xz"]),
)
@example(place=0, byte=255, codec="null")
def test_a_changed_byte_never_stops_a_source(place: int, byte: int, codec: str) -> None:
    """Each result is rows and bad rows, or one reason for the file; never another error."""
    schema = record(n="long", x=["null", "string"], l={"type": "array", "items": "int"})
    rows = [{"n": n, "x": "text" * (n % 3) or None, "l": [n] * (n % 4)} for n in range(40)]
    file = bytearray(avro_bytes(schema, rows, rows_a_block=9, codec=codec))
    file[place % len(file)] = byte
    data = bytes(file)
    try:
        head = read_header(data)
        found = None if head is None else decoded(data, "n bigint, x text, l int[]")
    except CorruptionError:
        return

    assert found is None or found.rows.num_rows + found.errors.num_rows <= 41


@pytest.mark.parametrize("number", [math.inf, -math.inf, 1e308])
def test_numbers_that_a_float_cannot_hold_are_bad_rows(number: float) -> None:
    """A double is not rounded to infinity."""
    file = avro_bytes(record(x="double"), [{"x": number}])

    found = decoded(file, "x float")
    assert found.rows.num_rows == (0 if number == 1e308 else 1)
