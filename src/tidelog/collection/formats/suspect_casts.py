"""Guesses of the values that an exact cast may refuse, and of those that it surely refuses. Pure.

Arrow reports that some value does not fit, but not which one. The guesses here are quick: they use
lossy casts and patterns. A suspect value is cast alone. If many values do not fit, that takes most
of the time, so values that surely do not fit are not cast at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.lines import Array, Bools, are_utf8, as_mask

_MANTISSA_BITS: Final = {16: 11, 32: 24, 64: 53}


@dataclass(frozen=True, slots=True)
class Suspects:
    """Masks of the values that may not fit, and of those that surely do not fit."""

    suspect: Bools
    sure: Bools


def suspect_cast(array: Array, dtype: Any) -> Suspects:
    """Return the values that may not fit ``dtype``; no value if there is no guess."""
    nothing = np.zeros(len(array), dtype=np.bool_)
    try:
        if pa.types.is_string(array.type):
            if not pa.types.is_decimal(dtype):
                return Suspects(nothing, nothing)
            sure = _lose_digits(array, dtype)
            return Suspects(_suspect_text(array, dtype) | sure, sure)
        if pa.types.is_binary(array.type):
            no_text = as_mask(pc.invert(are_utf8(array)))
            return Suspects(no_text, no_text)
        if pa.types.is_decimal(dtype) and not pa.types.is_decimal(array.type):
            wide = _are_wide(array, dtype)
            return Suspects(wide, wide)
        found = _suspect_by_return(array, dtype)
        return Suspects(found, found if is_number(array.type) and is_number(dtype) else nothing)
    except pa.ArrowException:
        return Suspects(nothing, nothing)


def is_number(dtype: pa.DataType) -> bool:
    """Return True for whole numbers, floats and decimals."""
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)


def _are_wide(array: Array, dtype: Any) -> Bools:
    """Return a mask of the numbers that are not finite, or surely exceed a decimal type."""
    limit = 10 ** max(0, dtype.precision - dtype.scale)
    if pa.types.is_integer(array.type):
        filled: Any = pc.fill_null(array, pa.scalar(0, array.type))
        numbers = filled.to_numpy(zero_copy_only=False)
        found: Bools = np.zeros(len(array), dtype=np.bool_)
        for bound, is_beyond in ((limit, np.greater_equal), (-limit, np.less_equal)):
            if np.iinfo(numbers.dtype).min <= bound <= np.iinfo(numbers.dtype).max:
                found |= is_beyond(numbers, bound)
        return found
    if not pa.types.is_floating(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    known: Any = pc.fill_null(array.cast(pa.float64()), pa.scalar(0.0))
    floats = known.to_numpy(zero_copy_only=False)
    # Close to the limit, rounding decides whether a float fits, so only the cast can tell.
    wide: Bools = ~np.isfinite(floats) | (np.abs(floats) > 1.01 * limit)
    return wide


def _suspect_by_return(array: Array, dtype: pa.DataType) -> Bools:
    """Return a mask of the values that a lossy cast and its reverse do not restore."""
    loose = array.cast(dtype, safe=False)
    found = pc.not_equal(loose.cast(array.type, safe=False), array)
    if pa.types.is_integer(dtype) and pa.types.is_integer(array.type):
        # The reverse cast restores a value that wrapped around to the other sign.
        found = pc.or_(found, pc.not_equal(_is_negative(array), _is_negative(loose)))
    if pa.types.is_floating(dtype) and pa.types.is_integer(array.type):
        # Arrow refuses all whole numbers beyond the mantissa of a float, even exact ones.
        limit = 1 << _MANTISSA_BITS[dtype.bit_width]
        wide: Bools = np.abs(loose.to_numpy(zero_copy_only=False)) > limit
        found = pc.or_(found, pa.array(wide))
    return as_mask(found)


def _is_negative(array: Array) -> Array:
    found: Array = pc.less(array, pa.scalar(0, array.type))
    return found


def _suspect_text(array: Array, dtype: Any) -> Bools:
    whole = max(0, dtype.precision - dtype.scale)
    plain = rf"^[+-]?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{max(0, dtype.scale)}}})?$"
    return as_mask(pc.invert(pc.match_substring_regex(array, plain)))


def _lose_digits(array: Array, dtype: Any) -> Bools:
    """Return a mask of the texts that are not numbers, or have more digits than a decimal type."""
    whole, scale = max(0, dtype.precision - dtype.scale), max(0, dtype.scale)
    faults = (
        r"^[^0-9]*$|[^0-9eE+.\-]",
        rf"^[+-]?[0-9]*\.[0-9]{{{scale}}}[0-9]*[1-9][0-9]*$",
        rf"^[+-]?0*[1-9][0-9]{{{whole}}}[0-9]*(\.[0-9]*)?$",
    )
    return as_mask(pc.match_substring_regex(array, "|".join(f"(?:{one})" for one in faults)))
