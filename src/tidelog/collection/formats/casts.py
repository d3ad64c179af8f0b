"""Casts: conversion of values to another type, exactly or not at all. Pure.

The result for a value depends only on that value. A column is cast at once, except the values that
may not fit: each of those is cast alone. A cast never rounds, cuts or wraps a value. If an item in
a list or a struct does not fit, the whole list or struct does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.lines import Bools, Int64s, as_mask
from tidelog.collection.formats.looks import look_of
from tidelog.collection.formats.records import BadRowSearch
from tidelog.collection.formats.suspect_casts import is_number, suspect_cast
from tidelog.collection.formats.types import sql_type
from tidelog.persist.format.duck import duck, text_literal

Array: TypeAlias = "pa.Array[Any]"

# Guards against inexact reads by SQL. It drops digits past the sixth of a second, the time of day
# of a date, and the day or offset of a time. It makes numbers that are too large infinite. It takes
# 24:00, the end of a day, for its beginning.
_INTEGER: Final = "[+-]?[0-9]+"
_LOST_DIGITS: Final = r"[.][0-9]{6}[0-9]*[1-9]"
_DAY: Final = r"[^:]*|.*[T ]00:00(:00([.]0*)?)?Z?"
_TIME: Final = r"([01]?[0-9]|2[0-3]):[0-9]{2}(:[0-9]{2}([.][0-9]{1,6}0*)?)?"
_DAY_US: Final = 86_400_000_000
# SQL reads words such as 'epoch' as times, and strptime reads them as a day of 1900. So a text
# without a digit is refused.
_IS_WRITTEN: Final = "regexp_matches(x, '[0-9]')"
_JOINED_BYTES_MAX: Final = 1 << 30
_TOGETHER_BYTES_MAX: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class FitResult:
    """A table of the wanted types; ``misfit`` has each column's rows that do not fit.

    A row counts only for the first column that does not fit.
    """

    table: pa.Table
    misfit: Mapping[str, Int64s]


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of dates and timestamps for strptime, in addition to ISO 8601.

    With ``is_inferred``, a text must also match the pattern by which inference chose the type.
    """

    date: str | None = None
    timestamp: str | None = None
    is_inferred: bool = False

    def look_of(self, dtype: pa.DataType) -> str | None:
        """Return the pattern that texts of a type must match; None to try only the cast."""
        if not self.is_inferred:
            return None
        form = self.date if pa.types.is_date(dtype) else self.timestamp
        return look_of(dtype, by_format=form is not None)


_ISO: Final = Formats()


def fit(wire: pa.Table, wanted: pa.Schema, formats: Formats = _ISO) -> FitResult:
    """Cast each column of ``wire``, which has the wanted names and wire types; misfits are null."""
    fits = np.ones(wire.num_rows, dtype=np.bool_)
    misfit: dict[str, Int64s] = {}
    columns = {field.name: wire.column(field.name) for field in wanted}
    others = [f for f in wanted if columns[f.name].type != f.type or _has_times(f.type)]
    pieces = {f.name: _joined(columns[f.name]).chunks for f in others}
    kinds: dict[pa.DataType, list[str]] = {}
    for field in others:
        kinds.setdefault(field.type, []).append(field.name)
    cast: dict[str, list[tuple[Array, Bools]]] = {}
    for kind, names in kinds.items():
        done = iter(cast_columns([one for n in names for one in pieces[n]], kind, formats))
        cast.update((name, [next(done) for _ in pieces[name]]) for name in names)
    for field in others:
        found = cast[field.name]
        columns[field.name] = pa.chunked_array([values for values, _ in found], field.type)
        unfit = np.concatenate([_no_values(), *(unfit for _, unfit in found)])
        if unfit.any():
            misfit[field.name] = np.flatnonzero(unfit & fits)
            fits &= ~unfit
    return FitResult(pa.table(list(columns.values()), schema=wanted), misfit)


def _has_times(dtype: pa.DataType) -> bool:
    """Return True if a type has times of day: a value of that type may still be invalid."""
    if not pa.types.is_nested(dtype):
        return pa.types.is_time(dtype)
    return any(_has_times(dtype.field(place).type) for place in range(dtype.num_fields))


def _joined(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Return a column in one chunk, unless it is too large: each chunk costs a query."""
    if column.num_chunks <= 1 or column.nbytes > _JOINED_BYTES_MAX:
        return column
    return pa.chunked_array([pa.concat_arrays(column.chunks)])


def cast_columns(
    arrays: Sequence[Array], dtype: pa.DataType, formats: Formats = _ISO
) -> list[tuple[Array, Bools]]:
    """Cast several arrays, each as `cast_values` does.

    Short text columns are cast together, because the fixed cost of a query exceeds theirs, and a
    file may have thousands of columns.
    """
    found: list[tuple[Array, Bools]] = []
    for some in _together(arrays, dtype):
        values, unfit = cast_values(
            some[0] if len(some) == 1 else pa.concat_arrays(some), dtype, formats
        )
        start = 0
        for one in some:
            found.append((values.slice(start, len(one)), unfit[start : start + len(one)]))
            start += len(one)
    return found


def _together(arrays: Sequence[Array], dtype: pa.DataType) -> Iterator[Sequence[Array]]:
    """Yield the arrays, in order, in groups to cast together."""
    is_query = not pa.types.is_nested(dtype) and not pa.types.is_decimal(dtype)
    group: list[Array] = []
    size = 0
    for array in arrays:
        alone = not is_query or not pa.types.is_string(array.type)
        if group and (alone or size + array.nbytes > _TOGETHER_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(array)
        size += _TOGETHER_BYTES_MAX if alone else array.nbytes
    if group:
        yield group


def cast_values(array: Array, dtype: pa.DataType, formats: Formats = _ISO) -> tuple[Array, Bools]:
    """Return the values as ``dtype``, and a mask of those that do not fit: these become null."""
    given = _plain(array)
    if given.type == dtype and not (pa.types.is_nested(dtype) and _has_times(dtype)):
        return _checked(given, given)
    if pa.types.is_string(given.type):
        return _cast_text(given, dtype, formats)
    if isinstance(given, pa.ListArray) and isinstance(dtype, pa.ListType):
        return _cast_lists(given, dtype)
    if isinstance(given, pa.StructArray) and isinstance(dtype, pa.StructType):
        return _cast_structs(given, dtype)
    if pa.types.is_nested(given.type) or pa.types.is_nested(dtype):
        return _unfit_all(given, dtype)
    if pa.types.is_temporal(dtype) and not pa.types.is_temporal(given.type):
        return _unfit_all(given, dtype)  # The unit and the epoch of a number are unknown.
    if pa.types.is_time(dtype) and not pa.types.is_time(given.type):
        return _unfit_all(given, dtype)  # The day of a timestamp would be lost.
    if pa.types.is_boolean(given.type) and is_number(dtype):
        return _unfit_all(given, dtype)  # Arrow would cast true to 1.
    return _cast_exactly(given, dtype)


def _plain(array: Array) -> Array:
    """Return the same values without encodings and wide offsets."""
    dtype = array.type
    if pa.types.is_dictionary(dtype):
        return _plain(array.cast(dtype.value_type))
    if pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return array.cast(pa.string())
    if pa.types.is_large_binary(dtype) or pa.types.is_binary_view(dtype):
        return array.cast(pa.binary())
    if pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return array.cast(pa.list_(pa.field("item", dtype.value_type)))
    if pa.types.is_map(dtype):
        entries = [("key", dtype.key_type), ("value", dtype.item_type)]
        return array.cast(pa.list_(pa.field("item", pa.struct(entries))))
    return array


def _cast_exactly(array: Array, dtype: pa.DataType) -> tuple[Array, Bools]:
    if pa.types.is_date(dtype) and pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp(array.type.unit))  # Use the day in UTC, not in a time zone.
    try:
        return _checked(array, _cast(array, dtype))
    except pa.ArrowNotImplementedError:
        return _unfit_all(array, dtype)
    except pa.ArrowInvalid:
        return _cast_in_parts(array, dtype)


def _cast(array: Array, dtype: pa.DataType) -> Array:
    """Cast values as Arrow does, except that a cast to a decimal also detects an overflow.

    Raises:
        pa.ArrowInvalid: some value does not fit.
        pa.ArrowNotImplementedError: no value of the type fits.
    """
    if not pa.types.is_decimal(dtype):
        return array.cast(dtype)
    if pa.types.is_integer(array.type):
        # Arrow checks whether all numbers of the integer type fit, not only these values.
        array = array.cast(pa.decimal128(20, 0))
    # With the digits of its scale, a number may exceed 128 bits, and Arrow does not always detect
    # that. In 256 bits it fits.
    return array.cast(pa.decimal256(dtype.precision, dtype.scale)).cast(dtype)


def _checked(array: Array, cast: Array) -> tuple[Array, Bools]:
    """Return the cast values, and a mask of those that Arrow casts inexactly: these become null."""
    dtype = cast.type
    unfit = np.zeros(len(array), dtype=np.bool_)
    if pa.types.is_floating(dtype) and pa.types.is_floating(array.type):
        # A narrower float may round a value, as floats do, but must not make it infinite.
        unfit = as_mask(pc.and_(pc.is_inf(cast), pc.is_finite(array)))
    if pa.types.is_time(dtype):
        # Parquet stores times of day as whole numbers, which may be negative or exceed a day.
        numbers: Any = pc.fill_null(cast.cast(pa.int64()), pa.scalar(0))
        ticks = numbers.to_numpy()
        unfit = (ticks < 0) | (ticks >= _DAY_US)
    if pa.types.is_boolean(dtype):
        # Arrow casts every number but zero to true.
        unfit = as_mask(pc.not_equal(cast.cast(array.type), array))
    if pa.types.is_decimal(dtype) and pa.types.is_floating(array.type):
        # Arrow rounds to the digits of the decimal. A value fits if its text reads back as the same
        # float.
        unfit = as_mask(pc.not_equal(cast.cast(pa.string()).cast(array.type), array))
    if pa.types.is_date(dtype) and pa.types.is_timestamp(array.type):
        # Arrow drops the time of day, so only a midnight is cast exactly.
        unfit = as_mask(pc.not_equal(cast.cast(pa.timestamp(array.type.unit)), array))
    return _without(cast, unfit), unfit


def _cast_in_parts(array: Array, dtype: pa.DataType) -> tuple[Array, Bools]:
    """Cast values if at least one does not fit: the suspect values one by one."""
    count = len(array)
    if count == 1:
        return _unfit_all(array, dtype)
    suspects = suspect_cast(array, dtype)

    def cast_all(rows: Int64s) -> tuple[Array, Bools] | None:
        some = array.take(rows)
        try:
            return _checked(some, _cast(some, dtype))
        except pa.ArrowInvalid:
            return None

    def guess(rows: Int64s) -> Bools:
        return suspects.suspect[rows]

    search = BadRowSearch(cast_all, [guess], first_guess=guess)
    search.take(np.flatnonzero(~suspects.sure))
    found, rows, _ = search.ordered()
    unfit = np.ones(count, dtype=np.bool_)
    unfit[rows] = np.concatenate([_no_values(), *(mask for _, mask in found)])
    nothing: Array = pa.nulls(1, dtype)  # type: ignore[call-overload]
    # The place of each value among the cast ones; a value that was not cast gets the null at 0.
    places = np.zeros(count, dtype=np.int64)
    places[rows] = np.arange(1, len(rows) + 1)
    values: Array = pa.concat_arrays([nothing, *(values for values, _ in found)])
    return values.take(places), unfit


def _cast_text(array: Array, dtype: pa.DataType, formats: Formats) -> tuple[Array, Bools]:
    if pa.types.is_nested(dtype):
        text = _text_type(dtype)
        parsed, unread = _parsed(array, text, f"TRY_CAST(x AS {sql_type(text)})")
        cast, unfit = cast_values(parsed, dtype)
        return cast, unread | unfit
    if pa.types.is_binary(dtype):
        # Take the bytes of its UTF-8. SQL would interpret escapes in it, such as \x41.
        return array.cast(dtype), np.zeros(len(array), dtype=np.bool_)
    look = formats.look_of(dtype)
    if pa.types.is_decimal(dtype):
        return _cast_decimals(array, dtype, look)
    if pa.types.is_date(dtype) and formats.date is None:
        try:
            return array.cast(dtype), np.zeros(len(array), dtype=np.bool_)
        except pa.ArrowInvalid:
            pass  # Arrow is four times as fast as SQL, but accepts only year-month-day.
    parsing = _parsing(dtype, formats)
    if look is not None:
        parsing = f"CASE WHEN regexp_matches(x, {text_literal(look)}) THEN {parsing} END"
    return _parsed(array, dtype, parsing)


def _cast_decimals(array: Array, dtype: pa.DataType, look: str | None) -> tuple[Array, Bools]:
    cast, unfit = _cast_exactly(pc.utf8_trim_whitespace(array), dtype)
    if look is None:
        return cast, unfit
    unfit = unfit | as_mask(pc.invert(pc.match_substring_regex(array, look)))
    return _without(cast, unfit), unfit


def _parsed(array: Array, dtype: pa.DataType, sql: str) -> tuple[Array, Bools]:
    """Return texts converted by a SQL expression over ``x``, which is null for a misfit."""
    with duck() as connection:
        connection.register("wire", pa.table({"x": array, "n": np.arange(len(array))}))
        found: pa.Table = connection.sql(f"SELECT {sql} AS x FROM wire ORDER BY n").to_arrow_table()
    read = found.column("x").cast(dtype)
    values: Array = pa.concat_arrays([pa.array([], dtype), *read.chunks])
    return values, as_mask(pc.and_(values.is_null(), array.is_valid()))


def _parsing(dtype: pa.DataType, formats: Formats) -> str:
    if pa.types.is_integer(dtype):
        # SQL would round 1.5 and accept 1e3, but neither is the text of a whole number.
        return (
            f"CASE WHEN regexp_full_match(trim(x), '{_INTEGER}') "
            f"THEN TRY_CAST(trim(x) AS {sql_type(dtype)}) END"
        )
    if pa.types.is_timestamp(dtype):
        # A SQL cast to a plain timestamp would drop an offset such as +02:00. So cast to
        # TIMESTAMPTZ; times without an offset are UTC.
        moment = "TRY_CAST(x AS TIMESTAMPTZ)"
        if formats.timestamp is not None:
            moment = f"coalesce({_by_format(formats.timestamp)}::TIMESTAMPTZ, {moment})"
        cut = f"regexp_matches(x, '{_LOST_DIGITS}')"
        finite = f"CASE WHEN {_IS_WRITTEN} AND isfinite({moment}) AND NOT {cut} THEN {moment} END"
        return finite if dtype.tz else f"({finite}) AT TIME ZONE 'UTC'"
    if pa.types.is_date(dtype):
        day = f"CASE WHEN regexp_full_match(trim(x), '{_DAY}') THEN TRY_CAST(x AS DATE) END"
        if formats.date is not None:
            day = f"coalesce({_by_format(formats.date)}::DATE, {day})"
        return f"CASE WHEN {_IS_WRITTEN} AND isfinite({day}) THEN {day} END"
    if pa.types.is_time(dtype):
        return f"CASE WHEN regexp_full_match(trim(x), '{_TIME}') THEN TRY_CAST(trim(x) AS TIME) END"
    if pa.types.is_floating(dtype):
        number = f"TRY_CAST(x AS {sql_type(dtype)})"
        bent = f"contains(x, '_') OR (isinf({number}) AND regexp_matches(x, '[0-9]'))"
        return f"CASE WHEN NOT ({bent}) THEN {number} END"
    return f"TRY_CAST(x AS {sql_type(dtype)})"


def _by_format(form: str) -> str:
    return f"try_strptime(x, {text_literal(form)})"


def _text_type(dtype: pa.DataType) -> pa.DataType:
    """Return the same shape with text for each value in it."""
    if pa.types.is_list(dtype):
        return pa.list_(pa.field("item", _text_type(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, _text_type(f.type)) for f in dtype])
    return pa.string()


def _cast_lists(array: pa.ListArray[Any], dtype: pa.ListType[Any]) -> tuple[Array, Bools]:
    lists = pa.ListArray.from_arrays(
        pa.array(_offsets_of(array), pa.int32()), array.flatten(), mask=array.is_null()
    )
    values, unfit_values = cast_values(lists.values, dtype.value_type)
    unfit = np.zeros(len(array), dtype=np.bool_)
    unfit[pc.list_parent_indices(lists).to_numpy()[unfit_values]] = True
    cast = pa.ListArray.from_arrays(
        lists.offsets, values, type=dtype, mask=pa.array(as_mask(array.is_null()) | unfit)
    )
    return cast, unfit


def _offsets_of(array: pa.ListArray[Any]) -> np.ndarray[Any, np.dtype[np.int32]]:
    # The flattened values leave out those under a null list, and those outside of a slice.
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _cast_structs(array: pa.StructArray, dtype: pa.StructType) -> tuple[Array, Bools]:
    # If two fields have the same name, the first counts.
    there = {array.type.field(i).name: i for i in reversed(range(array.type.num_fields))}
    unfit = np.zeros(len(array), dtype=np.bool_)
    children: list[Array] = []
    for field in dtype:
        if field.name in there:
            child, unfit_child = cast_values(pc.struct_field(array, there[field.name]), field.type)
            unfit |= unfit_child
        else:
            child = pa.nulls(len(array), field.type)
        children.append(child)
    mask = pa.array(as_mask(array.is_null()) | unfit)
    return pa.StructArray.from_arrays(children, fields=list(dtype), mask=mask), unfit


def _unfit_all(array: Array, dtype: pa.DataType) -> tuple[Array, Bools]:
    nulls: Array = pa.nulls(len(array), dtype)  # type: ignore[call-overload]
    return nulls, as_mask(array.is_valid())


def _without(array: Array, unfit: Bools) -> Array:
    if not unfit.any():
        return array
    kept: Array = pc.if_else(pa.array(unfit), pa.scalar(None, array.type), array)
    return kept


def _no_values() -> Bools:
    return np.zeros(0, dtype=np.bool_)
