"""Lookups: the rows whose columns have one of some combinations of values."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidelog.collection.table.lookups import ByValues

NUMBERS = st.integers(-40, 40)


@given(known=st.lists(NUMBERS, unique=True), values=st.lists(NUMBERS), in_order=st.booleans())
def test_each_row_finds_its_value(known: list[int], values: list[int], in_order: bool) -> None:
    """Rows in the order of their key are found by another search than others, with one result."""
    values = sorted(values) if in_order else values
    lookup = ByValues(pa.table({"k": pa.array(known, pa.int64())}))

    found = lookup.places(pa.table({"k": pa.array(values, pa.int64())}))

    assert found.tolist() == [known.index(v) if v in known else -1 for v in values]


@given(known=st.lists(st.dates(), unique=True), values=st.lists(st.dates()))
def test_times_are_found_as_numbers_are(known: list[object], values: list[object]) -> None:
    """A column of days or moments is compared by its numbers."""
    lookup = ByValues(pa.table({"k": pa.array(known, pa.date32())}))

    found = lookup.places(pa.table({"k": pa.array([*values, *known], pa.date32())}))

    wanted = [known.index(v) if v in known else -1 for v in [*values, *known]]
    assert found.tolist() == wanted
