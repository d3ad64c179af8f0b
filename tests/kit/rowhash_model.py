"""The model of row hashes: H of one value, in Python integers, slowly.

This is the definition that the docstrings of `tidelog.rowhash.columns` describe.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from hypothesis import strategies as st

from tidelog.rowhash.xxh3 import seeds_of

Pair = tuple[int, int]
MASK = 2**64 - 1

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "integer": (pa.int64(), INT64),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats()),
    "decimal(2)": (pa.decimal128(38, 2), st.decimals(-(10**35), 10**35, places=2)),
    "decimal(3)": (pa.decimal256(76, 3), st.decimals(-(10**24), 10**24, places=3)),
    "date": (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    "timestamp[us]": (pa.timestamp("us"), INT64),
    "duration[ns]": (pa.duration("ns"), INT64),
    "string": (pa.string(), st.text(max_size=40)),
    "binary": (pa.binary(), st.binary(max_size=140)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | INT64, max_size=4)),
    "struct": (
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries(
            {"a": st.none() | st.text(), "b": st.none() | st.lists(st.none() | st.text())}
        ),
    ),
    "null": (pa.null(), st.none()),
}


def array_of(values: list[Any], dtype: pa.DataType) -> Any:
    if pa.types.is_temporal(dtype):
        width = pa.int32() if dtype.bit_width == 32 else pa.int64()
        return pa.array(values, width).view(dtype)
    return pa.array(values, dtype)


@st.composite
def values_of_a_type(draw: st.DrawFn) -> tuple[str, pa.DataType, list[Any]]:
    """Draw a type and values of it, with nulls among them."""
    name = draw(st.sampled_from(sorted(VALUES)))
    dtype, values = VALUES[name]
    return name, dtype, draw(st.lists(st.none() | values, max_size=12))


@st.composite
def typed_columns(draw: st.DrawFn) -> list[Any]:
    """Draw columns of one length, each of some type."""
    drawn = draw(st.lists(values_of_a_type(), min_size=1, max_size=4))
    rows = min(len(values) for _, _, values in drawn)
    return [array_of(values[:rows], dtype) for _, dtype, values in drawn]


def _xxh3(octets: bytes, name: str) -> Pair:
    low, high = _seeds(name)
    return xxhash.xxh3_64_intdigest(octets, low), xxhash.xxh3_64_intdigest(octets, high)


def _seeds(name: str) -> Pair:
    low, high = seeds_of(name)[:, 0].tolist()
    return low, high


def row_hash(part: Pair) -> Pair:
    """Return the hash of a row of one column, from the hash of its value."""
    return finish(fold(_seeds("row"), part))


def fold(state: Pair, part: Pair) -> Pair:
    return _fold_lane(state[0], part[0]), _fold_lane(state[1], part[1])


def _fold_lane(state: int, part: int) -> int:
    state ^= part
    state = (state << 27 | state >> 37) & MASK
    return (state * 0x9E3779B185EBCA87 + 0x85EBCA77C2B2AE63) & MASK


def finish(state: Pair) -> Pair:
    return _finish_lane(state[0]), _finish_lane(state[1])


def _finish_lane(state: int) -> int:
    state ^= state >> 33
    state = state * 0xC2B2AE3D27D4EB4F & MASK
    state ^= state >> 29
    state = state * 0x165667B19E3779F9 & MASK
    return state ^ state >> 32


def integer(value: int, name: str) -> Pair:
    size = next(size for size in (8, 16, 32) if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1)
    return _xxh3(value.to_bytes(size, "little", signed=True), name)


def value_hash(value: Any, name: str) -> Pair:
    if value is None:
        return _xxh3(bytes(8), "null")
    match name:
        case "string":
            return _xxh3(value.encode(), name)
        case "binary":
            return _xxh3(value, name)
        case "float":
            canonical = np.float64("nan") if math.isnan(value) else np.float64(value + 0.0)
            return _xxh3(canonical.tobytes(), name)
        case "list":
            return _model_list(value, "integer")
        case "struct":
            state = fold(_seeds("struct"), value_hash(value["a"], "string"))
            inner = None if value["b"] is None else _model_list(value["b"], "string")
            return finish(fold(state, inner or value_hash(None, "null")))
        case "decimal(2)" | "decimal(3)":
            return integer(_unscaled(value, int(name[8])), name)
        case _:
            return integer(int(value), "integer" if name == "unsigned" else name)


def _unscaled(value: Decimal, scale: int) -> int:
    # From the digits, because arithmetic would round to the 28 digits of the context.
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -number if sign else number


def _model_list(values: list[Any], name: str) -> Pair:
    elements = [
        finish(fold(integer(position, "element"), value_hash(value, name)))
        for position, value in enumerate(values)
    ]
    total = sum(e[0] for e in elements) & MASK, sum(e[1] for e in elements) & MASK
    return finish(fold(integer(len(values), "list"), total))
