"""Inputs of writes: rows of any kind, as Arrow tables. Pure.

Shards and tables use it. The columns and types are the caller's concern, except in rows of Python:
their values become columns of the wanted types, or of types that hold them without loss.
Shape: an Arrow table, batch or reader; an object with ``__arrow_c_stream__`` or
    ``__arrow_c_array__``, such as a Polars DataFrame; a pandas DataFrame; a list of dicts; an
    iterable of Arrow tables and batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeGuard, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.arguments import joined_names, quoted
from tidelog.errors import UsageError
from tidelog.persist.format.foreign_rows import check_whole
from tidelog.persist.format.schema import DIFF, TIME, canonical_type
from tidelog.persist.format.updates import conform

KINDS: Final = (
    "an Arrow table, batch or reader, a pandas or Polars DataFrame, a list of dicts, or an "
    "iterable of Arrow tables"
)
PIECE_ROWS: Final = 1 << 20
PIECE_BYTES: Final = 64 * 1024 * 1024


def check_rows(rows: object) -> None:
    """Check the kind of rows, before any of them is read.

    Raises:
        UsageError: rows of this kind are not accepted.
    """
    if _package_of(rows) == "pyspark":
        raise UsageError(
            "rows cannot be a Spark DataFrame: pass rows.toArrow(), which brings all rows to this "
            "process"
        )
    if _package_of(rows) == "pandas":
        is_known = hasattr(rows, "columns")
    else:
        is_known = isinstance(rows, pa.Table | pa.RecordBatch | pa.RecordBatchReader) or (
            _has_arrow(rows)
            or (
                isinstance(rows, AsyncIterable | Iterable)
                and not isinstance(rows, str | bytes | Mapping)
            )
        )
    if not is_known:
        raise _no_rows(rows)


def is_stream(rows: object) -> bool:
    """Return True for rows that can be read only once, or that arrive in pieces."""
    if isinstance(rows, pa.Table | pa.RecordBatch) or _package_of(rows) == "pandas":
        return False
    if _has_arrow(rows):
        return not hasattr(rows, "__len__")
    return not _is_list(rows)


def whole_of(rows: object, schema: pa.Schema) -> pa.Table:
    """Return rows that are not a stream as one table of any columns; see `pieces_of`.

    Raises:
        UsageError: see `pieces_of`.
    """
    return joined_tables(list(pieces_of(rows, schema)))


def joined_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables as one.

    Raises:
        UsageError: their schemas differ.
    """
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        raise UsageError(f"the tables have different schemas: {error}") from error


def pieces_of(rows: object, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield rows as tables of any columns, of at most about `PIECE_ROWS` rows or `PIECE_BYTES`.

    A reader is read piece by piece, so it may be larger than memory. ``schema`` has the types of
    the values of dicts.

    Raises:
        UsageError: ``rows`` is of another kind, a reader fails, or a value of a dict does not fit.
    """
    check_rows(rows)
    if isinstance(rows, pa.Table):
        yield from _slices(rows)
    elif isinstance(rows, pa.RecordBatch):
        yield from _slices(pa.Table.from_batches([rows]))
    elif isinstance(rows, pa.RecordBatchReader):
        yield from _pieces_of_reader(rows)
    elif _package_of(rows) == "pandas":
        yield from _slices(_table_of_frame(rows))
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from _pieces_of_reader(_reader_of(rows))
    elif hasattr(rows, "__arrow_c_array__"):
        yield from _slices(_table_of_arrays(rows))
    elif _is_list(rows) and not (rows and all(map(_is_arrow, rows))):
        for start in range(0, max(len(rows), 1), PIECE_ROWS):
            yield _table_of_dicts(rows[start : start + PIECE_ROWS], schema, first=start)
    else:
        for one in cast("Iterable[object]", rows):
            yield arrow_table(one)


def arrow_table(rows: object) -> pa.Table:
    """Return one item of an iterable of rows.

    Raises:
        UsageError: it is neither a table nor a record batch.
    """
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    raise UsageError(
        f"an iterable of rows must yield Arrow tables or batches, not {type(rows).__name__}: pass "
        "a list of dicts, or pyarrow.Table.from_pylist(...)"
    )


def _is_list(rows: object) -> TypeGuard[Sequence[object]]:
    return isinstance(rows, Sequence) and not isinstance(rows, str | bytes)


def _is_arrow(rows: object) -> bool:
    return isinstance(rows, pa.Table | pa.RecordBatch)


def _has_arrow(rows: object) -> bool:
    return hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")


def _no_rows(rows: object) -> UsageError:
    more = (
        ": convert a dict of columns with pyarrow.table(...)" if isinstance(rows, Mapping) else ""
    )
    return UsageError(f"rows must be {KINDS}, not {type(rows).__name__}{more}")


def _reader_of(rows: object) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(cast("Any", rows))
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _no_rows(rows) from error  # The stream has values of one column, and no rows.


def _table_of_arrays(rows: object) -> pa.Table:
    try:
        return pa.Table.from_batches([pa.record_batch(cast("Any", rows))])
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _no_rows(rows) from error


def _package_of(rows: object) -> str:
    return type(rows).__module__.partition(".")[0]


def _slices(table: pa.Table) -> Iterator[pa.Table]:
    # A table without rows is still checked for its columns.
    # A slice of a table without columns has the rows that the call names, so name no more.
    rows = table.num_rows
    for start in range(0, max(1, rows), PIECE_ROWS):
        yield table.slice(start, min(PIECE_ROWS, rows - start))


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
    """Return a pandas DataFrame as a table; its index is no column.

    Raises:
        UsageError: it has rows without columns, an index with a name, or values of several types.
    """
    given = cast("Any", frame)
    if len(given) and not len(given.columns):
        raise UsageError("the DataFrame has rows but no columns: pass its columns")
    names = [name for name in given.index.names if name is not None]
    if names:
        raise UsageError(
            f"the index {joined_names(map(str, names))} of the DataFrame is not a column: pass "
            "frame.reset_index(), or frame.reset_index(drop=True) without these values"
        )
    try:
        return pa.Table.from_pandas(cast("Any", frame), preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"a column of the DataFrame has values of several types: {error}") from (
            error
        )


def _table_of_dicts(rows: Sequence[object], schema: pa.Schema, *, first: int) -> pa.Table:
    """Return dicts as a table with the columns that some dict names."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UsageError(
                f"each row of a list must be a dict, but row {first + number} is a value of type "
                f"{type(row).__name__}: pass [{{column: value}}, ...]"
            )
    dicts = cast("Sequence[Mapping[str, object]]", rows)
    names = list(dict.fromkeys(name for row in dicts for name in row))
    check_known(names, schema)
    columns = [column_of(name, [row.get(name) for row in dicts], schema, first) for name in names]
    if not names:
        # Arrow has no rows without columns.
        return pa.table({one.name: pa.nulls(len(rows), one.type) for one in schema})
    made = pa.table(columns, names=names)
    for name in names:
        check_values(made, name, schema.field(name).type, first)
    return made


def column_of(name: str, values: list[object], schema: pa.Schema, first: int) -> pa.Array[Any]:
    """Return values of Python as a column, of a type that holds them all; it is cast later."""
    field = schema.field(name)
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
            raise misfit(name, field.type, value, first + place)
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
        column = with_wide_decimals(pa.table([one], names=[field.name]), 0, field.type)
        check_decimals(column, field.name, field.type, 0)
        return conform(column, pa.schema([field])).column(0)
    except _NOT_OF_ONE_TYPE:
        return None


def with_wide_decimals(piece: pa.Table, place: int, wanted: pa.DataType) -> pa.Table:
    """Return a piece whose column of integers is one of wide decimals, if decimals are wanted.

    Arrow casts integers only to a type that holds the largest integer.
    """
    field = piece.schema.field(place)
    if not (pa.types.is_integer(field.type) and pa.types.is_decimal(wanted)):
        return piece
    return piece.set_column(place, field.name, piece.column(place).cast(pa.decimal128(38, 0)))


def check_known(names: Sequence[object], schema: pa.Schema) -> None:
    """Check that all columns belong to the table, and occur once."""
    known = set(schema.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        reserved = [name for name in unknown if name in (TIME, DIFF)]
        remedy = "rename or remove the others"
        if reserved:
            remedy = f"remove {' and '.join(map(str, reserved))}"
        raise UsageError(
            f"the rows have unknown columns: {_named(unknown)}; the columns are "
            f"{joined_names(schema.names)}; {remedy}"
        )
    if len(set(names)) < len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        raise UsageError(f"the rows have the column {twice[0]!r} twice: rename or remove one")


def _named(names: Sequence[object]) -> str:
    return joined_names(name if isinstance(name, str) else quoted(name) for name in names)


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


def check_values(piece: pa.Table, name: str, wanted: pa.DataType, first: int) -> None:
    """Refuse values of another kind, which Arrow would cast: 7 to "7", for example.

    Raises:
        UsageError: they are of another kind.
    """
    given = piece.schema.field(name).type
    if _is_castable(given, wanted):
        return
    check_whole(piece.select([name]), first)
    column = piece.column(name)
    place = column.is_valid().index(True).as_py()
    raise misfit(name, wanted, python_of(column[place]), first + place)


def check_floats(piece: pa.Table, name: str, wanted: pa.DataType, first: int) -> None:
    """Refuse floating-point numbers of which a shorter column would lose digits.

    0.1 fits into 32 bits, because the nearest number is written 0.1, too; 0.123456789 does not.

    Raises:
        UsageError: a number would lose digits.
    """
    column = piece.column(name)
    both_float = pa.types.is_floating(column.type) and pa.types.is_floating(wanted)
    if not both_float or column.type.bit_width <= wanted.bit_width:
        return
    made = column.cast(wanted)
    kept = pc.equal(made.cast(column.type), column)
    if pc.all(kept).as_py() is not False:
        return
    same = pc.or_kleene(kept, pc.equal(made.cast(pa.string()), column.cast(pa.string())))
    place = same.index(False).as_py()
    if place >= 0:
        raise misfit(name, wanted, column[place].as_py(), first + place)


def check_decimals(piece: pa.Table, name: str, wanted: pa.DataType, first: int) -> None:
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
        raise misfit(name, wanted, column[place].as_py(), first + place)


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


def python_of(value: pa.Scalar[Any]) -> object:
    """Return a value for a message; a time that Python cannot represent as text."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.cast(_with_texts(value.type)).as_py()


def _with_texts(dtype: pa.DataType) -> pa.DataType:
    """Return a type with texts in place of times, at any depth."""
    if pa.types.is_temporal(dtype):
        return pa.string()
    if isinstance(dtype, pa.StructType):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(_with_texts(dtype.key_type), _with_texts(dtype.item_type))
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return pa.list_(_with_texts(dtype.value_type))
    return dtype


def row_text(row: pa.Table, names: Sequence[str]) -> str:
    """Return some values of one row as text: id=7, name='a'."""
    return ", ".join(f"{name}={quoted(python_of(row.column(name)[0]))}" for name in names)


def misfit(name: str, dtype: pa.DataType, value: object, row: int) -> UsageError:
    return UsageError(
        f"the column {name!r} of row {row} cannot hold the value {quoted(value)}: the type of the "
        f"column is {dtype}"
    )
