"""Conform columns to a schema without loss; a lossy change is refused. Pure.

Arrow's casts lose some things silently: fields of structs, times of day, and numbers that overflow
to infinity. Arrow also does not validate its input. Other programs' files can hold text that is not
UTF-8, or offsets out of range, which no reader could read back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError
from tidelog.persist.format.schema import is_list

_Column: TypeAlias = Any  # A chunked array whose type is only known at runtime.
_VIEWS: Final[dict[pa.DataType, pa.DataType]] = {
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
_Is: TypeAlias = Callable[[pa.DataType], bool]


def conform(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return a table with the wanted columns, in order, cast without loss.

    Numbers with a fraction are rounded to the nearest value of the wanted type.

    Raises:
        UsageError: a column is missing or duplicated, or has values that the wanted type cannot
            hold.
    """
    names = table.column_names
    missing = [n for n in wanted.names if n not in names]
    if missing:
        raise UsageError(f"a column is missing: {', '.join(missing)}")
    twice = [n for n in wanted.names if names.count(n) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise UsageError(f"a column occurs twice: {', '.join(twice)}: remove one of them")
    table = table.select(wanted.names)
    try:
        _check_whole(table)
        if table.schema.equals(wanted):
            return table
        for field in wanted:
            _check_fields(field.name, table.schema.field(field.name).type, field.type)
        made = _without_views(table).cast(wanted)
        for field in wanted:
            _check_kept(field.name, table.column(field.name), made.column(field.name))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, IndexError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the rows do not fit the schema: {error}") from error
    return made


def _check_whole(table: pa.Table) -> None:
    """Refuse invalid arrays; plain numbers cannot be invalid, so their columns cost nothing."""
    for column in table.columns:
        if not pa.types.is_primitive(column.type):
            column.validate(full=True)


def _without_views(table: pa.Table) -> pa.Table:
    """Replace views in dictionaries by plain values; Arrow cannot cast dictionaries of views."""
    for place, field in enumerate(table.schema):
        plain = _VIEWS.get(getattr(field.type, "value_type", pa.null()))
        if plain is not None and pa.types.is_dictionary(field.type):
            given: _Column = table.column(place)
            chunks: list[pa.Array[Any]] = [
                pa.DictionaryArray.from_arrays(one.indices, one.dictionary.cast(plain))
                for one in given.chunks
            ]
            made = pa.chunked_array(chunks or [pa.array([], plain)])
            table = table.set_column(place, field.name, made)
    return table


def _check_fields(name: str, given: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse structs whose fields differ from the wanted ones; their order may differ."""
    while is_list(given) and is_list(wanted):
        given, wanted = given.field(0).type, wanted.field(0).type
    if not isinstance(given, pa.StructType) or not isinstance(wanted, pa.StructType):
        return
    fields = [given.field(n).name for n in range(given.num_fields)]
    if sorted(fields) != sorted(field.name for field in wanted):
        raise UsageError(
            f"the rows do not fit the schema: the fields of column {name!r} differ from the "
            "shard's",
            given=fields,
            wanted=[field.name for field in wanted],
        )
    for field in wanted:
        _check_fields(f"{name}.{field.name}", given.field(field.name).type, field.type)


def _check_kept(name: str, given: _Column, made: _Column) -> None:
    """Refuse columns for which Arrow's cast has lost values."""
    if given.type == made.type:
        return
    if is_list(given.type) and is_list(made.type):
        _check_kept(name, pc.list_flatten(given), pc.list_flatten(made))
    elif pa.types.is_struct(given.type) and pa.types.is_struct(made.type):
        for field in made.type:
            there, here = pc.struct_field(given, field.name), pc.struct_field(made, field.name)
            _check_kept(f"{name}.{field.name}", there, here)
    for of_given, of_made, keeps in _LOSSY:
        if of_given(given.type) and of_made(made.type) and not keeps(given, made):
            raise UsageError(
                f"the rows do not fit the schema: column {name!r} has values of type {given.type} "
                f"that {made.type} cannot hold: cast the column first, if its values may change"
            )


def _keeps_days(given: _Column, made: _Column) -> bool:
    """Return True if no time of day was lost."""
    if getattr(given.type, "tz", None):
        given = pc.local_timestamp(given)
    return bool(made.cast(given.type).equals(given))


def _keeps_finite(given: _Column, made: _Column) -> bool:
    """Return True if no value became infinite."""
    return bool(pc.is_inf(made).equals(pc.is_inf(given)))


def _keeps_all(given: _Column, made: _Column) -> bool:
    """Return True if the cast values, cast back, equal the given ones."""
    return bool(made.cast(given.type).equals(given))


def _keeps_nothing(given: _Column, _: _Column) -> bool:
    return bool(given.null_count == len(given))


def _is_number(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype)


_LOSSY: Final[tuple[tuple[_Is, _Is, Callable[[_Column, _Column], bool]], ...]] = (
    (pa.types.is_timestamp, pa.types.is_date, _keeps_days),
    (pa.types.is_timestamp, pa.types.is_time, _keeps_nothing),  # The date would be lost.
    (pa.types.is_floating, pa.types.is_floating, _keeps_finite),
    (_is_number, pa.types.is_boolean, _keeps_all),
)
