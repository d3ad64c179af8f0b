"""Conversions between Python or NumPy values and Arrow arrays agree with PyArrow's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.wal.format.arrays import array_of_numbers, binary_array, lengths_of, numbers_of


@given(st.lists(st.binary(max_size=9) | st.binary(max_size=9).map(bytearray), max_size=9))
def test_binary_arrays_hold_their_values(values: list[bytes | bytearray]) -> None:
    """An array built from bytes and bytearrays equals the array that PyArrow builds."""
    array = binary_array(values)

    array.validate(full=True)
    assert array.equals(pa.array(values, pa.binary()))


@given(st.lists(st.none() | st.binary(max_size=9), max_size=9), st.integers(0, 9))
def test_lengths_of_a_slice_are_those_of_its_values(values: list[bytes | None], start: int) -> None:
    """The lengths of a slice, on which checksums depend, are those of its values."""
    sliced = pa.array(values, pa.binary()).slice(start)

    lengths = lengths_of(pa.chunked_array([sliced, sliced], pa.binary()))

    wanted = [-1 if value is None else len(value) for value in values[start:]]
    assert lengths.tolist() == 2 * wanted


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_numbers_survive_the_way_to_arrow_and_back(kind: type[np.integer], step: int) -> None:
    """Positions and times survive the conversion to Arrow and back, also from NumPy views."""
    numbers = np.arange(7, dtype=kind)[::step]

    array = array_of_numbers(numbers)

    assert array.equals(pa.array(numbers.copy()))
    assert numbers_of(array.slice(2)).tolist() == numbers[2:].tolist()
    assert numbers_of(pa.chunked_array([array, array])).tolist() == [*numbers, *numbers]
