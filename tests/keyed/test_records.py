"""Sorting of records, and the small functions under the readers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kit.keyed_parts import Record, rows_of, table_of
from kit.work import calls_of
from tidelog.keyed.format.part import Span, pack, unpack
from tidelog.keyed.format.records import (
    KEYED_RECORDS,
    in_order,
    int64_array,
    key_starts,
    merge_sorted,
    repeated,
    sort_records,
)
from tidelog.keyed.read.run_objects import join_spans

RECORDS = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=2), st.sampled_from([b"\0", b"\0\0", b"a\0", b"a" * 9])),
        st.integers(1, 2**62),
    ),
    max_size=40,
    unique_by=lambda record: record[1],
).map(lambda found: [(key, sequence, sequence % 7, key) for key, sequence in found])


@given(records=RECORDS, cuts=st.lists(st.integers(0, 40), max_size=3))
def test_records_are_sorted_as_bytes_are(records: list[Record], cuts: list[int]) -> None:
    """Records sort by the bytes of their keys, including zero bytes at the end."""
    ends = [0, *sorted(cuts), len(records)]
    pieces = [records[a:b] for a, b in pairwise(ends)]
    chunked = pa.concat_tables([table_of(piece) for piece in pieces])

    assert rows_of(sort_records(chunked)) == sorted(records)
    assert rows_of(merge_sorted([sort_records(table_of(piece)) for piece in pieces])) == sorted(
        records
    )
    assert in_order(chunked) == (records == sorted(records))


@given(records=RECORDS, start=st.integers(0, 40))
def test_keys_begin_where_they_change(records: list[Record], start: int) -> None:
    """A key starts where the value changes, also in a slice of a longer column."""
    keys = sorted(record[0] for record in records)
    column = pa.array(keys, pa.binary())[start:]
    found = keys[start:]

    assert key_starts(column).tolist() == [
        n for n, key in enumerate(found) if not n or key != found[n - 1]
    ]


def test_a_sequence_that_comes_twice_is_not_in_order() -> None:
    """A repeated sequence of a key is not in order. Overlapping runs would give one."""
    assert not in_order(table_of([(b"a", 1, 0, b""), (b"a", 1, 0, b"")]))
    assert in_order(table_of([(b"a", 1, 0, b""), (b"b", 1, 0, b"")]))


def test_a_million_records_are_sorted_without_a_loop() -> None:
    """The sort works on columns. A loop over records would call a function for each."""
    rows, rng = 1_000_000, np.random.default_rng(1)
    names = pa.array([b"key-%08d" % n for n in range(10_000)], pa.binary())
    columns = [
        names.take(int64_array(rng.integers(0, 10_000, rows))),
        int64_array(np.arange(rows)),
        int64_array(np.arange(rows)),
        repeated(b"", rows),
    ]
    table = pa.Table.from_arrays(columns, schema=KEYED_RECORDS)
    found: list[pa.Table] = []

    assert calls_of(lambda: found.append(sort_records(table))) < 1_000
    assert in_order(found[0])


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_packed_numbers_come_back(numbers: list[int]) -> None:
    """Packed numbers of 64 bits survive, because checksums use all bits."""
    assert unpack(pack(np.array(numbers, np.int64))).tolist() == numbers


SPANS = st.lists(
    st.tuples(st.integers(0, 1_000), st.integers(1, 60)).map(lambda s: Span(s[0], s[0] + s[1])),
    max_size=8,
)


@given(spans=SPANS, waste=st.integers(0, 500))
def test_joined_spans_hold_all_and_waste_little(spans: list[Span], waste: int) -> None:
    """The joined spans cover each span, and the extra bytes stay within the limit."""
    joined = join_spans(spans, waste)
    wanted = {byte for span in spans for byte in range(*span)}
    read = [byte for span in joined for byte in range(*span)]

    assert wanted <= set(read)
    assert all(any(j.start <= s.start and s.limit <= j.limit for j in joined) for s in spans)
    allowed = waste + sum(span.limit - span.start for span in spans) // 4
    assert len(set(read) - wanted) <= allowed


def test_small_gaps_are_filled_before_large_ones() -> None:
    """The smallest gaps between spans are filled first, because they save the most requests."""
    spans = [Span(0, 10), Span(1_010, 1_020), Span(1_050, 1_060), Span(1_120, 1_130)]

    assert join_spans(spans, 0) == spans
    assert join_spans(spans, 90) == [Span(0, 10), Span(1_010, 1_130)]
    assert join_spans(spans, 2_000) == [Span(0, 1_130)]
    assert join_spans([]) == []
