"""The model of row hashes: H of one value, in Python integers, slowly.

This is the definition that the docstrings of `tidelog.rowhash.columns` describe.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import xxhash

from tidelog.rowhash.xxh3 import seeds_of

Pair = tuple[int, int]
MASK = 2**64 - 1


def _xxh3(octets: bytes, name: str) -> Pair:
    low, high = seeds_of(name)
    return xxhash.xxh3_64_intdigest(octets, low), xxhash.xxh3_64_intdigest(octets, high)


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
            state = fold(seeds_of("struct"), value_hash(value["a"], "string"))
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
