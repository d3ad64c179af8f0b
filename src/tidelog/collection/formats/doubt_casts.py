"""Which values an exact cast may refuse: guesses, by casts that lose and by patterns. Pure.

Arrow says that some value of many does not fit, and not which one. The guesses here are quick and
need not be right: who asked tries each doubtful value alone.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.places import Bools

Array: TypeAlias = "pa.Array[Any]"

_MANTISSA_BITS: Final = {16: 11, 32: 24, 64: 53}


def doubt_cast(array: Array, dtype: pa.DataType) -> Bools:
    """Say which values may not fit ``dtype``; none where there is no guess."""
    try:
        if pa.types.is_string(array.type):
            return _doubt_text(array, dtype)
        if pa.types.is_binary(array.type):
            return np.array([not _is_text(value) for value in array.to_pylist()], np.bool_)
        return _doubt_by_return(array, dtype)
    except pa.ArrowException:
        return np.zeros(len(array), dtype=np.bool_)


def _doubt_by_return(array: Array, dtype: pa.DataType) -> Bools:
    """Doubt the values that do not come back from a cast that may lose something."""
    loose = array.cast(dtype, safe=False)
    found = pc.not_equal(loose.cast(array.type, safe=False), array)
    if pa.types.is_integer(dtype) and pa.types.is_integer(array.type):
        # What was wrapped around to the other sign comes back whole.
        found = pc.or_(found, pc.not_equal(_is_negative(array), _is_negative(loose)))
    if pa.types.is_floating(dtype) and pa.types.is_integer(array.type):
        # Arrow refuses what lies beyond the whole numbers that are all there, exact or not.
        limit = 1 << _MANTISSA_BITS[dtype.bit_width]
        wide: Bools = np.abs(loose.to_numpy(zero_copy_only=False)) > limit
        found = pc.or_(found, pa.array(wide))
    return as_mask(found)


def _is_negative(array: Array) -> Array:
    found: Array = pc.less(array, pa.scalar(0, array.type))
    return found


def _doubt_text(array: Array, dtype: pa.DataType) -> Bools:
    if not pa.types.is_decimal(dtype):
        return np.zeros(len(array), dtype=np.bool_)
    whole = max(0, dtype.precision - dtype.scale)
    plain = rf"^[+-]?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{max(0, dtype.scale)}}})?$"
    return as_mask(pc.invert(pc.match_substring_regex(array, plain)))


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False


def as_mask(booleans: Array) -> Bools:
    """Return booleans as numpy has them; null is false."""
    return np.asarray(booleans.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
