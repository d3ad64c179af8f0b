"""Tables from callers: each value fits the schema without loss, or the table is refused."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.errors import UsageError
from tidelog.persist.format.updates import conform

DAY = datetime.date(1970, 1, 2)
TOKYO = pa.timestamp("us", "Asia/Tokyo")
DAY_US = 86_400_000_000


def field(dtype: pa.DataType) -> pa.Schema:
    return pa.schema([("v", dtype)])


def array(values: Any, dtype: pa.DataType) -> Any:
    return (
        pa.array(values, pa.int64()).cast(dtype)
        if pa.types.is_timestamp(dtype)
        else pa.array(values, dtype)
    )


def fields(*names: str) -> pa.StructType:
    return pa.struct([(name, pa.int64()) for name in names])


def of_twins() -> Any:
    one = pa.array([1])
    return pa.StructArray.from_arrays([one, one, one], ["a", "b", "b"])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([{"a": 1, "b": 2, "c": 3}], fields("a", "b", "c")), fields("a", "b")),
        (pa.array([{"a": 1}], fields("a")), fields("a", "b")),
        (of_twins(), fields("a", "b")),
        (pa.array([[{"a": 1, "c": 3}]], pa.list_(fields("a", "c"))), pa.list_(fields("a"))),
        (pa.array([1e300]), pa.float32()),
        (pa.array([[1e300]]), pa.list_(pa.float32())),
        (pa.array([{"a": -1e300}]), pa.struct([("a", pa.float32())])),
        (array([DAY_US + 1], pa.timestamp("us")), pa.date32()),
        (array([DAY_US], TOKYO), pa.date32()),
        (array([DAY_US], pa.timestamp("us")), pa.time64("us")),
        (pa.array([5]), pa.bool_()),
        (pa.array([0.5]), pa.bool_()),
    ],
    ids=range(12),
)
def test_what_would_change_on_the_way_is_refused(given: Any, wanted: pa.DataType) -> None:
    """Arrow casts each of these values without an error."""
    assert len(given.cast(wanted)) == 1

    with pytest.raises(UsageError, match="fit the schema"):
        conform(pa.table({"v": given}), field(wanted))


def of_views(*texts: str | None) -> Any:
    """Return texts in the form of a categorical column of polars."""
    known = pa.array(texts).dictionary_encode()
    return pa.DictionaryArray.from_arrays(known.indices, known.dictionary.cast(pa.string_view()))


@pytest.mark.parametrize(
    ("given", "wanted", "made"),
    [
        (pa.array([{"b": 2, "a": 1}, None]), fields("a", "b"), [{"a": 1, "b": 2}, None]),
        (pa.array([0.5, float("inf"), None]), pa.float32(), [0.5, float("inf"), None]),
        (array([DAY_US, None], pa.timestamp("us")), pa.date32(), [DAY, None]),
        (array([DAY_US - 9 * 3_600_000_000], TOKYO), pa.date32(), [DAY]),
        (pa.array([0, 1, None]), pa.bool_(), [False, True, None]),
        (pa.array([[1, None], None, []]), pa.list_(pa.int8()), [[1, None], None, []]),
        (pa.array(["a", None]).dictionary_encode(), pa.string(), ["a", None]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), pa.list_(pa.int32()), [[1, 2], None]),
        (of_views("a", None, "a"), pa.string(), ["a", None, "a"]),
        (pa.chunked_array([], of_views("a").type), pa.string(), []),
    ],
    ids=range(10),
)
def test_what_stays_the_same_fits(given: Any, wanted: pa.DataType, made: list[Any]) -> None:
    """Types of other libraries are accepted if the values stay the same."""
    found = conform(pa.table({"v": given}), field(wanted))

    assert found.schema == field(wanted)
    assert found.column("v").to_pylist() == made


def text_of(*offsets: int, data: bytes = b"hello world") -> Any:
    """Return two texts whose Arrow offsets and bytes were never validated."""
    table = pa.table({"v": ["hello", " world"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    whole = sink.getvalue().to_pybytes()
    bent = whole.replace(
        np.array([0, 5, 11], np.int32).tobytes(), np.array(offsets, np.int32).tobytes()
    )
    return pa.ipc.open_stream(bent.replace(b"hello world", data)).read_all().column("v")


@pytest.mark.parametrize(
    "given",
    [
        text_of(0, 5, 11, data=b"hel\xff\xfe world"),
        text_of(0, 7, 2),
        text_of(0, 100_000_000, 11),
        pa.DictionaryArray.from_arrays(pa.array([7, 0], pa.int32()), pa.array(["a"]), safe=False),
    ],
    ids=["no UTF-8", "backwards", "far", "no such word"],
)
@pytest.mark.parametrize("wanted", [pa.string(), pa.binary()], ids=str)
def test_arrays_that_are_none_are_refused(given: Any, wanted: pa.DataType) -> None:
    """Arrow does not validate buffers, and their use can crash the process."""
    with pytest.raises(UsageError, match="do not fit the schema"):
        conform(pa.table({"v": given}), field(wanted))


def test_a_column_that_is_there_twice_is_refused() -> None:
    """A table with two columns of one name raises UsageError, because the choice is ambiguous."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["v", "v"])

    with pytest.raises(UsageError, match="twice: v"):
        conform(table, field(pa.int64()))
