"""Arrow arrays made from Python and NumPy values, and back, without pandas. Pure.

PyArrow's own conversions (`pyarrow.array`, `pyarrow.scalar`, ``to_numpy``) import pandas, if it is
installed, to recognize its types. The first append would spend half a second on that import.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def binary_array(values: Sequence[bytes | bytearray]) -> pa.BinaryArray:
    """Return values as an array of type binary; the caller checks that they have under 2 GiB."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    made: Any = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    return cast("pa.BinaryArray", made)


def binary_scalar(value: bytes) -> pa.BinaryScalar:
    return binary_array([value])[0]


def array_of_numbers(numbers: np.ndarray[Any, Any]) -> Any:
    """Return numbers as an Arrow array, which shares their memory."""
    data = pa.py_buffer(np.ascontiguousarray(numbers).data)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


def lengths_of(column: Any) -> Any:
    """Return the lengths of an array or a column of type binary: int32, and -1 for a null."""
    lengths: Any = pc.binary_length(column)
    return numbers_of(pc.fill_null(lengths, _NULL) if lengths.null_count else lengths)


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def numbers_of(column: Any) -> Any:
    """Return the numbers of an array or a column, without a copy if it has one chunk.

    A column with nulls becomes what ``to_numpy`` makes of it.
    """
    if column.null_count:
        return column.to_numpy(zero_copy_only=False)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.from_dlpack(column)


_NULL: Final = array_of_numbers(np.array([-1], np.int32))[0]
