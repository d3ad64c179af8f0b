"""Sizes that a Parquet file declares: a file that would take gigabytes is refused unread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.parquet_bytes import ColumnBytes, PageBytes, parquet_bytes, places, plain, run_of_first
from tidelog.errors import CorruptionError
from tidelog.wal.format import parquet
from tidelog.wal.format.parquet import BYTES_MIN, RECORDS_MAX, open_records
from tidelog.wal.format.wal3_records import decode_fragment, place_records

MEGABYTE = 1_000_000
NAMES = ["offset", "timestamp_us", "body"]


@contextmanager
def least_memory(most: int) -> Iterator[None]:
    """Fail if Arrow allocates more than ``most`` bytes, and more than its earlier maximum."""
    pool = pa.default_memory_pool()
    allowed = max(pool.max_memory() or 0, pool.bytes_allocated() + most)
    yield
    assert (pool.max_memory() or 0) <= allowed


def written(bodies: Any, **options: Any) -> bytes:
    records = place_records(pa.array(bodies, pa.binary()), start=1, timestamp_us=7)
    sink = pa.BufferOutputStream()
    pq.write_table(records.rename_columns(NAMES), sink, write_statistics=False, **options)
    return sink.getvalue().to_pybytes()


def refuse(data: bytes, why: str, *, most: int = 10 * MEGABYTE) -> None:
    with least_memory(most), pytest.raises(CorruptionError, match=why):
        decode_fragment(data, path="x")


def test_one_value_that_a_dictionary_repeats_is_refused() -> None:
    """A dictionary that repeats a large value would turn kilobytes into 400 MB: refused."""
    data = written([b"x" * 100_000] * 4_000, compression="zstd")
    assert len(data) < 20_000

    refuse(data, "repeat more often than allowed for its size")


def repeating(rows: int, *, hides_dictionary: bool) -> bytes:
    """Return a fragment that stores one body of 100 kB once, and uses it in all records."""
    pages = [
        PageBytes(kind=2, body=plain([b"x" * 100_000]), values=1),
        PageBytes(body=run_of_first(rows), values=rows, encoding=8),
    ]
    body = ColumnBytes(name="body", pages=pages, hides_dictionary=hides_dictionary)
    return parquet_bytes([*places(rows), body], rows=rows)


@pytest.mark.parametrize("hides_dictionary", [False, True])
def test_a_dictionary_that_the_footer_does_not_name_is_refused(*, hides_dictionary: bool) -> None:
    """A dictionary page counts even if the footer does not name it. Arrow reads it anyway."""
    few = decode_fragment(repeating(10, hides_dictionary=hides_dictionary), path="x")
    assert few.column("body").to_pylist() == [b"x" * 100_000] * 10

    refuse(repeating(4_000, hides_dictionary=hides_dictionary), "repeat more")


def test_what_is_compressed_a_thousandfold_is_refused() -> None:
    """A file that is compressed a thousandfold is refused by its declared sizes."""
    data = written([bytes(MEGABYTE)] * 150, compression="zstd", use_dictionary=False)
    assert len(data) < 100_000

    refuse(data, "declare 15[0-9]{7} bytes, but at most 134217728 are allowed")


def test_values_that_each_repeat_the_one_before_are_refused() -> None:
    """Values that repeat their predecessor are refused, because this encoding hides their size."""
    bodies = [b"x" * 50_000 + b"%d" % n for n in range(3_000)]
    data = written(bodies, use_dictionary=False, column_encoding={"body": "DELTA_BYTE_ARRAY"})
    assert len(data) < 100_000
    few = written(bodies[:20], use_dictionary=False, column_encoding={"body": "DELTA_BYTE_ARRAY"})

    refuse(data, "does not bound its decoded size")
    assert decode_fragment(few, path="x").column("body").to_pylist() == bodies[:20]


BODY = PageBytes(body=plain([b"a", b"bc"]), values=2)
MANY = 2**40
LIES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"rows": MANY}, "declares 1099511627776 records"),
    ({}, {"rows": RECORDS_MAX + 1}, "declares 8388609 records"),
    ({}, {"rows": 3}, "larger than its column"),
    ({}, {"group_rows": MANY}, "do not add up"),
    ({"values": MANY}, {}, "differ in length"),
    ({"pages": [PageBytes(body=BODY.body, values=1)]}, {}, "truncated|another type|out of order"),
    ({"pages": [PageBytes(body=b"", values=2, size=2**31 - 1)]}, {}, "declare 2147483679 bytes"),
    (
        {"pages": [PageBytes(kind=2, body=plain([b"a"]), values=2**30), BODY]},
        {},
        "too small for its values",
    ),
    ({"repetition": 2}, {}, "column body is missing, occurs twice"),
    ({"type": 3}, {}, "column body is missing, occurs twice"),
    ({"name": "bodies"}, {}, "column body is missing, occurs twice"),
]


@pytest.mark.parametrize(("column", "file", "why"), LIES)
def test_promises_are_held_against_each_other(
    column: dict[str, Any], file: dict[str, Any], why: str
) -> None:
    """Contradictory counts and sizes of the footer, row groups, columns and pages are refused."""
    body = ColumnBytes(**{"name": "body", "pages": [BODY], **column})
    honest = parquet_bytes([*places(2), ColumnBytes(name="body", pages=[BODY])], rows=2)
    assert decode_fragment(honest, path="x").column("body").to_pylist() == [b"a", b"bc"]

    refuse(parquet_bytes([*places(2), body], **{"rows": 2, **file}), why)


def test_a_file_with_two_columns_of_one_name_is_refused() -> None:
    """A file with two columns of one name is refused. One would be counted and the other read."""
    body = ColumnBytes(name="body", pages=[BODY])

    refuse(parquet_bytes([*places(2), body, body], rows=2), "column body is missing")


@given(
    values=st.lists(st.none() | st.sampled_from([b"", b"a", b"a" * 50]), min_size=1, max_size=30),
    rows=st.integers(1, 40),
    width=st.integers(1, 3),
)
def test_what_repeats_itself_is_read_as_it_was_written(
    values: list[bytes | None], rows: int, width: int
) -> None:
    """A file that may be too large is read in another way, with the same result."""
    schema: list[pa.Field[Any]] = [pa.field("a", pa.binary()), pa.field("b", pa.binary())]
    columns = [pa.array(values, pa.binary()), pa.array([b"b" * width] * len(values), pa.binary())]
    table = pa.table(columns, schema=pa.schema(schema))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows)
    data = sink.getvalue().to_pybytes()
    with pytest.MonkeyPatch.context() as patch:
        file = open_records(data, path="x", what="a file")
        for allowed in (BYTES_MIN, 500):
            patch.setattr(parquet, "bytes_allowed", lambda _, allowed=allowed: allowed)
            # Pages hold more than values, so this limit refuses some files that would just fit.
            with suppress(CorruptionError) if allowed == 500 else nullcontext():
                assert file.read(["a", "b"], table.schema).equals(table)


def test_no_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack of memory for an allowed size raises MemoryError, not CorruptionError."""

    def read(*_: Any, **__: Any) -> pa.Table:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pq.ParquetFile, "read", read)
    with pytest.raises(MemoryError):
        decode_fragment(written([b"a"]), path="x")


@pytest.mark.parametrize("error", [pa.ArrowInvalid("x" * 9_999), OSError("x"), KeyError("x")])
def test_what_a_library_says_of_bytes_names_the_object(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An error of the Parquet library becomes a short CorruptionError that names the object."""

    def read(*_: Any, **__: Any) -> pa.Table:
        raise error

    monkeypatch.setattr(pq.ParquetFile, "read", read)
    with pytest.raises(CorruptionError, match="a fragment cannot be read: restore it") as told:
        decode_fragment(written([b"a"]), path="the path")
    assert "path=the path" in str(told.value)
    assert len(str(told.value)) < 500


def test_only_so_many_records_are_in_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object has a maximal number of records, which take memory but maybe no bytes."""
    monkeypatch.setattr(parquet, "RECORDS_MAX", 1_000)

    assert decode_fragment(written([b""] * 1_000), path="x").num_rows == 1_000
    refuse(written([b""] * 1_001), "declares 1001 records, but at most 1000 are allowed")


@pytest.mark.parametrize(
    "kind", [pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())], ids=str
)
def test_bytes_are_read_whatever_layout_their_writer_had(kind: pa.DataType) -> None:
    """A reader accepts every Arrow layout of the body column."""
    bodies = [b"a", b"", b"\xff", b"a"]
    records = place_records(pa.array(bodies, pa.binary()), start=1, timestamp_us=7)
    body: Any = records.column(2).combine_chunks()
    held = body.dictionary_encode() if pa.types.is_dictionary(kind) else body.cast(kind)
    sink = pa.BufferOutputStream()
    pq.write_table(records.set_column(2, "body", held).rename_columns(NAMES), sink)

    found = decode_fragment(sink.getvalue().to_pybytes(), path="x")

    assert found.column("body").to_pylist() == bodies


def test_a_dictionary_by_a_hint_is_measured_before_it_is_written_out() -> None:
    """A dictionary that a hint requests is measured before it is expanded, like any other."""
    body: Any = pa.array([b"x" * 100_000] * 4_000, pa.binary()).dictionary_encode()
    records = place_records(pa.array([b""] * 4_000, pa.binary()), start=1, timestamp_us=7)
    sink = pa.BufferOutputStream()
    pq.write_table(records.set_column(2, "body", body).rename_columns(NAMES), sink)

    refuse(sink.getvalue().to_pybytes(), "repeat more often than allowed for its size")
