"""Faults of json lines, found by other parsers than the one that decides. Pure.

Arrow's reader decides whether a line is good. It is slow for a single line, and seldom reports
which line of many is bad. So a quick parser guesses the bad lines, and Python's parser finds the
reasons.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidelog.collection.formats.json.texts import UNNAMEABLE
from tidelog.collection.formats.types import is_json, sql_type
from tidelog.persist.format.bounds import whole_range
from tidelog.wal.format.json import depth_of

Check = Callable[[bytes], object]

_NOT_FINITE: Final = re.compile(rb"-?(?:NaN|Inf(?:inity)?)")
_FLOAT32_MAX: Final = 3.4e38
# Python's parser stops at about 900 levels, which depends on its version. The reported reason must
# not depend on it, so the limit here is lower.
_DEPTH_MAX: Final = 800
_DIGITS: Final = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")


class _Number(float):
    """A number that is not an integer of moderate length, with its text."""

    text = ""


def line_checkers(wire: pa.Schema) -> list[Check]:
    """Return parsers of one line, which raise an error for most lines that do not fit.

    The first is the quickest. The second, if any, also checks the values.
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
    """Return a test for the values of a type; None if msgspec's own type tests enough."""
    if dtype == pa.uint64():
        return lambda value: value < 1 << 64
    if pa.types.is_decimal(dtype):
        scale, limit = dtype.scale, Decimal(10) ** (dtype.precision - dtype.scale)
        return lambda value: round(value, scale) == value and abs(value) < limit
    return None


def doubt_lines(lines: Iterable[bytes], check: Check, *, is_strict: bool) -> list[bool]:
    """Return for each line True if the check refuses it.

    Without ``is_strict``, numbers that are not finite, such as NaN, are accepted.
    """
    found: list[bool] = []
    for line in lines:
        try:
            check(line)
        except Exception:  # noqa: BLE001 - any error makes the line suspect
            # Arrow reads numbers that are not finite, but strict json does not have them.
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
    """Return the msgspec type for a wire type."""
    if pa.types.is_boolean(dtype):
        return bool
    if pa.types.is_integer(dtype):
        numbers = whole_range(dtype)
        # A bound of msgspec must fit in a signed integer of 64 bits.
        high = numbers[-1] if numbers[-1] < 1 << 63 else None
        return Annotated[int, msgspec.Meta(ge=numbers[0], le=high)]
    if pa.types.is_floating(dtype):
        return float
    if pa.types.is_decimal(dtype):
        return Decimal
    if pa.types.is_list(dtype):
        return list[_type(dtype.value_type) | None]  # type: ignore[misc]
    return _struct(list(dtype)) if pa.types.is_struct(dtype) else str


@dataclass(frozen=True, slots=True)
class LineFault:
    """The fault of a line; if ``is_sure``, Arrow's reader refuses the line for it."""

    reason: str
    is_sure: bool = False


class _Object(dict[str, Any]):
    """A JSON object, and the names that occur twice in it."""

    twins: frozenset[str] = frozenset()


class FaultFinder:
    """Finds the fault of a line, in words that do not depend on a library's version.

    It prepares for a schema once, because a file may have many bad lines, and each is read alone.
    """

    def __init__(self, wanted: pa.Schema, wire: pa.Schema) -> None:
        pairs = zip(wanted, wire, strict=True)
        self._columns = [
            (one.name, *_plain_values(on_wire.type), _judge(on_wire), *_misfits(one))
            for one, on_wire in pairs
            if not is_json(one)
        ]
        self._floats = [one.name for one in wire if pa.types.is_floating(one.type)]
        self._wire = list(wire)
        self._reading = _LineParser()

    def find(self, line: bytes) -> LineFault:
        """Return the fault of a line, if any."""
        if (depth := depth_of(line, least=_DEPTH_MAX)) > _DEPTH_MAX:
            return LineFault(
                f"the line nests arrays or objects {depth:,} deep; {_DEPTH_MAX} levels can be read"
            )
        try:
            value = self._reading.read(line)
        except UnicodeDecodeError:
            return _NOT_UTF8
        except (ValueError, RecursionError) as error:
            # Arrow's reader accepts Inf, and stops at a NUL byte. So it may accept such a line.
            is_plain = b"\0" not in line and _NOT_FINITE.search(line) is None
            return _NO_JSON if is_plain and isinstance(error, ValueError) else _NO_JSON_PERHAPS
        return self._fault_of(value) if type(value) is _Object else _NO_OBJECT

    def _fault_of(self, value: _Object) -> LineFault:
        for name, kinds, numbers, judge, unfit, perhaps_unfit in self._columns:
            found = value.get(name)
            if found is None or (type(found) in kinds and (not numbers or found in numbers)):
                continue
            if not (fits := judge(found)):
                return unfit if fits is False else perhaps_unfit
        if self._reading.wide:
            is_own = any(_is_too_wide(value.get(name)) for name in self._floats)
            return LineFault(f"the number {self._reading.wide[0][:40]} is too large", is_own)
        if self._reading.has_twins:
            return _TWINS if _has_known_twins(value, self._wire) else _TWINS_PERHAPS
        checked = {name for name, *_ in self._columns}
        for name, found in value.items():
            constant = None if name in checked else _constant_in(found)
            if constant is not None:
                return LineFault(f"column {name!r} holds {constant}, which json does not have")
        return _NOT_PLAIN


def _constant_in(value: Any) -> str | None:
    """Return NaN, Infinity or -Infinity if a value, as Python's parser returns it, has one."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict | list):
            waiting.extend(found.values() if isinstance(found, dict) else found)
        elif type(found) is float and not math.isfinite(found):
            return {"nan": "NaN", "inf": "Infinity"}.get(str(found), "-Infinity")
    return None


_NOT_UTF8: Final = LineFault("the line is not UTF-8")
_NO_JSON_PERHAPS: Final = LineFault("the line is not one json value")
_NO_JSON: Final = LineFault(_NO_JSON_PERHAPS.reason, is_sure=True)
_NO_OBJECT: Final = LineFault("the line is not a json object")
_TWINS_PERHAPS: Final = LineFault("a field is named twice")
_TWINS: Final = LineFault(_TWINS_PERHAPS.reason, is_sure=True)
_NOT_PLAIN: Final = LineFault("the line is not a plain json object")


def _misfits(field: pa.Field[Any]) -> tuple[LineFault, LineFault]:
    """Return the fault of a value that Arrow surely refuses, and of one that it may refuse."""
    reason = f"column {field.name!r} does not fit its type {sql_type(field.type)}"
    return LineFault(reason, is_sure=True), LineFault(reason)


def _judge(field: pa.Field[Any]) -> Callable[[Any], bool | None]:
    """Return `_fits` for a field, quicker for the digits of a decimal."""
    dtype: Any = field.type
    if not pa.types.is_decimal(dtype):
        return partial(_fits, field=field)
    whole, scale = dtype.precision - dtype.scale, max(0, dtype.scale)

    def judge(value: Any) -> bool | None:
        found = _DIGITS.fullmatch(value) if type(value) is str else None
        if found is not None:
            digits, fraction = found.groups("")
            if fraction[scale:].strip("0"):
                return False
            # Decimals of Python have 28 digits: those of more are left to `_fits`.
            if len(fraction) <= scale and len(digits) <= min(whole, 28 - scale):
                return True
        return _fits(value, field)

    return judge


def _plain_values(dtype: pa.DataType) -> tuple[tuple[type, ...], range | None]:
    """Return the Python types that surely fit a column, and for integers the range that fits."""
    if pa.types.is_boolean(dtype):
        return (bool,), None
    if pa.types.is_integer(dtype):
        return (int,), whole_range(dtype)
    if pa.types.is_floating(dtype):
        return (int, float, _Number) if dtype.bit_width > 32 else (), None
    nested = pa.types.is_nested(dtype) or pa.types.is_decimal(dtype)
    return () if nested else (str,), None


class _LineParser:
    """Reads one line by Python's parser, and records features that Arrow's reader may refuse."""

    def __init__(self) -> None:
        self.has_twins = False
        self.wide: list[str] = []
        decoder: Any = json.JSONDecoder(
            object_pairs_hook=self._pairs, parse_float=self._number, parse_int=self._integer
        )
        self._scan = decoder.scan_once

    def read(self, line: bytes) -> Any:
        """Return the value of a line; its recorded features replace those of the line before."""
        self.has_twins = False
        self.wide.clear()
        text = line.decode("utf-8").strip(" \t\r\n")
        try:
            value, end = self._scan(text, 0)
        except StopIteration as error:
            raise ValueError(text) from error
        if end < len(text):
            raise ValueError(text)
        return value

    def _pairs(self, items: list[tuple[str, Any]]) -> _Object:
        found = _Object(items)
        if len(found) < len(items):
            self.has_twins = True
            seen: set[str] = set()
            twins: set[str] = set()
            for name, _ in items:
                (twins if name in seen else seen).add(name)
            found.twins = frozenset(twins)
        return found

    def _number(self, text: str) -> _Number:
        value = _Number(text)
        value.text = text
        if not math.isfinite(value):
            self.wide.append(text)
        return value

    def _integer(self, text: str) -> float:
        # No integer column fits more than 300 digits. A double may still fit a number just above
        # 300 digits.
        return int(text) if len(text) <= 300 else self._number(text)


def field_names(fields: Iterable[pa.Field[Any]]) -> set[str]:
    """Return the names of fields, and of the fields within structs."""
    found: set[str] = set()
    for field in fields:
        found.add(field.name)
        if pa.types.is_struct(field.type):
            found |= field_names(field.type)
    return found


def _is_too_wide(value: Any) -> bool:
    """Return True for a number written in digits that exceeds the range of a double."""
    return isinstance(value, _Number) and not math.isfinite(value)


def _has_known_twins(value: Any, fields: Sequence[pa.Field[Any]]) -> bool:
    """Return True if an object, or one nested in it, has a field of the schema twice."""
    if not isinstance(value, _Object):
        return False
    return any(
        field.name in value.twins
        or (
            pa.types.is_struct(field.type)
            and _has_known_twins(value.get(field.name), list(field.type))
        )
        for field in fields
    )


def _fits(value: Any, field: pa.Field[Any]) -> bool | None:
    """Return True if a value fits, and False if Arrow surely refuses it.

    Return None if it does not fit, and Arrow may or may not refuse it.
    """
    dtype = field.type
    if value is None:
        return True
    if _is_unlike(value, dtype):
        return False
    if pa.types.is_decimal(dtype) and not _is_decimal(value, dtype):
        return None
    parses = not _is_unclear(value, dtype) or _parses(value, field)
    return (parses and not (pa.types.is_nested(dtype) and _is_beyond(value, dtype))) or None


def _is_unclear(value: Any, dtype: pa.DataType) -> bool:
    """Return True if a value is, or contains, a decimal that is not plain digits."""
    if value is None:
        return False
    if pa.types.is_list(dtype):
        return any(_is_unclear(one, dtype.value_type) for one in value)
    if pa.types.is_struct(dtype):
        return any(_is_unclear(value.get(field.name), field.type) for field in dtype)
    return pa.types.is_decimal(dtype) and not _is_plain_decimal(value, dtype)


def _is_unlike(value: Any, dtype: pa.DataType) -> bool:
    """Return True if Arrow surely refuses a value, or one nested in it, for its type or size."""
    kind = type(value)
    if value is None:
        return False
    if pa.types.is_boolean(dtype):
        return kind is not bool
    if pa.types.is_integer(dtype):
        return kind is not int or value not in whole_range(dtype)
    if pa.types.is_floating(dtype):
        return kind not in (int, float, _Number) or (
            dtype.bit_width <= 32 and not _is_narrow(value)
        )
    if pa.types.is_list(dtype):
        return kind is not list or any(_is_unlike(one, dtype.value_type) for one in value)
    if pa.types.is_struct(dtype):
        return kind is not _Object or any(_is_unlike(value.get(f.name), f.type) for f in dtype)
    if pa.types.is_decimal(dtype):
        return kind not in (str, int, float, _Number) or _has_lost_digits(value, dtype)
    return kind is not str


def _has_lost_digits(value: Any, dtype: Any) -> bool:
    """Return True for text without a digit, or with more digits than the scale of a decimal."""
    text = str(getattr(value, "text", value))
    found = _DIGITS.fullmatch(text)
    if found is None:
        return not any(sign.isdigit() for sign in text)
    return bool(found[2] and found[2][max(0, dtype.scale) :].strip("0"))


def _is_plain_decimal(value: Any, dtype: Any) -> bool:
    """Return True for a number in plain digits that fits the precision and scale of a decimal."""
    found = _DIGITS.fullmatch(str(getattr(value, "text", value)))
    whole, fraction = dtype.precision - dtype.scale, max(0, dtype.scale)
    return (
        found is not None and len(found[1].lstrip("0")) <= whole and len(found[2] or "") <= fraction
    )


def _is_decimal(value: Any, dtype: pa.DataType) -> bool:
    fits = _test(dtype)
    try:
        return fits is not None and fits(Decimal(getattr(value, "text", value)))
    except (ArithmeticError, TypeError, ValueError):
        return False


def overflows(line: bytes, wire: pa.Schema) -> bool:
    """Return True if a line that Arrow accepts has a number too large for its float column.

    An infinity that is written as such does not count.
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
    """Return True if a column has an infinite float."""
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
    except Exception:  # noqa: BLE001 - any error means that Arrow refuses the value
        return False
