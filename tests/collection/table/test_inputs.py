"""Inputs of writes to tables: each kind of rows, and each kind of row that does not fit."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from tidelog.collection.table.inputs import keys_of, table_of, tables_of
from tidelog.errors import UsageError
from tidelog.persist.format import inputs
from tidelog.persist.format.schema import ShardSchema, shard_schema

TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "name": pa.string(),
    "day": pa.date32(),
    "nested": pa.list_(pa.int64()),
}
SCHEMA = shard_schema(
    pa.schema(TYPES),
    key=["id"],
)
DAY = datetime.date(2026, 1, 2)
NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
WANTED = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
TABLE = pa.table({"name": ["a", None], "id": pa.array([1, 2], pa.int8())})


def _text_buffers(text: bytes, end: int = 1) -> tuple[pa.Buffer, pa.Buffer]:
    """Return the offsets and the bytes of two texts."""
    return pa.py_buffer(np.array([0, end, 2], np.int32).tobytes()), pa.py_buffer(text)


class Stream:
    """An object of another library, with Arrow's interface of streams."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class Batch:
    """An object of another library, with Arrow's interface of arrays."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "rows",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        Stream(),
        Batch(),
        TABLE.to_pandas(),
        pd.DataFrame({"id": [1, 2], "name": ["a", None]}, index=[7, 8]),
        [{"id": 1, "name": "a"}, {"id": 2}],
        ({"id": 1, "name": "a", "day": None}, {"id": 2}),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_each_kind_of_rows_becomes_a_table_of_all_columns(rows: object) -> None:
    """Columns are matched by name, in any order; a missing column is null."""
    found = table_of(rows, SCHEMA)

    assert found.schema == SCHEMA.data
    assert found.select(["id", "name"]).to_pylist() == WANTED
    assert found.column("day").null_count == 2


@pytest.mark.parametrize(
    "rows",
    [
        [],
        TABLE.slice(0, 0),
        TABLE.slice(0, 0).to_reader(),
        pa.table({}),
        pa.table({}).to_reader(),
        pa.record_batch({}),
        pd.DataFrame(),
        pd.DataFrame({"id": []}),
    ],
)
def test_no_rows_give_an_empty_table(rows: object) -> None:
    """A write of no rows is no error: a program may have nothing to write."""
    found = table_of(rows, SCHEMA)

    assert found.schema == SCHEMA.data
    assert found.num_rows == 0


def test_texts_of_times_are_read() -> None:
    """JSON has no dates, so a text of ISO 8601 is accepted."""
    assert table_of([{"id": 1, "day": "2026-01-02"}], SCHEMA).to_pylist()[0]["day"] == DAY


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1, "nam": "a"}], "unknown columns: nam; the columns are id, name, day, nested"),
        ([{"id": 1, 5: "a"}], "unknown columns: 5"),
        (pa.table({"id": [1], "_diff": [1]}), "unknown columns: _diff; .* remove _diff"),
        (pa.table([[1], [2]], names=["id", "id"]), "the column 'id' twice"),
        ([{"id": 1}, {"id": "x"}], "column 'id' of row 1 cannot hold the value 'x': .* int64"),
        ([{"id": 1}, {"id": "7"}], "column 'id' of row 1 cannot hold the value '7'"),
        ([{"id": 1.5}], "column 'id' of row 0 cannot hold the value 1.5"),
        ([{"id": Decimal("1.5")}], "column 'id' of row 0 cannot hold the value"),
        ([{"id": 1}, {"id": 10**30}], "column 'id' of row 1 cannot hold the value 10+: "),
        ([{"id": 1, "day": 5}], "column 'day' of row 0 cannot hold the value 5"),
        ([{"id": 1, "day": NOON}], "column 'day' of row 0 cannot hold the value"),
        ([{"id": 1, "nested": [1, 1.5]}], "column 'nested' of row 0 cannot hold the value"),
        ([{"id": True}], "column 'id' of row 0 cannot hold the value True"),
        ([{"id": 1, "name": 5}], "column 'name' of row 0 cannot hold the value 5: .* string"),
        (pa.table({"id": [1, 2, 2.5]}), "column 'id' of row 2 cannot hold the value 2.5"),
        (pa.table({"id": ["1"]}), "column 'id' of row 0 cannot hold the value '1'"),
        (pa.table({"id": [[1]]}), r"column 'id' of row 0 cannot hold the value \[1\]"),
        (
            pa.table({"id": pa.array([2**63], pa.uint64())}),
            "column 'id' of row 0 cannot hold the value 9223372036854775808",
        ),
        (
            pa.table({"id": [1, 2], "day": ["2026-01-01", "soon"]}),
            "column 'day' of row 1 cannot hold the value 'soon'",
        ),
        (pd.DataFrame({"id": [1, "x"]}), "values of several types"),
        (pd.DataFrame(index=[1, 2]), "has rows but no columns"),
        (
            pd.DataFrame({"id": [1], "name": ["a"]}).set_index("id"),
            r"the index id of the DataFrame is not a column: pass frame.reset_index\(\)",
        ),
        ([{"id": 1}, {"id": None}], "key column 'id' is null or missing in row 1"),
        ([{"name": "a"}], "key column 'id' is null or missing in row 0"),
        ([{}], "key column 'id' is null or missing in row 0"),
        (pa.table({"name": ["a"]}), "key column 'id' is null or missing in row 0"),
        ("rows", "rows must be an Arrow table.*, not str"),
        (7, "rows must be an Arrow table.*, not int"),
        ([1], "row 0 is a value of type int: pass"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: object, message: str) -> None:
    """The error names the column and the value, so that the caller finds the row."""
    with pytest.raises(UsageError, match=message):
        table_of(rows, SCHEMA)


def test_a_frame_of_spark_is_refused_with_the_remedy() -> None:
    """A Spark DataFrame has Arrow's interface, but reading it would bring all rows here."""
    frame = type("DataFrame", (Stream,), {"__module__": "pyspark.sql.classic.dataframe"})()

    with pytest.raises(UsageError, match=r"Spark DataFrame: pass rows\.toArrow\(\)"):
        table_of(frame, SCHEMA)


@pytest.mark.parametrize("limit", [("PIECE_ROWS", 10), ("PIECE_BYTES", 90)])
def test_a_reader_is_read_in_pieces(
    limit: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may be larger than memory, so no more than a piece is read ahead."""
    monkeypatch.setattr(inputs, *limit)
    read: list[int] = []

    def batches() -> Any:
        for number in range(6):
            read.append(number)
            yield pa.record_batch({"id": list(range(4 * number, 4 * number + 4))})

    reader = pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), batches())
    pieces = tables_of(reader, SCHEMA)
    first = next(pieces)
    ahead = len(read)

    assert first.column("id").to_pylist() == list(range(12))
    assert ahead == 3
    assert [piece.num_rows for piece in pieces] == [12]


def test_the_number_of_a_bad_row_counts_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller must find the row in its own rows, and knows nothing of pieces."""
    monkeypatch.setattr(inputs, "PIECE_ROWS", 10)
    rows = [{"id": number} for number in range(25)]

    with pytest.raises(UsageError, match="column 'id' of row 21 cannot hold the value 'x'"):
        table_of([*rows[:21], {"id": "x"}, *rows[22:]], SCHEMA)
    with pytest.raises(UsageError, match="is null or missing in row 13"):
        table_of(pa.table({"id": [*range(13), None, 14]}).to_reader(max_chunksize=4), SCHEMA)
    with pytest.raises(UsageError, match="is null or missing in row 13"):
        table_of(pa.table({"id": [*range(13), None, 14]}), SCHEMA)


def test_a_reader_that_fails_gives_an_error_of_ours() -> None:
    """The error names the reader as its source, and not the table."""

    def batches() -> Any:
        yield pa.record_batch({"id": [1]})
        raise pa.ArrowInvalid("the line is torn")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), batches())

    with pytest.raises(UsageError, match=r"the reader of the rows fails: .*the line is torn"):
        table_of(reader, SCHEMA)


@pytest.mark.parametrize(
    "keys",
    [
        [1, 2],
        {1: "", 2: ""}.keys(),
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        pa.table({"id": [1, 2]}),
        [{"id": 1}, {"id": 2}],
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_keys_are_rows_or_values_of_one_column(keys: object) -> None:
    """A key of one column needs no dicts."""
    assert keys_of(keys, SCHEMA) == pa.table({"id": [1, 2]})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([1, None], "key column 'id' is null or missing in row 1"),
        (["x"], "column 'id' of row 0 cannot hold the value 'x'"),
        ([{"id": 1, "name": "a"}], "unknown columns: name; .* id; rename or remove the others"),
        ("12", r"keys must be a list, such as \['12'\], not one value"),
        (1, r"keys must be a list, such as \[1\], not one value"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: object, message: str) -> None:
    """A delete by a wrong key must not pass as a delete of a key that does not exist."""
    with pytest.raises(UsageError, match=message):
        keys_of(keys, SCHEMA)


def test_keys_of_a_table_without_a_key_are_refused() -> None:
    """The error names the other way to delete."""
    with pytest.raises(UsageError, match="no key: delete with where="):
        keys_of([1], shard_schema(pa.schema({"id": pa.int64()}), key=[]))


def test_nulls_of_any_type_fit() -> None:
    """A column of a frame without values has the type of a float, or of null."""
    nulls = pa.table({"id": [1], "name": pa.nulls(1, pa.float64()), "day": pa.nulls(1)})

    assert table_of(nulls, SCHEMA).select(nulls.column_names).to_pylist() == [
        {"id": 1, "name": None, "day": None}
    ]


def test_values_of_several_python_types_fit_one_column() -> None:
    """Python programs mix numbers of several types; each one is checked alone."""
    schema = shard_schema(pa.schema([pa.field("x", pa.decimal128(10, 2))]), key=["x"])
    rows = [{"x": Decimal("1.5")}, {"x": 2}, {"x": 2.25}]

    assert table_of(rows, schema).column("x").to_pylist() == [
        Decimal("1.50"),
        Decimal("2.00"),
        Decimal("2.25"),
    ]
    with pytest.raises(UsageError, match="column 'x' of row 0 cannot hold the value"):
        table_of([{"x": 10**9}], schema)


STRUCT = pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())])
MIDNIGHT = datetime.datetime.combine(DAY, datetime.time())


def schema_of(dtype: pa.DataType) -> ShardSchema:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("x", dtype)]
    return shard_schema(pa.schema(fields), key=["id"])


@pytest.mark.parametrize(
    ("dtype", "given", "stored"),
    [
        # Arrow infers the type from the first value, so a time after a date would lose its hours.
        (pa.timestamp("us"), [DAY, NOON.replace(tzinfo=None)], [MIDNIGHT, None]),
        (pa.uint64(), [2**64 - 1, 0], [2**64 - 1, 0]),
        (pa.decimal128(38, 0), [2**70, 1], [Decimal(2**70), Decimal(1)]),
        (pa.decimal128(10, 2), [0.1, 2.25], [Decimal("0.10"), Decimal("2.25")]),
        (pa.float64(), [2**63, 1.5], [2.0**63, 1.5]),
        (STRUCT, [{"x": 1}, {}], [{"x": 1, "y": None}, {"x": None, "y": None}]),
        (pa.list_(pa.int64()), [[1.0, None], []], [[1, None], []]),
    ],
    ids=str,
)
def test_values_keep_their_whole_value(
    dtype: pa.DataType, given: list[Any], stored: list[Any]
) -> None:
    """Each value of a list is stored as it is, whatever the other values are."""
    schema = schema_of(dtype)
    rows = [{"id": number, "x": value} for number, value in enumerate(given)]
    wanted = [value if new is None else new for value, new in zip(given, stored, strict=True)]

    assert table_of(rows, schema).column("x").to_pylist() == wanted


@pytest.mark.parametrize(
    ("dtype", "bad", "good"),
    [
        (pa.date32(), NOON.replace(tzinfo=None), DAY),
        (pa.decimal128(10, 2), 1.239, 1.25),
        (pa.decimal128(38, 0), 1.5, 1.0),
        (pa.float64(), 2**63 + 1, 1),
        (STRUCT, {"x": "1"}, {"x": 1}),
        (STRUCT, {"z": 1}, {"x": 1}),
        (pa.list_(pa.int64()), ["1"], [1]),
        (pa.list_(pa.int64()), [True], [1]),
    ],
    ids=str,
)
def test_values_that_would_change_are_refused(
    dtype: pa.DataType, bad: object, good: object
) -> None:
    """The error names the row, also if another value of the list fits."""
    schema = schema_of(dtype)
    for values in ([bad], [good, bad]):
        rows = [{"id": number, "x": value} for number, value in enumerate(values)]
        with pytest.raises(UsageError, match=f"'x' of row {len(values) - 1} cannot hold"):
            table_of(rows, schema)


def test_a_column_of_floats_is_not_rounded_to_decimals() -> None:
    """The same rule holds for Arrow columns, such as the result of an expression."""
    schema = schema_of(pa.decimal128(10, 2))

    good = table_of(pa.table({"id": [1, 2], "x": [0.1, None]}), schema)
    assert good.column("x").to_pylist() == [Decimal("0.10"), None]
    with pytest.raises(UsageError, match=r"'x' of row 1 cannot hold the value 1\.239"):
        table_of(pa.table({"id": [1, 2], "x": [0.1, 1.239]}), schema)


@pytest.mark.parametrize("value", [0.1, 1.5, -123456.7, 3.4e38, 0.0, float("inf"), None])
@pytest.mark.parametrize("kind", ["dicts", "table"])
def test_a_float_that_keeps_its_digits_fits_a_shorter_column(value: Any, kind: str) -> None:
    """Python has no shorter floats, so 0.1 must fit a column of 32 bits."""
    rows: Any = [{"id": 1, "x": value}, {"id": 2, "x": 2.5}]
    given = rows if kind == "dicts" else pa.Table.from_pylist(rows)
    found = table_of(given, schema_of(pa.float32())).column("x")

    assert found.type == pa.float32()
    assert found.to_pylist()[0] == pa.scalar(value, pa.float32()).as_py()


@pytest.mark.parametrize("value", [0.123456789, 8.589973e9, 16777217.0, 1e300])
@pytest.mark.parametrize("kind", ["dicts", "table", "reader"])
def test_a_float_that_would_lose_digits_is_refused(value: float, kind: str) -> None:
    """The error names the row and the value."""
    rows: Any = [{"id": 1, "x": 0.1}, {"id": 2, "x": value}]
    table = pa.Table.from_pylist(rows)
    given = {"dicts": rows, "table": table, "reader": table.to_reader(max_chunksize=1)}[kind]

    with pytest.raises(UsageError, match="column 'x' of row 1 cannot hold the value"):
        table_of(given, schema_of(pa.float32()))


@pytest.mark.parametrize("name", ["name", "id"])
@pytest.mark.parametrize(
    ("column", "row"),
    [
        (pa.Array.from_buffers(pa.string(), 2, [None, *_text_buffers(b"a\xff")]), 1),
        (pa.Array.from_buffers(pa.string(), 2, [None, *_text_buffers(b"ab", -5)]), 0),
        (pa.DictionaryArray.from_arrays(pa.array([0, 99]), pa.array(["a"]), safe=False), 1),
    ],
    ids=["text", "offsets", "dictionary"],
)
def test_invalid_arrow_data_is_refused(column: pa.Array[Any], row: int, name: str) -> None:
    """Code that reads such a value would raise an error of Python, or end the process."""
    with pytest.raises(UsageError, match=f"'{name}' is not valid Arrow data in row {row}"):
        table_of(pa.table({name: column}), SCHEMA)


def test_values_of_extension_types_are_plain_values() -> None:
    """DuckDB and Polars export json and uuid columns as extension types."""
    types: dict[str, pa.DataType] = {"text": pa.string(), "raw": pa.binary()}
    schema = shard_schema(pa.schema(types))
    number = uuid.UUID(int=2**127)
    rows = pa.table(
        {"text": pa.array(['{"a": 1}'], pa.json_()), "raw": pa.array([number.bytes], pa.uuid())}
    )

    assert table_of(rows, schema).to_pylist() == [{"text": '{"a": 1}', "raw": number.bytes}]
    with pytest.raises(UsageError, match="'text' of row 0 cannot hold"):
        table_of(rows.select(["raw"]).rename_columns(["text"]), schema)


def test_a_named_index_without_a_column_is_refused() -> None:
    """Pandas stores a range in the metadata only, so its values would be null."""
    frame = pd.DataFrame({"name": ["a", "b"]}, index=pd.RangeIndex(1, 3, name="id"))
    with pytest.raises(UsageError, match=r"index 'id' is not a column.*reset_index"):
        table_of(pa.Table.from_pandas(frame), SCHEMA)

    unnamed = pa.Table.from_pandas(frame.reset_index())
    assert table_of(unnamed, SCHEMA).column("id").to_pylist() == [1, 2]
