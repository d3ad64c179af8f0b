"""The search for bad rows: few bad rows cost little, and none spoils its neighbours."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.decoding import decoded
from tidelog.collection.formats.casts import cast_values
from tidelog.collection.formats.json import decode as decode_json
from tidelog.collection.formats.lines import Bools, Int64s
from tidelog.collection.formats.records import BadRowSearch

ROWS = 4_000
COLUMNS: dict[str, pa.DataType] = {
    "n": pa.int64(),
    "u": pa.uint64(),
    "s": pa.string(),
    "x": pa.float64(),
    "d": pa.decimal128(10, 2),
    "l": pa.list_(pa.field("item", pa.int64())),
}


def json_lines(bad: str | None) -> bytes:
    """Return lines of which one in a hundred is ``bad``."""
    lines = [
        json.dumps({"n": i, "u": i, "s": f"name {i}", "x": i / 7, "l": [i, None]})
        for i in range(ROWS)
    ]
    if bad is not None:
        lines[50::100] = [bad] * (ROWS // 100)
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "bad",
    [
        "{not json}",
        '{"n": 1}{"n": 2}',
        '{"n": "1"}',
        '{"n": 1.5}',
        '{"n": 7.0}',
        '{"n": 99999999999999999999}',
        '{"u": -1}',
        '{"u": 18446744073709551616}',
        '{"s": 1}',
        '{"x": 1e400}',
        '{"d": 1.255}',
        '{"d": "1.255"}',
        '{"d": 123456789012}',
        '{"d": "x"}',
        '{"l": [1, "x"]}',
        '{"n": 1, "n": 2}',
        '{"s": "\udcff"}',
        "null",
        '{"n":',
    ],
)
def test_bad_lines_of_one_in_a_hundred_have_little_parsed_again(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any kind of bad line, Arrow's reader parses each byte about three times at most."""
    data = json_lines(bad)
    parsed: list[int] = []
    read = decode_json._read

    def counted(chunk: bytes, *given: Any, **more: Any) -> pa.Table | str:
        parsed.append(len(chunk))
        return read(chunk, *given, **more)

    monkeypatch.setattr(decode_json, "_read", counted)
    found = decoded(data, pa.schema(COLUMNS))

    told = str(found.errors.column("reason")[0])
    assert found.errors.num_rows == ROWS // 100
    assert found.rows.num_rows == ROWS - ROWS // 100
    # A block in which the reader stopped counts as a whole.
    assert sum(parsed) < (6 if "twice" in told else 3.2) * len(data)
    assert len(parsed) <= 2 * ROWS // 100 + ROWS // decode_json.STOP_ROWS + 8


@pytest.mark.parametrize(
    ("good", "bad", "wire", "wanted"),
    [
        ("1.25", "1.255", pa.string(), pa.decimal128(10, 2)),
        ("1.25", "x", pa.string(), pa.decimal128(10, 2)),
        (1, -1, pa.int64(), pa.uint64()),
        (1, 300, pa.int64(), pa.int8()),
        (1, (1 << 60), pa.int64(), pa.float64()),
        (1.0, 1.5, pa.float64(), pa.int64()),
        (1.0, float("nan"), pa.float64(), pa.int64()),
        (Decimal("1.50"), Decimal("1.55"), pa.decimal128(10, 2), pa.decimal128(10, 1)),
        (1_000, 1_001, pa.timestamp("ns"), pa.timestamp("us", tz="UTC")),
        (b"text", b"\xff", pa.binary(), pa.string()),
    ],
)
def test_values_that_do_not_fit_have_few_others_cast_again(
    good: object, bad: object, wire: pa.DataType, wanted: pa.DataType, monkeypatch: Any
) -> None:
    """Each bad value costs about one cast, and the others a few in all: fewer than by bisection."""
    values = [bad if n % 100 == 50 else good for n in range(ROWS)]
    tries: list[int] = []
    parse = BadRowSearch._try

    def counted(search: BadRowSearch[Any], rows: Int64s) -> bool:
        tries.append(len(rows))
        return parse(search, rows)

    monkeypatch.setattr(BadRowSearch, "_try", counted)
    cast, unfit = cast_values(pa.array(values, wire), wanted)

    assert unfit.tolist() == [n % 100 == 50 for n in range(ROWS)]
    assert cast.null_count == ROWS // 100
    expected: Any = pa.array([good], wire).cast(wanted)
    assert cast.drop_null().unique() == expected
    assert len(tries) <= ROWS // 100 + 2
    assert sum(tries) <= 1.1 * ROWS


@given(
    bad=st.sets(st.integers(0, 60)),
    guessed=st.lists(st.sets(st.integers(0, 60)), max_size=3),
    cuts=st.sets(st.integers(1, 60)),
)
def test_what_is_kept_does_not_depend_on_guesses_or_blocks(
    bad: set[int], guessed: list[set[int]], cuts: set[int]
) -> None:
    """The kept rows do not depend on guesses or blocks. Guesses, right or wrong, only save work."""

    def parse(rows: Int64s) -> list[int] | None:
        return None if bad & set(rows.tolist()) else rows.tolist()

    def guess_of(wrong: set[int]) -> Any:
        def guess(rows: Int64s) -> Bools:
            return np.array([row in wrong for row in rows.tolist()], np.bool_)

        return guess

    search = BadRowSearch(parse, [guess_of(wrong) for wrong in guessed])
    for block in np.split(np.arange(61, dtype=np.int64), sorted(cuts)):
        search.take(block)

    kept, rows, order = search.ordered()
    assert sorted(search.bad) == sorted(bad)
    assert [row for some in kept for row in some] == rows.tolist()
    in_order = rows if order is None else rows[order]
    assert in_order.tolist() == [n for n in range(61) if n not in bad]
