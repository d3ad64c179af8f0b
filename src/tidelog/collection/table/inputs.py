"""Inputs of writes: rows of any kind, as Arrow tables of a table's columns. Pure.

Columns are matched by name. A missing column is null, and an unknown one is refused. Values are
cast only if they stay equal; only floats are rounded to a shorter float. A null in a key column is
refused.
Shape: an Arrow table, batch or reader; an object with ``__arrow_c_stream__`` or
    ``__arrow_c_array__``, such as a Polars DataFrame; a pandas DataFrame; a list of dicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from tidelog.core.arguments import joined_names, quoted
from tidelog.errors import UsageError
from tidelog.persist.format.schema import (
    DIFF,
    TIME,
    ShardSchema,
    canonical_type,
    fitted,
)
from tidelog.persist.format.updates import conform

KINDS: Final = "an Arrow table, batch or reader, a pandas or Polars DataFrame, or a list of dicts"
PIECE_ROWS: Final = 1 << 20
PIECE_BYTES: Final = 256 * 1024 * 1024


def table_of(rows: object, schema: ShardSchema) -> pa.Table:
    """Return rows as one table with the columns of ``schema``.

    Raises:
        UsageError: ``rows`` is of another kind, has an unknown column or a null key, or a value
            does not fit its column.
    """
    return pa.concat_tables([schema.data.empty_table(), *tables_of(rows, schema)])


def keys_of(keys: object, schema: ShardSchema) -> pa.Table:
    """Return keys as a table of the key columns: rows as in `table_of`, or values of one column.

    Raises:
        UsageError: the table has no key; or see `table_of`.
    """
    if not schema.key:
        raise UsageError("the table has no key: delete with where=, or create a table with a key")
    if len(schema.key) == 1 and _are_values(keys):
        keys = pa.table([_column_of(schema.key[0], _listed(keys), schema, 0)], schema.key)
    return table_of(keys, key_schema(schema))


def key_schema(schema: ShardSchema) -> ShardSchema:
    """Return the schema of the key columns alone."""
    return ShardSchema(
        pa.schema([schema.data.field(name) for name in schema.key]), schema.key_columns
    )


def _are_values(keys: object) -> bool:
    """Return True for the values of one column, such as [1, 2]; rows are dicts or tables."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return True
    if not isinstance(keys, Sequence | AbstractSet) or isinstance(keys, str | bytes):
        return False
    return not any(isinstance(key, Mapping) for key in keys)


def _listed(keys: Any) -> list[object]:
    return keys.to_pylist() if isinstance(keys, pa.Array | pa.ChunkedArray) else list(keys)


def tables_of(rows: object, schema: ShardSchema) -> Iterator[pa.Table]:
    """Yield rows in pieces of about `PIECE_ROWS` rows, or `PIECE_BYTES`; see `table_of`.

    A reader is read piece by piece, so it may be larger than memory.
    """
    first = 0
    for piece in _pieces(rows, schema):
        yield _fitting(piece, schema, first=first)
        first += piece.num_rows


def _pieces(rows: object, schema: ShardSchema) -> Iterator[pa.Table]:
    """Yield rows as Arrow tables of any columns."""
    if isinstance(rows, pa.Table):
        yield from _slices(rows)
    elif isinstance(rows, pa.RecordBatch):
        yield from _slices(pa.Table.from_batches([rows]))
    elif isinstance(rows, pa.RecordBatchReader):
        yield from _pieces_of_reader(rows)
    elif _package_of(rows) == "pandas":
        yield from _slices(_table_of_frame(rows))
    elif _package_of(rows) == "pyspark":
        raise UsageError(
            "rows cannot be a Spark DataFrame: pass rows.toArrow(), which brings all rows to this "
            "process"
        )
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from _pieces_of_reader(pa.RecordBatchReader.from_stream(cast("Any", rows)))
    elif hasattr(rows, "__arrow_c_array__"):
        yield from _slices(pa.Table.from_batches([pa.record_batch(cast("Any", rows))]))
    elif isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        for start in range(0, len(rows), PIECE_ROWS):
            yield _table_of_dicts(rows[start : start + PIECE_ROWS], schema, first=start)
    else:
        raise UsageError(f"rows must be {KINDS}, not {type(rows).__name__}")


def _package_of(rows: object) -> str:
    return type(rows).__module__.partition(".")[0]


def _slices(table: pa.Table) -> Iterator[pa.Table]:
    # A table without rows is still checked for its columns.
    for start in range(0, max(1, table.num_rows), PIECE_ROWS):
        yield table.slice(start, PIECE_ROWS)


def _pieces_of_reader(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = pieces = 0
    try:
        for batch in reader:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= PIECE_ROWS or size >= PIECE_BYTES:
                yield pa.Table.from_batches(waiting, reader.schema)
                waiting, rows, size, pieces = [], 0, 0, pieces + 1
    except pa.ArrowException as error:
        raise UsageError(f"the reader of the rows fails: {error}") from error
    if waiting or not pieces:  # A reader without rows is still checked for its columns.
        yield pa.Table.from_batches(waiting, reader.schema)


def _table_of_frame(frame: object) -> pa.Table:
    """Return a pandas DataFrame as a table; its index is no column."""
    try:
        return pa.Table.from_pandas(cast("Any", frame), preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"a column of the DataFrame has values of several types: {error}") from (
            error
        )


def _table_of_dicts(rows: Sequence[object], schema: ShardSchema, *, first: int) -> pa.Table:
    """Return dicts as a table with the columns that some dict names."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UsageError(
                f"each row of a list must be a dict, but row {first + number} is a value of type "
                f"{type(row).__name__}: pass [{{column: value}}, ...]"
            )
    dicts = cast("Sequence[Mapping[str, object]]", rows)
    names = list(dict.fromkeys(name for row in dicts for name in row))
    _check_known(names, schema)
    columns = [_column_of(name, [row.get(name) for row in dicts], schema, first) for name in names]
    if not names:
        # Arrow has no rows without columns.
        return fitted(pa.table({_ROW: pa.nulls(len(rows))}), schema.names, schema.data)
    return pa.table(columns, names=names)


_ROW: Final = "_tidelog_row"


def _column_of(name: str, values: list[object], schema: ShardSchema, first: int) -> pa.Array[Any]:
    """Return values of Python as a column, of a type that holds them all; it is cast later."""
    field = schema.data.field(name)
    made = _exactly(values, field.type)
    if made is not None:
        return made
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2 and not pa.types.is_nested(field.type):
        with suppress(*_NOT_OF_ONE_TYPE):
            return pa.array(values)
    # Arrow would take the type of the first value: a time after a date loses its hours. So each
    # value is cast alone.
    found: list[pa.Array[Any]] = []
    for place, value in enumerate(values):
        one = _alone(value, field)
        if one is None:
            raise _misfit(name, field.type, value, first + place)
        found += one.chunks
    return pa.concat_arrays(found)


def _exactly(values: list[object], dtype: pa.DataType) -> pa.Array[Any] | None:
    """Return values as an array of a type; None if a value would change.

    Arrow changes some values without an error: 1.5 becomes 1 in a column of integers.
    """
    asked = values
    try:
        if pa.types.is_floating(dtype):
            # Arrow refuses large integers here, also those that a float holds.
            asked = [float(value) if type(value) is int else value for value in values]
        made: pa.Array[Any] = pa.array(asked, dtype)
        read: list[object] = made.to_pylist()
    except _NOT_OF_ONE_TYPE:
        return None
    return made if all(map(_is_same, values, read)) else None


def _is_same(given: Any, read: Any) -> bool:
    """Return True if a stored value is the given one; a field that a struct lacks is null."""
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        return given.keys() <= read.keys() and all(
            _is_same(given.get(name), value) for name, value in read.items()
        )
    if isinstance(read, list | tuple):
        return len(given) == len(read) and all(map(_is_same, given, read))
    if given is None or read is None or isinstance(given, bool) != isinstance(read, bool):
        return given is read
    try:
        return bool(given == read) or (math.isnan(given) and math.isnan(read))
    except _NOT_OF_ONE_TYPE:  # A value of another library.
        return False


_NOT_OF_ONE_TYPE: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _alone(value: Any, field: pa.Field[Any]) -> pa.ChunkedArray[Any] | None:
    """Return one value in the type of a column; None if the column cannot hold it."""
    exact = _exactly([value], field.type)
    if exact is not None:
        return pa.chunked_array([exact])
    try:
        one: pa.Array[Any] = pa.array([value])
        if not _is_castable(one.type, field.type):
            return None
        column = _with_wide_decimals(pa.table([one], names=[field.name]), 0, field.type)
        _check_decimals(column, field.name, field.type, 0)
        return conform(column, pa.schema([field])).column(0)
    except _NOT_OF_ONE_TYPE:
        return None


def _fitting(piece: pa.Table, schema: ShardSchema, *, first: int) -> pa.Table:
    """Return a piece with the columns and types of ``schema``; its first row is ``first``."""
    _check_known(piece.column_names, schema)
    for place, name in enumerate(piece.column_names):
        field = schema.data.field(name)
        if piece.column(name).null_count == piece.num_rows:
            # Nulls of any type fit; Arrow refuses to cast some.
            piece = piece.set_column(place, field, pa.nulls(piece.num_rows, field.type))
        piece = _with_wide_decimals(piece, place, field.type)
        _check_kind(piece, name, field.type, first)
        _check_decimals(piece, name, field.type, first)
    try:
        made = conform(fitted(piece, schema.names, schema.data), schema.data)
    except UsageError as error:
        # The columns are known, so a value does not fit, or the types do not.
        for name in piece.column_names:
            _check_column(piece, name, schema, first)
        raise UsageError(f"the rows do not fit the table: {error}") from error
    for name in schema.key:
        column = made.column(name)
        if column.null_count:
            place = first + column.is_null().index(True).as_py()
            raise UsageError(
                f"the key column {name!r} is null or missing in row {place}: each row needs a "
                "whole key"
            )
    return made


def _with_wide_decimals(piece: pa.Table, place: int, wanted: pa.DataType) -> pa.Table:
    """Return a piece whose column of integers is one of wide decimals, if decimals are wanted.

    Arrow casts integers only to a type that holds the largest integer.
    """
    name, given = piece.column_names[place], piece.schema.field(place).type
    if not (pa.types.is_integer(given) and pa.types.is_decimal(wanted)):
        return piece
    return piece.set_column(place, name, piece.column(place).cast(pa.decimal128(38, 0)))


def _check_known(names: Sequence[object], schema: ShardSchema) -> None:
    """Check that all columns belong to the table, and occur once."""
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        reserved = [name for name in unknown if name in (TIME, DIFF)]
        more = f"; remove {' and '.join(map(str, reserved))}" if reserved else ""
        raise UsageError(
            f"the rows have unknown columns: {_named(unknown)}; the columns are "
            f"{joined_names(schema.names)}{more}"
        )
    twice = [name for name in schema.names if list(names).count(name) > 1]
    if twice:
        raise UsageError(f"the rows have the column {twice[0]!r} twice: rename or remove one")


def _named(names: Sequence[object]) -> str:
    return joined_names(name if isinstance(name, str) else quoted(name) for name in names)


def _check_kind(piece: pa.Table, name: str, wanted: pa.DataType, first: int) -> None:
    """Refuse values of another kind, which Arrow would cast: 7 to "7", for example.

    Raises:
        UsageError: they are of another kind.
    """
    given = piece.schema.field(name).type
    if _is_castable(given, wanted):
        return
    column = piece.column(name)
    place = column.is_valid().index(True).as_py()
    raise _misfit(name, wanted, _python_of(column[place]), first + place)


# A text must have a form that the wanted type reads: an ISO 8601 time, or digits.
_CASTS: Final = frozenset(
    {("text", "time"), ("text", "decimal"), ("number", "decimal"), ("decimal", "number")}
    | {("text", "bytes"), ("bytes", "text")}
)


def _is_castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if values of one type may be cast to another; so may those in nested types."""
    if pa.types.is_null(given):
        return True
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        shared = [field for field in wanted if given.get_field_index(field.name) >= 0]
        return all(_is_castable(given.field(field.name).type, field.type) for field in shared)
    if pa.types.is_nested(given) and pa.types.is_nested(wanted):
        pairs = zip(_within(given), _within(wanted), strict=False)
        return all(_is_castable(one, other) for one, other in pairs)
    kinds = _kind_of(given), _kind_of(wanted)
    return kinds[0] == kinds[1] or kinds in _CASTS


def _within(dtype: pa.DataType) -> list[pa.DataType]:
    """Return the types of the items of a list, or of the entries of a map."""
    return [dtype.field(place).type for place in range(dtype.num_fields)]


def _check_decimals(piece: pa.Table, name: str, wanted: pa.DataType, first: int) -> None:
    """Refuse floating-point numbers that a decimal column would round: 1.239 to 1.24.

    Raises:
        UsageError: a number would be rounded.
    """
    column = piece.column(name)
    if not (pa.types.is_floating(column.type) and pa.types.is_decimal(wanted)):
        return
    try:
        read = column.cast(wanted).cast(column.type)
    except pa.ArrowException:
        return  # A number is out of range; the cast of the whole piece names it.
    # A null is NaN in both; a NaN of the rows is no decimal, so the cast refuses it.
    both = np.stack([column.to_numpy(), read.to_numpy()])
    rounded = np.flatnonzero((both[0] != both[1]) & ~np.isnan(both[0]))
    if len(rounded):
        place = int(rounded[0])
        raise _misfit(name, wanted, column[place].as_py(), first + place)


def _kind_of(dtype: pa.DataType) -> str:
    """Return the kind of a column's values; a value is cast only to a type of the same kind."""
    if pa.types.is_dictionary(dtype):
        return _kind_of(dtype.value_type)
    if pa.types.is_boolean(dtype):
        return "boolean"
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return "number"
    if pa.types.is_decimal(dtype):
        return "decimal"
    if pa.types.is_temporal(dtype):
        return "time"
    canonical = canonical_type(dtype)
    if pa.types.is_string(canonical) or pa.types.is_binary(canonical):
        return "text" if pa.types.is_string(canonical) else "bytes"
    return "nested"


def _check_column(piece: pa.Table, name: str, schema: ShardSchema, first: int) -> None:
    """Raise an error that names the first value of a column that does not fit.

    Raises:
        UsageError: a value does not fit.
    """
    column = piece.select([name])
    wanted = pa.schema([schema.data.field(name)])
    if _fits(column, wanted):
        return
    low, high = 0, column.num_rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high)
            if _fits(column.slice(low, middle - low), wanted)
            else (
                low,
                middle,
            )
        )
    value = column.column(0)[low] if column.num_rows else None
    if value is None or _fits(column.slice(low, 1), wanted):
        # Only the whole column does not fit, because of its type.
        raise UsageError(
            f"the column {name!r} of the rows has the type {column.schema.field(0).type}, but the "
            f"table has {wanted.field(0).type}: cast it first"
        )
    raise _misfit(name, wanted.field(0).type, _python_of(value), first + low)


def _fits(column: pa.Table, wanted: pa.Schema) -> bool:
    try:
        conform(column, wanted)
    except UsageError:
        return False
    return True


def _python_of(value: pa.Scalar[Any]) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # Python has no such time.
        return str(value)


def _misfit(name: str, dtype: pa.DataType, value: object, row: int) -> UsageError:
    return UsageError(
        f"the column {name!r} of row {row} cannot hold the value {quoted(value)}: the type of the "
        f"column is {dtype}"
    )
