"""Types: their SQL names, and the conversion of values to them, one row at a time."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.shard_tables import KINDS
from tidelog.collection.formats import casts
from tidelog.collection.formats.casts import fit
from tidelog.collection.formats.types import json_wire, parse_schema, sql_type
from tidelog.errors import UsageError
from tidelog.persist.format.schema import shard_schema


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_is_read_as_it_is_written(kind: str) -> None:
    """A type that `describe` shows is valid in `--schema`."""
    dtype = KINDS[kind][0]

    assert parse_schema(f'"a b" {sql_type(dtype)}') == pa.schema([pa.field("a b", dtype)])


def test_a_schema_is_names_and_types() -> None:
    """Names need quotes only for special characters. Types are DuckDB's, also with parameters."""
    schema = parse_schema(
        'flight int, day date, at timestamptz, "odd ""name" decimal(9, 2), l int[]'
    )

    assert schema.names == ["flight", "day", "at", 'odd "name', "l"]
    assert [str(f.type) for f in schema] == [
        "int32",
        "date32[day]",
        "timestamp[us, tz=UTC]",
        "decimal128(9, 2)",
        "list<item: int32>",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a int,",
        "a int b int",
        "a nonsense",
        "a int default 1",
        "a int primary key",
        "a int check (a > 1)",
        "a int); drop table x; --",
        "a int, A varchar",
        "a int not null",
        "a map(int, int)",
        "a interval",
        "a enum('x')",
        '"a\0b" int',
        'a struct("x\0y" int)',
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    """Only names and types reach DuckDB, and only types that a shard can store."""
    with pytest.raises(UsageError):
        shard_schema(parse_schema(text))


def fitted(values: list[Any], wire: pa.DataType, wanted: pa.DataType) -> list[tuple[bool, Any]]:
    """Return for each value whether it fits, and the converted value."""
    found = fit(pa.table({"c": pa.array(values, wire)}), pa.schema([pa.field("c", wanted)]))
    unfit = found.misfit["c"].tolist() if "c" in found.misfit else []
    return [(row not in unfit, one) for row, one in enumerate(found.table.column("c").to_pylist())]


moment = dt.datetime.fromisoformat
_MICRO = dt.time(12, 34, 56, 123_456)

TEXTS: dict[str, tuple[pa.DataType, list[tuple[str, Any]], list[str]]] = {
    "integer": (
        pa.int32(),
        [("1", 1), (" -7 ", -7), ("+3", 3), ("2147483647", 2**31 - 1)],
        ["1.5", "1e3", "", "one", "2147483648", "0x10", "1_000", "--1"],
    ),
    "unsigned": (pa.uint8(), [("255", 255)], ["256", "-1"]),
    "float": (
        pa.float64(),
        [("1.5", 1.5), ("1e3", 1000.0), ("-0", 0.0), ("inf", math.inf)],
        ["", "x", "1,5", "1e400", "-1e400", "1_000"],
    ),
    "narrow float": (pa.float32(), [("0.5", 0.5)], ["1e39"]),
    "boolean": (pa.bool_(), [("true", True), ("FALSE", False)], ["", "maybe", "2"]),
    "decimal": (
        pa.decimal128(5, 2),
        [("1.25", Decimal("1.25")), ("-999.99", Decimal("-999.99"))],
        ["1000", "x", ""],
    ),
    "date": (
        pa.date32(),
        [
            ("2024-02-29", dt.date(2024, 2, 29)),
            ("2024-2-9", dt.date(2024, 2, 9)),
            ("2024-02-29T00:00:00", dt.date(2024, 2, 29)),
            ("2024-02-29 00:00", dt.date(2024, 2, 29)),
        ],
        [
            "2023-02-29",
            "",
            "infinity",
            "-infinity",
            "tomorrow",
            "2024-02-29T10:00:00",
            "2024-02-29 00:00:01",
            "2024-02-29T00:00:00.001",
            "2024-02-29T00:00:00+05:00",
            "2024-02-29 00:00:00-05",
        ],
    ),
    "time": (
        pa.time64("us"),
        [("12:34:56.5", dt.time(12, 34, 56, 500_000)), ("12:34:56.1234560", _MICRO)],
        ["25:00:00", "", "12:34:56.1234567", "12:34:56+02:00", "24:00:00", "2024-01-01 12:34:56"],
    ),
    "timestamp": (
        pa.timestamp("us"),
        [
            ("2024-01-02T03:04:05", moment("2024-01-02T03:04:05")),
            ("2024-01-02T03:04:05Z", moment("2024-01-02T03:04:05")),
            ("2024-01-02 03:04:05+02:00", moment("2024-01-02T01:04:05")),
            ("2024-01-02T03:04:05.123456000", moment("2024-01-02T03:04:05.123456")),
        ],
        ["infinity", "", "2024-13-01T00:00:00", "x", "2024-01-02T03:04:05.1234567"],
    ),
    "instant": (
        pa.timestamp("us", tz="UTC"),
        [("2024-01-02T03:04:05+02:00", dt.datetime(2024, 1, 2, 1, 4, 5, tzinfo=dt.UTC))],
        ["-infinity", "x", "2024-01-02T03:04:05.000000001Z"],
    ),
    "list": (pa.list_(pa.field("item", pa.int64())), [("[1, 2]", [1, 2])], ["x", "1"]),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_text_becomes_what_it_says_or_is_no_fit(kind: str) -> None:
    """Csv has only text, and json has no dates. A text converts exactly or not at all."""
    dtype, good, bad = TEXTS[kind]

    assert fitted([t for t, _ in good], pa.string(), dtype) == [(True, v) for _, v in good]
    assert [f for f, _ in fitted(bad, pa.string(), dtype)] == [False] * len(bad)
    assert fitted([None], pa.string(), dtype) == [(True, None)]


@settings(max_examples=150)
@given(data=st.data())
def test_text_does_not_know_its_neighbours(data: st.DataObject) -> None:
    """A value that does not fit makes its own row bad, and changes no other row."""
    kind = data.draw(st.sampled_from(sorted(TEXTS)))
    dtype, good, bad = TEXTS[kind]
    pool = [*(t for t, _ in good), *bad, None]
    values = data.draw(
        st.lists(st.sampled_from(pool) | st.text(max_size=3), min_size=1, max_size=5)
    )

    alone = [fitted([value], pa.string(), dtype)[0] for value in values]

    assert repr(fitted(values, pa.string(), dtype)) == repr(alone)


# Types in Parquet files, with values of each.
WIRES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "float": (pa.float64(), [1.0, 1.5, -2.0, 1e300, float("nan"), float("inf"), 3.0]),
    "int": (pa.int64(), [0, 1, 300, -1, 2**40, 2**60 + 1, 20_000]),
    "uint": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("1.50"), Decimal("99999999.99")]),
    "boolean": (pa.bool_(), [True, False]),
    "binary": (pa.binary(), [b"a", b"\xc3\xa9", b"\xff", b"", b"12", b"\x00"]),
    "string": (pa.string(), ["1", "x", "2024-01-01", "true", ""]),
    "nanoseconds": (pa.timestamp("ns"), [0, 1_000, 1_001, 86_400_000_000_000]),
    "seconds": (pa.timestamp("s"), [0, 1, 2**37, -(2**35), 2**50]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(9999, 12, 31), dt.date(1, 1, 1)]),
    "date64": (pa.date64(), [0, 86_400_000]),
    "list of floats": (pa.list_(pa.float64()), [[1.0], [1.5], [], [1.0, None]]),
    "struct": (pa.struct([pa.field("a", pa.float64())]), [{"a": 1.0}, {"a": 1.5}, {"a": None}]),
}


@settings(max_examples=400)
@given(data=st.data())
def test_values_of_other_types_do_not_know_their_neighbours(data: st.DataObject) -> None:
    """The conversion of a value does not depend on the rows read with it."""
    wire, pool = WIRES[data.draw(st.sampled_from(sorted(WIRES)), label="wire")]
    wanted = KINDS[data.draw(st.sampled_from(sorted(KINDS)), label="wanted")][0]
    values = data.draw(st.lists(st.none() | st.sampled_from(pool), min_size=1, max_size=5))

    alone = [fitted([value], wire, wanted)[0] for value in values]

    assert repr(fitted(values, wire, wanted)) == repr(alone)


@pytest.mark.parametrize(
    ("wire", "value", "wanted"),
    [
        (pa.float64(), 1.5, pa.int64()),
        (pa.float64(), float("nan"), pa.int64()),
        (pa.int64(), 300, pa.int8()),
        (pa.int64(), -1, pa.uint64()),
        (pa.decimal128(10, 2), Decimal("1.50"), pa.int64()),
        (pa.decimal128(10, 2), Decimal("1.25"), pa.decimal128(10, 1)),
        (pa.string(), "-51777", pa.decimal128(38, 36)),
        (pa.decimal128(5, 0), Decimal(-51777), pa.decimal128(38, 36)),
        (pa.decimal128(38, 0), Decimal("9" * 38), pa.decimal128(38, 2)),
        (pa.list_(pa.string()), ["-51777"], pa.list_(pa.field("item", pa.decimal128(38, 36)))),
        (pa.int64(), 10**8, pa.decimal128(10, 2)),
        (pa.float64(), 0.125, pa.decimal128(10, 2)),
        (pa.float32(), 0.125, pa.decimal128(10, 2)),
        (pa.int64(), 5, pa.bool_()),
        (pa.float64(), 0.5, pa.bool_()),
        (pa.bool_(), True, pa.int64()),
        (pa.bool_(), False, pa.uint8()),
        (pa.bool_(), True, pa.float64()),
        (pa.bool_(), True, pa.decimal128(10, 2)),
        (pa.list_(pa.bool_()), [True], pa.list_(pa.field("item", pa.int64()))),
        (pa.timestamp("ns"), 1_001, pa.timestamp("us")),
        (pa.timestamp("us"), 86_400_000_000, pa.time64("us")),
        (pa.timestamp("s"), 2**50, pa.time64("us")),
        (pa.timestamp("us"), 86_400_000_001, pa.date32()),
        (pa.timestamp("us", tz="Asia/Tokyo"), 54_000_000_000, pa.date32()),
        (pa.timestamp("s"), 2**32 * 86_400, pa.date32()),
        (pa.list_(pa.float64()), [1.5], pa.list_(pa.field("item", pa.int64()))),
        (
            pa.struct([pa.field("a", pa.float64())]),
            {"a": 1.5},
            pa.struct([pa.field("a", pa.int64())]),
        ),
        (pa.binary(), b"\xff", pa.string()),
        (pa.int64(), 1_700_000_000_000, pa.timestamp("us", tz="UTC")),
        (pa.int32(), 20_000, pa.date32()),
    ],
    ids=str,
)
def test_no_value_is_bent_to_fit(wire: pa.DataType, value: Any, wanted: pa.DataType) -> None:
    """A value that would be rounded, cut or wrapped makes its row bad."""
    (found,) = fitted([value], wire, wanted)

    assert found == (False, None)


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (pa.int64(), 12),
        (pa.uint64(), 12),
        (pa.int8(), 12),
        (pa.float64(), 0.1),
        (pa.float32(), 0.1),
        (pa.string(), " 12.50 "),
        (pa.decimal256(60, 30), Decimal("12.5")),
    ],
    ids=str,
)
@pytest.mark.parametrize("others", [[], [None, None]])
def test_a_number_that_a_decimal_holds_fits_it(
    wire: pa.DataType, value: Any, others: list[None]
) -> None:
    """A number fits a decimal if its value does. Not all values of its type need to fit."""
    (found, *_) = fitted([value, *others], wire, pa.decimal128(10, 2))

    assert found == (True, Decimal(str(value).strip()))


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo", "America/New_York"])
def test_a_midnight_of_utc_is_a_day(zone: str | None) -> None:
    """The date of a timestamp is that in UTC, for any zone in the file."""
    wire = pa.timestamp("us", tz=zone)

    assert fitted([86_400_000_000], wire, pa.date32()) == [(True, dt.date(1970, 1, 2))]


def test_json_has_numbers_booleans_and_text() -> None:
    """Json stores all other types as text, which the decoder parses."""
    assert json_wire(pa.int8()) == pa.int8()
    assert json_wire(pa.date32()) == pa.string()
    assert json_wire(pa.list_(pa.timestamp("us"))) == pa.list_(pa.field("item", pa.string()))
    nested = pa.struct([pa.field("a", pa.binary()), pa.field("b", pa.bool_())])
    assert json_wire(nested) == pa.struct([pa.field("a", pa.string()), pa.field("b", pa.bool_())])


@pytest.mark.parametrize("nested", [False, True])
def test_text_is_its_bytes_in_a_column_of_bytes(nested: bool) -> None:
    """In a column of bytes, a text is its bytes. The decoder reads no escapes in it."""
    texts = ["\\x41", "\u00e9", "a\\", "", "plain", None]
    kinds: list[Any] = [pa.string(), pa.binary()]
    values: list[Any] = [[text] for text in texts] if nested else texts

    found = fitted(values, *([pa.list_(kind) for kind in kinds] if nested else kinds))

    expected = [None if text is None else text.encode() for text in texts]
    assert found == [(True, [one] if nested else one) for one in expected]


@pytest.mark.parametrize(
    ("good", "bad", "wanted"),
    [
        (pa.array([1.0]), pa.array([1.5]), pa.int64()),
        (pa.array([1]), pa.array([300]), pa.int8()),
        (pa.array([1]), pa.array([10**12]), pa.decimal128(10, 2)),
        (pa.array([1.25]), pa.array([float("nan")]), pa.decimal128(10, 2)),
        (pa.array(["1.25"]), pa.array(["1.255"]), pa.decimal128(10, 2)),
        (pa.array(["1.25"]), pa.array(["123456789"]), pa.decimal128(10, 2)),
        (pa.array(["1.25"]), pa.array(["no number"]), pa.decimal128(10, 2)),
        (pa.array([b"a"]), pa.array([b"\xff"]), pa.string()),
        (
            pa.array([Decimal("1.2500")]),
            pa.array([Decimal("1.2550")]),
            pa.decimal128(10, 2),
        ),
    ],
    ids=str,
)
def test_many_values_that_do_not_fit_cost_few_casts(
    good: pa.Array[Any], bad: pa.Array[Any], wanted: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cast takes as long as thousands of values, and half of a column may not fit."""
    casts_done: list[int] = []
    cast = casts._cast

    def counting(array: pa.Array[Any], dtype: pa.DataType) -> pa.Array[Any]:
        casts_done.append(len(array))
        return cast(array, dtype)

    monkeypatch.setattr(casts, "_cast", counting)
    _, unfit = casts.cast_values(pa.concat_arrays([good, bad] * 300), wanted)

    assert unfit.tolist() == [False, True] * 300
    assert len(casts_done) <= 10
