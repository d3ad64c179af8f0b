"""Codecs: Python values as rows of a shard, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidelog
from tidelog.errors import UsageError
from tidelog.persist.format.codec import (
    Codec,
    Moments,
    RecordCodec,
    RecordUpdate,
    decode_contents,
    decode_updates,
    encode_updates,
)


class Place(msgspec.Struct):
    """A nested part of a record."""

    name: str
    height: float | None


@dataclass
class Flight:
    """A record with a field of each type."""

    number: int
    carrier: str
    place: Place
    late: float | None
    tags: list[str]
    raw: bytes
    flown: bool
    day: date
    at: time
    left: datetime
    note: str | None = None


class Pair(NamedTuple):
    """A record that is a tuple and whose key comes after its value."""

    value: int
    key: str
    more: int = 7


class Row(TypedDict):
    """A record that is a dict."""

    key: str
    value: int | None


class Money(msgspec.Struct):
    """A record whose column type Python's type does not determine."""

    amount: Decimal


INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLACES = st.builds(Place, TEXT, st.none() | st.floats(allow_nan=False))
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=UTC)
)
RECORDS: dict[type[Any], tuple[list[str], st.SearchStrategy[Any]]] = {
    Flight: (
        ["carrier", "number"],
        st.builds(
            Flight,
            number=INT64,
            carrier=TEXT,
            place=PLACES,
            late=st.none() | st.floats(allow_nan=False),
            tags=st.lists(TEXT, max_size=3),
            raw=st.binary(max_size=5),
            flown=st.booleans(),
            day=st.dates(),
            at=st.times(),
            left=MOMENTS,
            note=st.none() | TEXT,
        ),
    ),
    Pair: (["key"], st.builds(Pair, INT64, TEXT, INT64)),
    Row: (["key"], st.fixed_dictionaries({"key": TEXT, "value": st.none() | INT64})),
    Place: (["name"], PLACES),
}


@pytest.mark.parametrize("record", RECORDS)
@given(data=st.data())
def test_records_come_back_as_they_went_in(record: type[Any], data: st.DataObject) -> None:
    """A round trip keeps every kind of record, whichever fields are the key."""
    key, values = RECORDS[record]
    codec: Codec[Any] = RecordCodec(record, key=key)
    drawn = data.draw(st.lists(values, max_size=5))

    rows = codec.encode(drawn)

    assert rows.schema.names[: len(key)] == key
    assert codec.decode(rows) == drawn


@given(
    updates=st.lists(
        st.tuples(PLACES, MOMENTS, st.integers(-3, 3).filter(bool)), min_size=1, max_size=5
    )
)
def test_updates_come_back_with_their_times(updates: list[tuple[Place, datetime, int]]) -> None:
    """The updates carry datetimes, and the shard stores them as integers."""
    codec = RecordCodec(Place, key=["name"])

    table = encode_updates(codec, updates, Moments())

    assert table.column("_time").type == pa.int64()
    assert decode_updates(codec, table, Moments()) == [RecordUpdate(*update) for update in updates]


def test_a_shard_is_written_and_read_by_records() -> None:
    """A user writes records to a shard and reads them back, as the docs show."""
    with tidelog.connect("memory://", create=True) as lake:
        codec = RecordCodec(Pair, key=["key"])
        shard = lake.shard("pairs", schema=codec.schema, key=codec.key)
        one, other = Pair(1, "a"), Pair(2, "b")
        updates = [RecordUpdate(one, 0, 1), RecordUpdate(one, 1, -1), RecordUpdate(other, 1, 2)]
        shard.compare_and_append(encode_updates(codec, updates), 0, 2)
        assert decode_contents(codec, shard.snapshot(0).to_arrow()) == [(one, 1)]
        assert decode_contents(codec, shard.snapshot(1).to_arrow(consolidated=True)) == [(other, 2)]


def test_an_earlier_form_of_a_record_is_decoded() -> None:
    """A field added later takes its default if the column is missing or null."""

    @dataclass
    class Now:
        name: str
        height: float | None
        tags: list[str] = field(default_factory=list)
        count: int = 3

    rows = RecordCodec(Place).encode([Place("top", 2.5)])
    codec = RecordCodec(Now)

    assert codec.decode(rows) == [Now("top", 2.5)]
    nulls = [pa.nulls(1, pa.list_(pa.string())), pa.nulls(1, pa.int64())]
    wider = rows.append_column("tags", nulls[0]).append_column("count", nulls[1])
    assert codec.decode(wider) == [Now("top", 2.5)]
    assert RecordCodec(Place).decode(wider) == [Place("top", 2.5)], "as after a field is dropped"


def test_a_schema_says_what_a_type_does_not() -> None:
    """A codec of decimals needs a schema, because Python's Decimal has no precision."""
    schema = pa.schema([("amount", pa.decimal128(10, 2))])
    codec = RecordCodec(Money, schema=schema)

    assert codec.decode(codec.encode([Money(Decimal("3.50"))])) == [Money(Decimal("3.50"))]
    with pytest.raises(UsageError, match="pass schema="):
        RecordCodec(Money)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([Pair(1, "a")], "a Place, not a Pair"),
        ([Place("a", "high")], "does not fit its columns"),  # type: ignore[arg-type]
        ([Place(b"\xff", 1.0)], "does not fit its columns"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_record_is_refused(values: list[Any], problem: str) -> None:
    """The codec raises UsageError for a value that is not a record of its type."""
    with pytest.raises(UsageError, match=problem):
        RecordCodec(Place).encode(values)


@pytest.mark.parametrize("record", [int, list[int], None, 3])
def test_what_is_no_type_of_records_is_refused(record: Any) -> None:
    """The codec refuses a type without fields, because it has no columns."""
    with pytest.raises(UsageError, match=r"has no fields|not a record type"):
        RecordCodec(record)


def test_a_row_that_is_no_record_is_refused() -> None:
    """A row without a field that has no default raises UsageError."""
    rows = pa.table({"value": [1]})
    with pytest.raises(UsageError, match="set a default for each field"):
        RecordCodec(Row, key=["key"]).decode(rows)


@pytest.mark.parametrize("when", [2**63, "soon", 0.5, timedelta(1)])
def test_a_time_that_is_no_number_is_refused(when: Any) -> None:
    """A time must be an integer of 64 bits. Other times need a `Codec64`."""
    codec = RecordCodec(Place)
    with pytest.raises(UsageError, match="must be a 64-bit number"):
        encode_updates(codec, [(Place("a", 1.0), when, 1)])
    with pytest.raises(UsageError, match="must be a 64-bit number"):
        encode_updates(codec, [(Place("a", 1.0), 3, 1)], Moments())
