"""Texts of bad rows: written by columns, and equal to Python's text of each row."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from kit.decoding import decoded_parquet
from kit.work import calls_of
from tidelog.collection.formats.records import TEXT_MAX, row_texts
from tidelog.collection.source.decode import DecodedRows

Draw = Callable[[random.Random], Any]


def readable(value: Any) -> Any:
    """Return a value with bytes as text, by plain recursion."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, dict):
        return {name: readable(one) for name, one in value.items()}
    return [readable(one) for one in value] if isinstance(value, list) else value


def plain_texts(rows: pa.Table) -> list[str]:
    """Return Python's text of each row."""
    return [str(readable(row))[:TEXT_MAX] for row in rows.to_pylist()]


def some_double(draw: random.Random) -> float:
    kinds: list[Callable[[], float]] = [
        lambda: draw.choice([0.0, -0.0, float("inf"), float("nan")]),
        lambda: draw.choice([1, -1, 1.25]) * 10.0 ** draw.randrange(-6, 24),
        lambda: float(draw.randrange(-(10**17), 10**17)),
        lambda: draw.randrange(-(10**8), 10**8) / 10 ** draw.randrange(12),
        lambda: float(struct.unpack("<d", draw.randbytes(8))[0]),
    ]
    return draw.choice(kinds)()


def some_text(draw: random.Random) -> str:
    return "".join(draw.choices("ab \"'\\\n\0\x7fé€😀\u200b", k=draw.randrange(6)))


def some_decimal(scale: int) -> Draw:
    return lambda draw: Decimal(draw.randrange(-(10 ** draw.randrange(1, 18)), 10**9)).scaleb(
        -scale
    )


def some_moment(draw: random.Random) -> dt.datetime:
    whole = dt.datetime.min.replace(tzinfo=dt.UTC) + dt.timedelta(
        seconds=draw.randrange(315_537_897_600)
    )
    return draw.choice([whole, whole.replace(second=0), whole.replace(microsecond=7)])


COLUMNS: Final[dict[str, tuple[pa.DataType, Draw]]] = {
    "int": (pa.int64(), lambda draw: draw.randrange(-(2**63), 2**63)),
    "small 'n": (pa.uint8(), lambda draw: draw.randrange(256)),
    "bool": (pa.bool_(), lambda draw: draw.random() < 0.5),
    "double": (pa.float64(), some_double),
    "float": (pa.float32(), lambda draw: draw.choice([0.0, -0.0, 0.1, 1e10, draw.random()])),
    "text": (pa.string(), some_text),
    "large text": (pa.large_string(), some_text),
    "word": (pa.dictionary(pa.int8(), pa.string()), lambda draw: draw.choice("a'b")),
    "bytes": (pa.binary(), lambda draw: draw.choice([b"a", b"\xff", b"'", draw.randbytes(3)])),
    "money": (pa.decimal128(20, 2), some_decimal(2)),
    "dust": (pa.decimal128(30, 9), some_decimal(9)),
    "at": (pa.timestamp("us"), some_moment),
    "ms": (pa.timestamp("ms"), lambda draw: some_moment(draw).replace(microsecond=5_000)),
    "utc": (pa.timestamp("us", tz="UTC"), some_moment),
    "zoned": (pa.timestamp("s", tz="Asia/Tokyo"), lambda draw: draw.randrange(10**9)),
    "day": (pa.date32(), lambda draw: some_moment(draw).date()),
    "clock": (pa.time64("us"), lambda draw: some_moment(draw).time()),
    "list": (pa.list_(pa.float64()), lambda draw: [some_double(draw), None]),
    "struct": (pa.struct([("a", pa.binary())]), lambda draw: {"a": draw.randbytes(2)}),
    "null": (pa.null(), lambda _: None),
}


@pytest.mark.parametrize("seed", range(4))
def test_the_text_of_a_row_is_what_python_writes(seed: int) -> None:
    """Stored texts must not depend on how the code writes them."""
    draw = random.Random(seed)
    count = draw.choice([1, 7, 400])
    nulls = draw.choice([0.0, 0.2, 1.0])
    table = pa.table(
        {
            name: pa.array(
                [None if draw.random() < nulls else one(draw) for _ in range(count)], kind
            )
            for name, (kind, one) in COLUMNS.items()
        }
    )
    chunked = pa.concat_tables([table.slice(0, count // 2), table.slice(count // 2)])

    assert row_texts(chunked).to_pylist() == plain_texts(table)


def test_a_long_text_is_cut_where_python_would_cut_it() -> None:
    """A row of many megabytes must not be written whole."""
    texts = ["x" * 9_000, "é" * 5_000, "'" + "x" * 5_000, "x" * 4_080, "x" * 5_000 + "'"]
    table = pa.table({"a": texts, "b": texts[::-1], "n": range(5)})

    assert row_texts(table).to_pylist() == plain_texts(table)


def test_rows_without_texts_have_none() -> None:
    """A range without rows gives no texts."""
    assert row_texts(pa.table({"a": pa.array([], pa.int64())})).to_pylist() == []


@pytest.mark.parametrize("fault", ["a fraction", "an amount", "no text"])
def test_the_calls_of_python_do_not_grow_with_the_bad_rows_of_parquet(fault: str) -> None:
    """If nine in ten rows are bad, one call for each would take longer than all good rows."""

    def calls(rows: int) -> int:
        bad = [n % 10 > 0 for n in range(rows)]
        is_id, is_amount, is_text = (fault == one for one in ("a fraction", "an amount", "no text"))
        table = pa.table(
            {
                "id": pa.array([n + 0.5 * (one and is_id) for n, one in enumerate(bad)]),
                "user": pa.array([b"\xff" if one and is_text else b"user" for one in bad]),
                "amount": pa.array(
                    [Decimal("1.255" if one and is_amount else "1.25") for one in bad],
                    pa.decimal128(12, 4),
                ),
            }
        )
        columns: dict[str, pa.DataType] = {
            "id": pa.int64(),
            "user": pa.string(),
            "amount": pa.decimal128(10, 2),
        }
        found: list[DecodedRows] = []
        count = calls_of(lambda: found.append(decoded_parquet(table, pa.schema(columns))))
        assert found[0].errors.num_rows == sum(bad)
        return count

    calls(10)

    assert calls(4_000) - calls(500) < 500
