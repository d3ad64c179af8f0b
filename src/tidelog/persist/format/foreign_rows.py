"""Rows made by other programs: invalid arrays, extension types, and indexes of pandas. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from tidelog.errors import UsageError
from tidelog.persist.format.updates import check_arrays


def check_whole(piece: pa.Table, first: int) -> None:
    """Refuse arrays that are not valid Arrow; Python would crash when it reads their values.

    Raises:
        UsageError: text is not UTF-8, or an offset or an index is out of range.
    """
    for name in piece.column_names:
        column = piece.select([name])
        if not _is_whole(column):
            row = first + first_misfit(column, _is_whole)
            raise UsageError(
                f"the column {name!r} is not valid Arrow data in row {row}: text must be UTF-8, "
                "and offsets must be in range"
            )


def _is_whole(column: pa.Table) -> bool:
    try:
        check_arrays(column)
    except (pa.ArrowException, IndexError):
        return False
    return True


def first_misfit(column: pa.Table, fits: Callable[[pa.Table], bool]) -> int:
    """Return the first row that does not fit, in a column that does not fit as a whole."""
    low, high = 0, column.num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if fits(column.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def refuse_list_views(piece: pa.Table) -> None:
    """Refuse columns with list views, which Arrow does not always cast to lists correctly.

    Raises:
        UsageError: a column has the type, or a value within it has.
    """
    for field in piece.schema:
        if _has_view(field.type):
            raise UsageError(
                f"the column {field.name!r} has the type {field.type}, but list views are "
                "not read: write lists instead"
            )


def _has_view(dtype: pa.DataType) -> bool:
    if pa.types.is_list_view(dtype) or pa.types.is_large_list_view(dtype):
        return True
    inner = (dtype.field(place).type for place in range(dtype.num_fields))
    return pa.types.is_nested(dtype) and any(map(_has_view, inner))


def without_extensions(piece: pa.Table) -> pa.Table:
    """Return a piece with plain values in columns of extension types, such as json and uuid."""
    for place, field in enumerate(piece.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            plain = piece.column(place).cast(field.type.storage_type)
            piece = piece.set_column(place, field.name, plain)
    return piece


class _PandasIndex(msgspec.Struct):
    """The description of an index, in the metadata that pandas adds to a schema."""

    index_columns: tuple[Any, ...] = ()


def check_index(schema: pa.Schema) -> None:
    """Refuse rows whose pandas index has a name, and is stored as a range without a column.

    Raises:
        UsageError: the values of the index would be lost.
    """
    described = (schema.metadata or {}).get(b"pandas", b"{}")
    try:
        index = msgspec.json.decode(described, type=_PandasIndex).index_columns
    except msgspec.MsgspecError:
        return
    for one in index:
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            raise UsageError(
                f"the pandas index {one['name']!r} is not a column of the rows: write the rows of "
                "frame.reset_index(), or of frame.reset_index(drop=True) without these values"
            )
