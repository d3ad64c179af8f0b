"""Conversions of arrays of plain Avro values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = "pa.Array[Any]"
_DECIMAL_BYTES: Final = 32
_FILLED_BYTES_MAX: Final = 31  # All numbers of 31 bytes have at most 76 digits.


def viewed(array: Array, dtype: pa.DataType) -> Array:
    """Return whole numbers as dates or times of a type that counts in the same unit.

    Raises:
        pa.ArrowInvalid: a number exceeds the 32 bits of the type.
    """
    return (array.cast(pa.int32()) if dtype.bit_width == 32 else array).view(dtype)


def as_int(array: Array) -> Array:
    """Return numbers as 32 bits.

    Raises:
        pa.ArrowInvalid: a number exceeds them.
    """
    return array.cast(pa.int32())


def as_text(array: Array) -> Array:
    """Return bytes as text, without a check that they are UTF-8."""
    return array.view(pa.string())


def as_symbols(symbols: Sequence[str], array: Array) -> Array:
    """Return the symbol of each number of an enum.

    Raises:
        IndexError: a number has no symbol.
    """
    return pa.array(symbols, pa.string()).take(array)


def as_decimals(array: Array, scale: int) -> Array:
    """Return bytes, numbers with their highest byte first, as decimals of 76 digits.

    Raises:
        ValueError: a number has more than 31 bytes.
    """
    values: Any = array
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    sizes = np.diff(offsets)
    if sizes.max(initial=0) > _FILLED_BYTES_MAX:
        raise ValueError("a decimal has more than 31 bytes")
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    rows = np.repeat(np.arange(len(sizes)), sizes)
    places = np.arange(len(data)) - (offsets[:-1] - offsets[0])[rows]
    filled = sizes > 0
    signs = np.zeros(len(sizes), np.uint8)
    signs[filled] = data[(offsets[:-1] - offsets[0])[filled]]
    numbers = np.where(signs >= 128, np.uint8(255), np.uint8(0))[:, None]
    numbers = np.repeat(numbers, _DECIMAL_BYTES, axis=1)
    numbers[rows, sizes[rows] - 1 - places] = data  # The lowest byte first.
    valid = None if not values.null_count else pa.array(~_nulls(values)).buffers()[1]
    dtype = pa.decimal256(76, scale)
    return pa.Array.from_buffers(dtype, len(values), [valid, pa.py_buffer(numbers.tobytes())])


def _nulls(array: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def with_children(array: Array, changes: Sequence[Callable[[Array], Array]]) -> Array:
    """Return structs, or lists, with each array of children changed."""
    nested: Any = array
    if pa.types.is_struct(nested.type):
        children = [change(nested.field(place)) for place, change in enumerate(changes)]
        named = zip(nested.type, children, strict=True)
        dtype: pa.DataType = pa.struct([pa.field(old.name, one.type) for old, one in named])
        buffers = nested.buffers()[:1]
    else:
        children = [changes[0](nested.values)]
        dtype = pa.list_(pa.field("item", children[0].type))
        buffers = nested.buffers()[:2]
    return pa.Array.from_buffers(
        dtype, len(nested), buffers, offset=nested.offset, children=children
    )


def as_json_texts(array: Array) -> Array:
    """Return values as the texts of json values; bytes are written in base64."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.string())
    values = array.to_pylist()
    encode = msgspec.json.encode
    return pa.array([None if one is None else encode(one).decode() for one in values], pa.string())


def first_valid(arrays: Sequence[Array]) -> Array:
    """Return for each row the first value that is not null."""
    found: Array = pc.coalesce(*arrays)
    return found
