"""What can be said against a line of json, by other parsers than the one that decides. Pure.

Arrow's reader decides what a line is. It is slow to ask it about one line, and it seldom says which
one of many is bad: so a quick parser guesses, and Python's says why.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidelog.collection.formats.json.texts import UNNAMEABLE
from tidelog.collection.formats.types import is_json, sql_type
from tidelog.persist.format.bounds import whole_range

Check = Callable[[bytes], object]

_NOT_FINITE: Final = re.compile(rb"-?(?:NaN|Inf(?:inity)?)")
_FLOAT32_MAX: Final = 3.4e38
# Python's parser stops at some 900 levels, fewer or more by version: the reason must not.
_DEPTH_MAX: Final = 800
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]')


class _Number(float):
    """A number that is not written as an integer, and how it is written."""

    text = ""


def line_checkers(wire: pa.Schema) -> list[Check]:
    """Return parsers of one line, which raise an error for most lines that do not fit.

    The first is the quickest; the second, if there is one, looks at values too.
    """
    decode: Check = msgspec.json.Decoder(_struct(list(wire))).decode
    tests = [(f"f{i}", t) for i, f in enumerate(wire) if (t := _test(f.type)) is not None]

    def check(line: bytes) -> None:
        row = decode(line)
        for name, fits in tests:
            value = getattr(row, name, None)
            if value is not None and not fits(value):
                raise ValueError(name)

    return [decode, check] if tests else [decode]


def _test(dtype: pa.DataType) -> Callable[[Any], bool] | None:
    """Return what tells the values that a type lacks, where msgspec's own type does not."""
    if dtype == pa.uint64():
        return lambda value: value < 1 << 64
    if pa.types.is_decimal(dtype):
        scale, limit = dtype.scale, Decimal(10) ** (dtype.precision - dtype.scale)
        return lambda value: round(value, scale) == value and abs(value) < limit
    return None


def doubt_lines(lines: Iterable[bytes], check: Check, *, is_strict: bool) -> list[bool]:
    """Say of each line whether a checker refuses it; of NaN, only one that ``is_strict`` does."""
    found: list[bool] = []
    for line in lines:
        try:
            check(line)
        except Exception:  # noqa: BLE001 - of any kind, it is a doubt.
            # Arrow reads numbers that are not finite; strict json has none of them.
            plain = line if is_strict else _NOT_FINITE.sub(b"0", line)
            found.append(plain == line or doubt_lines([plain], check, is_strict=True)[0])
        else:
            found.append(False)
    return found


def _struct(fields: list[pa.Field[Any]]) -> Any:
    known = {f"f{i}": f for i, f in enumerate(fields) if not UNNAMEABLE.search(f.name)}
    return msgspec.defstruct(
        "Line",
        [(n, _type(f.type) | None, None) for n, f in known.items()],
        rename={n: f.name for n, f in known.items()},
    )


def _type(dtype: pa.DataType) -> Any:
    """Return what msgspec calls a wire type."""
    if pa.types.is_boolean(dtype):
        return bool
    if pa.types.is_integer(dtype):
        numbers = whole_range(dtype)
        # Its bounds must fit into 64 bits themselves.
        high = numbers[-1] if numbers[-1] < 1 << 63 else None
        return Annotated[int, msgspec.Meta(ge=numbers[0], le=high)]
    if pa.types.is_floating(dtype):
        return float
    if pa.types.is_decimal(dtype):
        return Decimal
    if pa.types.is_list(dtype):
        return list[_type(dtype.value_type) | None]  # type: ignore[misc]
    return _struct(list(dtype)) if pa.types.is_struct(dtype) else str


def fault_of(line: bytes, wanted: pa.Schema, wire: pa.Schema) -> str:
    """Return what is wrong with a bad line, in words that do not change with a library."""
    repeated: list[bool] = []
    wide: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        repeated.extend([True] * (len(found) < len(items)))
        return found

    def number(text: str) -> _Number:
        value = _Number(text)
        value.text = text
        if not math.isfinite(value):
            wide.append(text)
        return value

    def integer(text: str) -> float:
        # Of so many digits, no column of whole numbers holds one; a double holds the least of them.
        return int(text) if len(text) <= 300 else number(text)

    if (depth := _depth_of(line)) > _DEPTH_MAX:
        return f"the line nests arrays or objects {depth:,} deep; {_DEPTH_MAX} levels can be read"
    try:
        value: Any = json.loads(
            line.decode("utf-8"), object_pairs_hook=pairs, parse_float=number, parse_int=integer
        )
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    except (ValueError, RecursionError):
        return "the line is not one json value"
    if not isinstance(value, dict):
        return "the line is not a json object"
    plain = ((one, kind) for one, kind in zip(wanted, wire, strict=True) if not is_json(one))
    for field, on_wire in plain:
        if field.name in value and not _fits(value[field.name], on_wire):
            return f"column {field.name!r} does not fit its type {sql_type(field.type)}"
    if wide:
        return f"the number {wide[0][:40]} is too large"
    return "a field is named twice" if repeated else "the line is not a plain json object"


def _depth_of(line: bytes) -> int:
    """Return how deep brackets nest, outside of strings."""
    if line.count(b"[") + line.count(b"{") <= _DEPTH_MAX:
        return 0
    depth = deepest = 0
    for found in _BRACKETS.finditer(line):
        sign = found.group()[:1]
        if sign != b'"':
            depth += 1 if sign in b"[{" else -1
            deepest = max(deepest, depth)
    return deepest


def _fits(value: Any, field: pa.Field[Any]) -> bool:
    kind, dtype = type(value), field.type
    if value is None:
        return True
    if pa.types.is_boolean(dtype):
        return kind is bool
    if pa.types.is_integer(dtype):
        return kind is int and value in whole_range(dtype)
    if pa.types.is_floating(dtype):
        return kind in (int, float, _Number) and (dtype.bit_width > 32 or _is_narrow(value))
    if pa.types.is_string(dtype):
        return kind is str
    if pa.types.is_decimal(dtype) and not _is_decimal(value, dtype):
        return False
    return _parses(value, field) and not _is_beyond(value, dtype)


def _is_decimal(value: Any, dtype: pa.DataType) -> bool:
    fits = _test(dtype)
    try:
        return fits is not None and fits(Decimal(getattr(value, "text", value)))
    except (ArithmeticError, TypeError, ValueError):
        return False


def overflows(line: bytes, wire: pa.Schema) -> bool:
    """Say whether a line, which Arrow takes, has a number that its column's floats cannot hold.

    Where infinity itself is written, it is meant.
    """
    meant: Any = None
    found = json.loads(line, parse_int=float, parse_constant=lambda _: meant)
    return any(_is_beyond(found.get(field.name), field.type) for field in wire)


def _is_beyond(value: Any, dtype: pa.DataType) -> bool:
    if value is None:
        return False
    if pa.types.is_list(dtype):
        return any(_is_beyond(one, dtype.value_type) for one in value)
    if pa.types.is_struct(dtype):
        return any(_is_beyond(value.get(field.name), field.type) for field in dtype)
    if not pa.types.is_floating(dtype):
        return False
    return math.isinf(pa.scalar(float(value), pa.float64()).cast(dtype).as_py())


def has_infinity(array: pa.Array[Any] | pa.ChunkedArray[Any]) -> bool:
    """Say whether some float of a column is infinite."""
    dtype = array.type
    if pa.types.is_list(dtype):
        return has_infinity(pc.list_flatten(array))
    if pa.types.is_struct(dtype):
        return any(has_infinity(pc.struct_field(array, i)) for i in range(dtype.num_fields))
    return pa.types.is_floating(dtype) and bool(pc.any(pc.is_inf(array)).as_py())


def _is_narrow(value: float) -> bool:
    return not math.isfinite(value) or abs(value) <= _FLOAT32_MAX


def _parses(value: Any, field: pa.Field[Any]) -> bool:
    text = io.BytesIO(json.dumps({field.name: value}).encode())
    options = pj.ParseOptions(
        explicit_schema=pa.schema([field]), unexpected_field_behavior="ignore"
    )
    try:
        return pj.read_json(text, parse_options=options).num_rows == 1
    except Exception:  # noqa: BLE001 - whatever it says, it does not take the value.
        return False
