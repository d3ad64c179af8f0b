"""Values from other programs that must not change silently."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.decoding import decoded as decoded_text
from kit.decoding import decoded_parquet as decoded
from tidelog.collection.formats.parquet import changed_types
from tidelog.collection.formats.types import sql_type, without_maps
from tidelog.collection.source.infer import sample_schema
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError
from tidelog.location import open_location
from tidelog.persist.format.schema import canonical_type, shard_schema


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.string()])
def test_a_moment_of_96_bits_is_what_it_was(kind: pa.DataType) -> None:
    """Spark's 96-bit timestamps keep their values, also in the year 9999, beyond 2^63 ns."""
    days = [dt.date(9999, 12, 31), dt.date(2020, 1, 1)]
    table = pa.table({"t": pa.array(days).cast(pa.timestamp("us"))})

    found = decoded(table, pa.schema([("t", kind)]), use_deprecated_int96_timestamps=True)

    assert not found.errors.num_rows
    assert [str(value)[:10] for value in found.rows.column("t").to_pylist()] == [
        "9999-12-31",
        "2020-01-01",
    ]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.string()])
def test_a_moment_of_96_bits_is_not_cut(kind: pa.DataType) -> None:
    """A nonzero fraction of a microsecond, as Impala writes it, makes a bad row."""
    nanos = pa.array([1_001, None, 2_000, -1, -1_000], pa.timestamp("ns"))
    table = pa.table({"t": nanos, "n": [0, 1, 2, 3, 4]})

    found = decoded(
        table,
        pa.schema([("n", pa.int64()), ("t", kind)]),
        use_deprecated_int96_timestamps=True,
        row_group_size=2,
    )

    assert found.errors.column("offset").to_pylist() == [0, 3]
    assert found.rows.column("n").to_pylist() == [1, 2, 4]
    assert found.rows.column("_tidelog_offset").to_pylist() == [1, 2, 4]


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.time32("ms"), pa.time64("ns")], ids=str)
def test_a_time_of_day_beyond_the_day_is_an_error(kind: Any) -> None:
    """A time of day outside the day makes a bad row, as 24:00:00 does in json and csv."""
    day = {"us": 86_400_000_000, "ms": 86_400_000, "ns": 86_400_000_000_000}[kind.unit]
    table = pa.table({"t": pa.array([day, 0, -1000, day - 1000], kind)})

    found = decoded(table, pa.schema([("t", pa.time64("us"))]))

    assert found.errors.column("offset").to_pylist() == [0, 2]


def within(values: pa.Array[Any], how: str) -> pa.Array[Any]:
    """Return the values, each within a list, a struct, a list of structs, or a map."""
    ones: Any = pa.array(range(len(values) + 1), pa.int32())
    if how == "list":
        return pa.ListArray.from_arrays(ones, values)
    if how == "map":
        found: Any = pa.MapArray.from_arrays(
            ones, pa.array(["k"] * len(values), pa.string()), values
        )
        return cast("pa.Array[Any]", found)
    inner = pa.StructArray.from_arrays([values], names=["x"])
    return inner if how == "struct" else pa.ListArray.from_arrays(ones, inner)


HOWS = ["list", "struct", "list of structs", "map"]


def plain_within(kind: pa.DataType, how: str) -> pa.Schema:
    shape = within(pa.array([], kind), how).type
    return pa.schema([pa.field("t", canonical_type(without_maps(shape)))])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", [pa.time64("us"), pa.time32("ms")], ids=str)
def test_a_time_of_day_beyond_the_day_is_an_error_within_others_too(kind: Any, how: str) -> None:
    """A nested time of day outside the day makes a bad row too."""
    day = {"us": 86_400_000_000, "ms": 86_400_000}[kind.unit]
    times = pa.array([day, 0, None, -1000, day - 1000], kind)

    found = decoded(pa.table({"t": within(times, how)}), plain_within(pa.time64("us"), how))

    assert found.errors.column("offset").to_pylist() == [0, 3]
    assert found.rows.num_rows == 3


@pytest.mark.parametrize("how", HOWS)
def test_a_moment_of_96_bits_within_others_is_what_it_was(how: str) -> None:
    """Nested timestamps keep any year, and a fraction of a microsecond makes a bad row."""
    table = pa.table({"t": within(pa.array([1_001, None, 2_000], pa.timestamp("ns")), how)})
    days = pa.array([dt.date(9999, 12, 31), dt.date(2020, 1, 1)]).cast(pa.timestamp("us"))
    late = pa.table({"t": within(days, how)})
    wanted = plain_within(pa.timestamp("us"), how)

    found = decoded(table, wanted, use_deprecated_int96_timestamps=True)
    far = decoded(late, wanted, use_deprecated_int96_timestamps=True)

    assert found.errors.column("offset").to_pylist() == [0]
    assert found.rows.num_rows == 2
    assert not far.errors.num_rows
    assert all(
        year in str(row) for year, row in zip(("9999", "2020"), far.rows.to_pylist(), strict=True)
    )


def torn_texts() -> pa.Array[Any]:
    """Return texts of which the first is not UTF-8, as from writers that do not check."""
    made = pa.array([b"\xff", b"a", b"\xc3\xa9"], pa.binary())
    return pa.Array.from_buffers(pa.string(), 3, made.buffers())


TORN: dict[str, Callable[[], pa.Array[Any]]] = {
    "text": torn_texts,
    "large text": lambda: torn_texts().cast(pa.large_string(), safe=False),
    "struct": lambda: pa.StructArray.from_arrays([torn_texts()], names=["x"]),
    "list": lambda: pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), torn_texts()),
}


@pytest.mark.parametrize("kind", TORN)
def test_text_of_parquet_that_is_not_utf8_makes_bad_rows(kind: str) -> None:
    """Arrow does not check texts. One that is not UTF-8 must not stop the source."""
    column = TORN[kind]()
    wanted = pa.schema([("n", pa.int64()), ("c", canonical_type(column.type))])

    found = decoded(pa.table({"n": range(3), "c": column}), wanted)

    found.rows.validate(full=True)
    assert found.rows.column("n").to_pylist() == [1, 2]
    kind_in_sql = sql_type(wanted.field("c").type)
    assert found.errors.select(["offset", "reason"]).to_pylist() == [
        {
            "offset": 0,
            "reason": f"column 'c' does not fit its type {kind_in_sql}",
        }
    ]
    assert "\ufffd" in str(found.errors.column("text")[0])


def test_each_type_of_parquet_that_is_not_kept_is_named() -> None:
    """A user sees each column that changes: UUIDs become bytes, nanoseconds bad rows."""
    uuids = pa.array([b"x" * 16], pa.uuid())
    sink = io.BytesIO()
    table = pa.table(
        {
            "id": uuids,
            "ids": pa.ListArray.from_arrays([0, 1], uuids),
            "ns": pa.array([1], pa.timestamp("ns")),
            "clock": pa.array([1], pa.time64("ns")),
            "at": pa.array([1], pa.timestamp("us", tz="Asia/Tokyo")),
            "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "plain": pa.array([1], pa.timestamp("us", tz="UTC")),
        }
    )
    pq.write_table(table, sink)

    assert [one.split("'")[1] for one in changed_types(pq.read_metadata(sink))] == [
        *("id", "ids.list.element", "ns", "clock"),
        *("at", "map"),
    ]


@pytest.mark.parametrize("mode", ["legacyDateTime", "legacyINT96"])
def test_the_legacy_calendar_of_spark_is_named(mode: str) -> None:
    """Arrow reads the dates of such a file in another calendar, days apart."""
    sink = io.BytesIO()
    table = pa.table({"n": [1]})
    pq.write_table(table.replace_schema_metadata({f"org.apache.spark.{mode}": ""}), sink)

    (change,) = changed_types(pq.read_metadata(sink))

    assert "legacy calendar" in change


WITHIN = pa.schema([pa.field("a", pa.struct([pa.field("x", pa.int64())]))])


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_field_within_a_struct_that_the_schema_lacks_is_told(format: str) -> None:
    """Dropped nested fields are reported like dropped columns, so no data is lost silently."""
    values = [{"x": 1, "y": 5}, {"x": 2, "y": None}]
    if format == "parquet":
        found = decoded(pa.table({"a": values}), WITHIN)
    else:
        data = b'{"a":{"x":1,"y":5}}\n{"a":{"x":2}}\n'
        found = decoded_text(data, WITHIN)

    assert found.rows.num_rows + found.errors.num_rows == 2
    assert found.errors.num_rows or found.dropped


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_fields_within_structs_are_counted_by_their_paths(format: str) -> None:
    """Paths go through lists and nested structs. Special characters in a name do not split it."""
    inner = pa.list_(pa.struct([("x", pa.int64()), ("o", pa.struct([("p", pa.int64())]))]))
    wanted = pa.schema([pa.field('a~/"*', inner), pa.field("b", pa.int64())])
    rows: list[dict[str, Any]] = [
        {'a~/"*': [{"x": 1, "y": 5, "o": {"p": 1, "q": 2}}, {"x": 2, "y": 4}], "b": 1, "c": 3},
        {'a~/"*': [], "b": 2, "c": 3},
        {"b": 3, "c": 3},
    ]
    if format == "parquet":
        found = decoded(pa.Table.from_pylist(rows), wanted)
        counts = {'a~/"*.y': 3, 'a~/"*.o.q': 3, "c": 3}  # Rows, not values: faster to count.
    else:
        data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        found = decoded_text(data, wanted)
        counts = {'a~/"*.y': 2, 'a~/"*.o.q': 1, "c": 3}

    assert found.rows.num_rows == 3
    assert found.dropped == counts


TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])


def test_the_first_of_two_columns_or_fields_of_one_name_counts() -> None:
    """If two columns or fields have one name, the first one counts, as in csv."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["x"]), TWICE], names=["a", "a", "s"])
    wanted = pa.schema([("s", pa.struct([("x", pa.int64())])), ("a", pa.int64())])

    found = decoded(table, wanted)

    assert not found.errors.num_rows
    assert found.rows.drop_columns(["_tidelog_offset"]).to_pylist() == [{"s": {"x": 1}, "a": 1}]


@pytest.mark.parametrize("twin", ["x", "X"])
def test_a_struct_with_two_fields_of_one_name_is_refused(twin: str) -> None:
    """A struct with two fields of one name raises UsageError. SQL could not distinguish them."""
    inner = pa.struct([pa.field("x", pa.int64()), pa.field(twin, pa.int64())])

    with pytest.raises(UsageError, match="two fields"):
        shard_schema(pa.schema([pa.field("s", pa.list_(inner))]))


MADE_UP = [
    (b'{"a":1,"A":2}', "differ only in case"),
    (b'{"a":1}\n{"A":2}', "differ only in case"),
    (rb'{"a":1,"x\u0000y":2}', "NUL"),
    (rb'{"a":{"x\u0000y":2}}', "NUL"),
]


@pytest.mark.parametrize(("lines", "why"), MADE_UP)
def test_no_column_is_inferred_that_no_line_has(lines: bytes, why: str) -> None:
    """Inference refuses fields for which DuckDB would invent names (case, NUL)."""
    with pytest.raises(UsageError, match=why):
        sample_schema(lines + b"\n")


def test_names_that_look_made_up_and_are_not_are_columns() -> None:
    """Such names are columns if a line has them. An unreadable line changes nothing."""
    schema = sample_schema(b'{"a":1,"a_1":2,"f":NaN}\n{"a":1}{"b":1}\n{"json":3}\n')

    assert {"a", "a_1", "json"} <= set(schema.names)
    assert sample_schema(b'{"json":3}\n').names == ["json"]


def test_many_fields_of_one_type_are_columns() -> None:
    """An object with 300 fields gives 300 columns. DuckDB infers a map from 200 fields up."""
    line = json.dumps({f"c{n}": n for n in range(300)}).encode()

    assert sample_schema(b"{}\n" + 3 * (line + b"\n")).names == [f"c{n}" for n in range(300)]


LONG = b"x" * (2 << 20)


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("a.jsonl", b'{"a": "' + LONG + b'"}\n{"a": "b"}\n', "line"),
        ("a.json", b'[{"a": "' + LONG + b'"}, {"a": "b"}]\n', "element"),
        ("a.csv", b"a," + LONG + b"\n1,2\n", "line"),
    ],
)
async def test_a_first_line_beyond_the_sample_is_named(
    tmp_path: Path, name: str, data: bytes, what: str
) -> None:
    """The error states that the sample ends within the first object or header."""
    (tmp_path / name).write_bytes(data)
    location = await open_location("memory://", create=True)

    with pytest.raises(UsageError, match=rf"first {what}.* longer than 2 MiB.*schema="):
        await location.sources.create(SourceSpec(name="c", files=str(tmp_path / name)))


NO_COLUMNS = [
    (b"3\n[1]\n", "not json objects"),
    (b"{}\n{}\n", "have no fields"),
    (b'{"":3}\n', "has an empty name"),
    (b'{"":3,"b":1}\n', "has an empty name"),
    (b"".join(b'{"k%d":1}\n' % n for n in range(1000)), "few of the 1,000 fields"),
]


@pytest.mark.parametrize(("lines", "why"), NO_COLUMNS, ids=[why for _, why in NO_COLUMNS])
def test_the_error_states_why_no_column_can_be_inferred(lines: bytes, why: str) -> None:
    """The error must not claim that there are no objects if they only lack usable fields."""
    with pytest.raises(UsageError, match=why):
        sample_schema(lines)
