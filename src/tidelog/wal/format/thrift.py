"""A reader of Thrift's compact protocol, in which Parquet encodes its metadata. Pure.

Shape: a `Shape` lists the wanted fields of a struct and the kind that each must have. The result is
a dict of those that exist; all other fields are skipped.
Invariants: memory and time are bounded by the number of bytes read.
Source: Thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

I32: Final = 5
I64: Final = 6
BINARY: Final = 8
_TRUE: Final = 1
_FALSE: Final = 2
_BYTE: Final = 3
_I16: Final = 4
_DOUBLE: Final = 7
_LIST: Final = 9
_SET: Final = 10
_STRUCT: Final = 12
_NUMBERS: Final = (I32, I64, _I16)
_WIDTHS: Final = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}
_MOST: Final = {I32: 2**31, I64: 2**63}

_DEPTH_MAX: Final = 8
_LIST_MAX: Final = 4_096  # Columns, row groups or key-value pairs: our files have a few.

# Maps a field to a kind of number, BINARY, the shape of a struct, or a 1-tuple with the shape of a
# list's structs.
Shape: TypeAlias = Mapping[int, Any]
Struct: TypeAlias = dict[int, Any]


def read_struct(data: bytes, at: int, shape: Shape) -> tuple[Struct, int]:
    """Read the struct that begins at offset ``at``; return it and its end.

    Raises:
        ValueError: it is not a struct, or a field has another kind than its shape says.
    """
    try:
        return _struct(data, at, shape, 0)
    except IndexError:
        raise ValueError("it is truncated") from None


def _struct(data: bytes, at: int, shape: Shape, depth: int) -> tuple[Struct, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    found: Struct = {}
    field = 0
    while head := data[at]:
        kind = head & 15
        if head < 16:
            raise ValueError("its fields are out of order")
        field += head >> 4
        at += 1
        wanted = shape.get(field)
        if kind in _MOST:
            number = data[at]
            at += 1
            if number > 127:
                number, at = _longer(data, at, number)
            if wanted is None:
                continue
            number = (number >> 1) ^ -(number & 1)
            if kind != wanted or not -_MOST[kind] <= number < _MOST[kind]:
                raise ValueError(f"its field {field} has another type or is out of range")
            found[field] = number
        elif wanted is None:
            at = _skipped(data, at, kind, depth)
        else:
            found[field], at = _value(data, at, kind, wanted, depth)
    return found, at + 1


def _value(data: bytes, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
    if kind == BINARY == wanted:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        return data[at : at + length], at + length
    if kind == _STRUCT and isinstance(wanted, Mapping):
        return _struct(data, at, wanted, depth + 1)
    if kind != _LIST or not isinstance(wanted, tuple):
        raise ValueError("one of its fields has another type")
    count, kind, at = _list_head(data, at)
    if kind != _STRUCT and count:
        raise ValueError("one of its lists has elements of another type")
    structs: list[Struct] = []
    for _ in range(count):
        one, at = _struct(data, at, wanted[0], depth + 1)
        structs.append(one)
    return structs, at


def _skipped(data: bytes, at: int, kind: int, depth: int) -> int:
    if kind == BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _struct(data, at, {}, depth + 1)[1]
    if kind in _WIDTHS:
        return at + _WIDTHS[kind]
    if kind in _NUMBERS:
        return _varint(data, at)[1]
    if kind not in (_LIST, _SET) or depth > _DEPTH_MAX:
        raise ValueError("one of its fields has an unknown type")
    count, kind, at = _list_head(data, at)
    for _ in range(count):
        # Unlike in a struct, a boolean in a list takes a byte.
        at = at + 1 if kind in (_TRUE, _FALSE) else _skipped(data, at, kind, depth + 1)
    return at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if count > _LIST_MAX:
        raise ValueError("one of its lists is too long")
    return count, kind, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    return (byte, at + 1) if byte < 128 else _longer(data, at + 1, byte)


def _longer(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Read the rest of a number whose first byte announces more bytes."""
    number = first & 127
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("one of its numbers is too large")
