"""Rows of writes to tables: rows of any kind, with the columns of a table. Pure.

Columns are matched by name. A missing column is null, and an unknown one is refused. Values are
cast only if they stay equal, and floats only if they keep their digits. A null in a key column is
refused. See `tidelog.persist.format.inputs` for the kinds of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow as pa

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.persist.format.foreign_rows import (
    check_index,
    check_whole,
    first_misfit,
    refuse_list_views,
    without_extensions,
)
from tidelog.persist.format.inputs import (
    check_decimals,
    check_floats,
    check_known,
    check_values,
    column_of,
    misfit,
    pieces_of,
    python_of,
    with_wide_decimals,
)
from tidelog.persist.format.schema import ShardSchema, fitted
from tidelog.persist.format.updates import conform


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
        keys = pa.table([column_of(schema.key[0], _listed(keys), schema.data, 0)], schema.key)
    if len(schema.key) == 1 and isinstance(keys, str | bytes | int | float):
        raise UsageError(f"keys must be a list, such as [{quoted(keys)}], not one value")
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


def tables_of(
    rows: object, schema: ShardSchema, *, needed: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Yield rows in pieces, each as in `table_of`; a reader may be larger than memory.

    Rows without one of the ``needed`` columns are refused.
    """
    first = 0
    for piece in pieces_of(rows, schema.data):
        yield fitting(piece, schema, first=first, needed=needed)
        first += piece.num_rows


def fitting(
    piece: pa.Table, schema: ShardSchema, *, first: int, needed: Sequence[str] = ()
) -> pa.Table:
    """Return a piece with the columns and types of ``schema``; its first row is ``first``."""
    check_known(piece.column_names, schema.data)
    for name in needed:
        if piece.num_rows and name not in piece.column_names:
            raise UsageError(
                f"the rows have no column {name!r}, so none of them can match: add the column, or "
                "compare other columns (on=)"
            )
    check_index(piece.schema)
    piece = without_extensions(piece)
    refuse_list_views(piece)
    for place, name in enumerate(piece.column_names):
        field = schema.data.field(name)
        if piece.column(name).null_count == piece.num_rows:
            # Nulls of any type fit; Arrow refuses to cast some.
            piece = piece.set_column(place, field, pa.nulls(piece.num_rows, field.type))
        piece = with_wide_decimals(piece, place, field.type)
        check_values(piece, name, field.type, first)
        check_decimals(piece, name, field.type, first)
        check_floats(piece, name, field.type, first)
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


def fits(piece: pa.Table, schema: ShardSchema) -> bool:
    """Return True if all rows fit ``schema``; see `fitting`."""
    try:
        fitting(piece, schema, first=0)
    except UsageError:
        return False
    return True


def _check_column(piece: pa.Table, name: str, schema: ShardSchema, first: int) -> None:
    """Raise an error that names the first value of a column that does not fit.

    Raises:
        UsageError: a value does not fit.
    """
    column = piece.select([name])
    wanted = pa.schema([schema.data.field(name)])
    if _fits(column, wanted):
        return
    check_whole(column, first)
    low = first_misfit(column, lambda some: _fits(some, wanted))
    value = column.column(0)[low] if column.num_rows else None
    if value is None or _fits(column.slice(low, 1), wanted):
        # Only the whole column does not fit, because of its type.
        raise UsageError(
            f"the column {name!r} of the rows has the type {column.schema.field(0).type}, but the "
            f"table has {wanted.field(0).type}: cast it first"
        )
    raise misfit(name, wanted.field(0).type, python_of(value), first + low)


def _fits(column: pa.Table, wanted: pa.Schema) -> bool:
    try:
        conform(column, wanted)
    except UsageError:
        return False
    return True
