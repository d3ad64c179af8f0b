"""Groups of limited size, and the arrays in which SQL returns rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidelog.core.grouping import ARRAY_BYTES, ROWS_MAX, ROWS_MIN, groups_by_size, rows_of_array


def test_groups_stay_within_the_size_and_a_large_item_is_alone() -> None:
    """A task that reads one group needs no more memory than it has."""
    found = list(groups_by_size([3, 3, 9, 1, 1, 1, 4], lambda size: size, most=6))

    assert found == [[3, 3], [9], [1, 1, 1], [4]]


@pytest.mark.parametrize(
    ("rows", "text_bytes", "wanted"),
    [(0, 0, ROWS_MAX), (1_000, 10, ROWS_MAX), (1_000, 20_000, ARRAY_BYTES // 20_005)],
)
def test_arrays_of_long_texts_have_fewer_rows(rows: int, text_bytes: int, wanted: int) -> None:
    """An array of text holds at most 2 GiB, so a million texts of 3 KB need several."""
    table = pa.table({"t": pa.array(["x" * text_bytes] * rows, pa.string())})

    assert rows_of_array(table) == wanted


def test_an_array_has_at_least_a_block_of_rows() -> None:
    """SQL computes rows in blocks, so smaller arrays would only cost time."""
    assert rows_of_array(pa.table({"t": ["x" * 1_000_000]})) == ROWS_MIN
