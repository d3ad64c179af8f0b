"""The checksum of a table's columns depends on its values alone, and on each of them."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tidelog.wal.format.arrays import column_sum
from tidelog.wal.format.slot_object import SLOT_RECORDS

Row = tuple[int, int, bytes | None, bytes | None, bytes]
INT64 = st.integers(-(2**63), 2**63 - 1)
MAYBE = st.none() | st.binary(max_size=4)
ROWS = st.lists(
    st.tuples(INT64, INT64, MAYBE, MAYBE, st.binary(max_size=9)), max_size=12
) | st.lists(st.tuples(INT64, INT64, MAYBE, st.none(), st.binary(max_size=9)), max_size=12)


def table_of(rows: list[Row]) -> pa.Table:
    columns: list[Any] = [[row[at] for row in rows] for at in range(5)]
    return pa.table(columns, schema=SLOT_RECORDS)


def spelled(rows: list[Row]) -> bytes:
    """Return the bytes that are hashed, one value at a time."""
    found = struct.pack("<Q", len(rows))
    found += b"".join(struct.pack("<q", row[0]) for row in rows)
    found += b"".join(struct.pack("<q", row[1]) for row in rows)
    has_keys = any(row[3] is not None for row in rows)
    for at in (2, 3, 4) if has_keys else (2, 4):
        values = [row[at] for row in rows]
        assert all(value is None or isinstance(value, bytes) for value in values)
        found += b"".join(
            struct.pack("<i", len(value) if isinstance(value, bytes) else -1) for value in values
        )
        found += b"".join(value for value in values if isinstance(value, bytes))
    return found


def test_sums_are_stable() -> None:
    """Checksums are stored: another formula would report every log as damaged."""
    rows: list[Row] = [
        (1, 1_700_000_000_000_000, None, None, b"one"),
        (2, 7, b"", None, b""),
        (3, 8, b"s", None, b"x"),
    ]

    assert column_sum(table_of(rows)) == "39160b452916e0ce14c8534b2915ad31"
    keyed: list[Row] = [*rows, (4, 9, None, b"", b""), (5, 9, None, b"k", b"y")]
    assert column_sum(table_of(keyed)) == "ccbbd642eb869b6e7cb1474b824be658"
    assert column_sum(table_of([])) == xxhash.xxh3_128_hexdigest(bytes(8))


@given(rows=ROWS, data=st.data())
def test_the_sum_is_that_of_the_values_however_they_lie(
    rows: list[Row], data: st.DataObject
) -> None:
    """The checksum does not depend on chunks and offsets. They differ between reader and writer."""
    wanted = xxhash.xxh3_128_hexdigest(spelled(rows))
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=3), label="cuts")
    edges = [0, *sorted(cuts), len(rows)]
    # Each chunk is a slice from the middle of another table.
    around: list[Row] = [(9, 9, b"around", None, b"around")]
    pieces = [
        table_of([*around, *rows[start:limit], *around]).slice(1, limit - start)
        for start, limit in pairwise(edges)
    ]

    assert column_sum(table_of(rows)) == wanted
    assert column_sum(pa.concat_tables(pieces)) == wanted


def test_what_lies_under_a_null_does_not_count() -> None:
    """Bytes under a null do not count, because no reader of the values sees them."""
    seen: Any = pa.BinaryArray.from_buffers(
        pa.binary(),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(struct.pack("<3i", 0, 3, 5)), pa.py_buffer(b"junkA")],
    )
    table = table_of([(1, 1, None, None, b"x"), (2, 2, seen[1].as_py(), None, b"y")])
    assert seen.to_pylist() == [None, b"kA"]
    with_junk = table.set_column(2, "stream", pa.chunked_array([seen]))

    assert column_sum(with_junk) == column_sum(table)


BASE: list[Row] = [(1, 5, b"ab", None, b"cd"), (2, 5, None, None, b"ef"), (3, 6, b"", None, b"")]
OTHERS: list[list[Row]] = [
    [(1, 5, b"ab", None, b"cd"), (2, 5, None, None, b"ef")],
    [(1, 5, b"ab", None, b"cd"), (2, 5, None, None, b"ef"), (4, 6, b"", None, b"")],
    [(1, 5, b"ab", None, b"cd"), (2, 6, None, None, b"ef"), (3, 6, b"", None, b"")],
    [(5, 1, b"ab", None, b"cd"), (5, 2, None, None, b"ef"), (6, 3, b"", None, b"")],
    [(1, 5, b"ab", None, b"cd"), (2, 5, b"", None, b"ef"), (3, 6, b"", None, b"")],
    [(1, 5, b"ab", None, b"cd"), (2, 5, None, None, b"ef"), (3, 6, None, None, b"")],
    [(1, 5, b"ab", None, b"cd"), (2, 5, b"", None, b"ef"), (3, 6, None, None, b"")],
    [(1, 5, b"a", None, b"bcd"), (2, 5, None, None, b"ef"), (3, 6, b"", None, b"")],
    [(1, 5, b"a", None, b"cd"), (2, 5, None, None, b"ef"), (3, 6, b"b", None, b"")],
    [(1, 5, b"ab", None, b"c"), (2, 5, None, None, b"def"), (3, 6, b"", None, b"")],
    [(1, 5, b"ab", None, b"cd"), (2, 5, None, None, b""), (3, 6, b"", None, b"ef")],
    [(1, 5, b"ab", None, b"cd"), (2, 5, None, None, b"eg"), (3, 6, b"", None, b"")],
    [(1, 5, b"ab", b"", b"cd"), (2, 5, None, None, b"ef"), (3, 6, b"", None, b"")],
    [(1, 5, b"ab", b"c", b"d"), (2, 5, None, None, b"ef"), (3, 6, b"", None, b"")],
    [(1, 5, b"a", b"b", b"cd"), (2, 5, None, None, b"ef"), (3, 6, b"", None, b"")],
    [(1, 5, None, b"ab", b"cd"), (2, 5, None, None, b"ef"), (3, 6, b"", None, b"")],
    [(1, 5, b"ab", None, b"cd"), (2, 5, None, None, b"ef"), (3, 6, None, b"", b"")],
]


@pytest.mark.parametrize("other", OTHERS)
def test_every_value_and_every_edge_between_two_counts(other: list[Row]) -> None:
    """Each value and each border between two values changes the checksum."""
    assert column_sum(table_of(other)) != column_sum(table_of(BASE))
