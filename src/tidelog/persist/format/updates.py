"""Updates: tables of ``((key, value), time, diff)``, prepared for writing and consolidated. Pure.

Columns conform to a schema without loss; a lossy change is refused. Arrow's casts lose some things
silently: fields of structs, times of day, and numbers that overflow to infinity. Arrow also does
not validate its input. Other programs' files can hold text that is not UTF-8, or offsets out of
range, which no reader could read back.
Shape: see `tidelog.persist.format.schema.ShardSchema.updates`. A consolidated table has no two rows
    of equal data (and time), and no row whose diff is 0.
Source: persist, "Jargon" and "Compaction".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.frontier import Frontier
from tidelog.core.grouping import rows_of_array
from tidelog.errors import UsageError
from tidelog.persist.format.bounds import (
    SORTED_ROWS_MAX,
    can_sort,
    in_few_chunks,
    in_key_order,
    is_rising,
    joined_in_order,
    scalar_of,
    sorted_by_key,
    sorted_in_shares,
    summed,
)
from tidelog.persist.format.corrected import corrected, in_order_of_columns, summed_by_hash
from tidelog.persist.format.duck import duck, quoted, sums_told
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, is_list

# Millions of updates of one row with the greatest diff still have a sum of 64 bits.
DIFF_MAX: Final = 2**40
HASHED_ROWS_MAX: Final = 10_000  # SQL takes 2 ms for a single row, but as long for so many.


def prepare_updates(
    updates: pa.Table, schema: ShardSchema, *, lower: Frontier, upper: Frontier
) -> pa.Table:
    """Return updates in the form of a part: the schema's columns and types, sorted, no diff of 0.

    Raises:
        UsageError: see `check_updates`.
    """
    return sort_updates(check_updates(updates, schema, lower=lower, upper=upper), schema)


def check_updates(
    updates: pa.Table, schema: ShardSchema, *, lower: Frontier, upper: Frontier
) -> pa.Table:
    """Return updates with the schema's columns and types, in their given order, no diff of 0.

    Raises:
        UsageError: a column is missing or does not fit, a time is outside ``[lower, upper)``, or a
            diff is past `DIFF_MAX`.
    """
    table = in_few_chunks(conform(updates, schema.updates))
    least, greatest = _extent(table, DIFF) if table.num_rows else (1, 1)
    if greatest > DIFF_MAX or least < -DIFF_MAX:
        raise UsageError(
            "a diff must be from -2^40 to 2^40, so that the diffs of a row can be added",
            least=least,
            greatest=greatest,
        )
    if least <= 0 <= greatest:
        table = table.filter(pa.array(table.column(DIFF).to_numpy() != 0))
    if table.num_rows:
        least, greatest = time_bounds(table)
        if lower.passed(least) or not upper.passed(greatest):
            raise UsageError(
                "an update's time is outside the interval of the write: "
                + (
                    f"times before {lower.time} are complete, so pass a later time"
                    if lower.passed(least)
                    else "pass a greater upper, or an earlier time"
                ),
                least=least,
                greatest=greatest,
                lower=lower,
                upper=upper,
            )
    return table


def time_bounds(table: pa.Table) -> tuple[int, int]:
    """Return the least and the greatest time of a non-empty table."""
    return _extent(table, TIME)


def _extent(table: pa.Table, name: str) -> tuple[int, int]:
    found = pc.min_max(table.column(name))
    return found["min"].as_py(), found["max"].as_py()


def is_sortable(schema: ShardSchema) -> bool:
    """Return True if parts are sorted: there is a key, and every column has an order."""
    flat = not any(pa.types.is_nested(f.type) for f in schema.data)
    return flat and schema.key_columns > 0


def sort_updates(table: pa.Table, schema: ShardSchema) -> pa.Table:
    """Sort by (key, value, time) if the schema allows."""
    if table.num_rows < 2 or not is_sortable(schema):
        return table
    if is_rising(table, schema.key):
        return table  # This test costs a tenth of a sort.
    return sorted_in_shares(table, schema.key, (*schema.names, TIME))


def accumulate(tables: Sequence[pa.Table], schema: ShardSchema, *, as_of: int) -> pa.Table:
    """Return the contents at ``as_of``: data columns and ``_diff``, consolidated."""
    columns = ", ".join(quoted(n) for n in schema.names)
    out = schema.data.append(pa.field(DIFF, pa.int64(), nullable=False))
    if can_sort(filled := [table for table in tables if table.num_rows], schema.names):
        # A small read then does not import DuckDB.
        known = pa.concat_tables(filled)
        known = known.filter(pc.less_equal(known.column(TIME), scalar_of(as_of, pa.int64())))
        made = summed(known.select(out.names))
        if made is not None:
            return made.cast(out)
    return _run(
        f"SELECT {columns}, sum({DIFF})::BIGINT AS {DIFF} FROM updates WHERE {TIME} <= {as_of} "
        f"GROUP BY {columns} HAVING sum({DIFF}) <> 0",
        tables,
        out,
    )


def sum_up(tables: Sequence[pa.Table], schema: ShardSchema) -> pa.Table:
    """Consolidate contents that are in pieces; return the columns and ``_diff``."""
    columns = ", ".join(quoted(n) for n in schema.names)
    return _run(
        f"SELECT {columns}, sum({DIFF})::BIGINT AS {DIFF} FROM updates GROUP BY {columns} "
        f"HAVING sum({DIFF}) <> 0",
        tables,
        schema.data.append(pa.field(DIFF, pa.int64(), nullable=False)),
    )


def merge(
    tables: Sequence[pa.Table],
    schema: ShardSchema,
    *,
    key: Sequence[str],
    is_grouped: bool = False,
) -> pa.Table:
    """Return updates without times as one table, ordered by its columns: data and ``_diff``.

    Shape: the columns of ``key`` are the first columns, and have no dictionaries; others may.

    The updates are consolidated if any diff is negative, or with ``is_grouped``; otherwise equal
    rows may remain separate.
    """
    out = schema.data.append(pa.field(DIFF, pa.int64(), nullable=False))
    filled = [t.select(out.names) for t in tables if t.num_rows]
    if len({t.schema for t in filled}) > 1:
        # One part has a dictionary for a column and another does not.
        filled = [t.cast(out) for t in filled]
    if not can_sort(filled, key):
        return _merge_by_columns(filled, schema, out, is_grouped)
    joined = joined_in_order(filled, key)
    if joined is not None:
        return joined
    found = corrected(filled, key)
    if found is not None:
        return found.cast(out)
    single, others = sorted_by_key(pa.concat_tables(filled), key)
    if not others.num_rows:
        return single
    merged = _merge_by_columns([others], schema, out, is_grouped)
    return in_key_order([single.cast(out), merged], key)


def _merge_by_columns(
    filled: Sequence[pa.Table], schema: ShardSchema, out: pa.Schema, is_grouped: bool
) -> pa.Table:
    is_grouped = is_grouped or any(pc.min(t.column(DIFF)).as_py() < 0 for t in filled)
    made: pa.Table | None = None
    rows = sum(table.num_rows for table in filled)
    if filled and rows <= (HASHED_ROWS_MAX if is_grouped else SORTED_ROWS_MAX):
        made = (summed_by_hash if is_grouped else in_order_of_columns)(pa.concat_tables(filled))
    if made is not None:
        return made.cast(out)
    columns = ", ".join(quoted(n) for n in schema.names)
    if is_grouped:
        return _run(
            f"SELECT {columns}, sum({DIFF})::BIGINT AS {DIFF} FROM updates GROUP BY {columns} "
            f"HAVING sum({DIFF}) <> 0 ORDER BY {columns}",
            filled,
            out,
        )
    return _run(f"SELECT {columns}, {DIFF} FROM updates ORDER BY {columns}", filled, out)


def consolidate(
    tables: Sequence[pa.Table], schema: ShardSchema, *, after: int = -1, until: int | None = None
) -> pa.Table:
    """Return the updates with ``after < time <= until``, consolidated, in time order."""
    columns = ", ".join(quoted(n) for n in (*schema.names, TIME))
    end = "" if until is None else f"AND {TIME} <= {until} "
    return _run(
        f"SELECT {columns}, sum({DIFF})::BIGINT AS {DIFF} FROM updates WHERE {TIME} > {after} {end}"
        f"GROUP BY {columns} HAVING sum({DIFF}) <> 0 ORDER BY {TIME}, {DIFF}, {columns}",
        tables,
        schema.updates,
    )


def _run(sql: str, tables: Sequence[pa.Table], out: pa.Schema) -> pa.Table:
    filled = [t for t in tables if t.num_rows]
    if not filled:
        return pa.Table.from_batches([], out)
    with duck() as connection, sums_told():
        # DuckDB scans Arrow tables without a copy; the aggregation spills past the memory limit.
        updates = pa.concat_tables(filled)
        connection.register("updates", updates)
        found: pa.Table = connection.sql(sql).to_arrow_table(rows_of_array(updates))
    return found.cast(out)


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
    there = set(names)
    missing = [n for n in wanted.names if n not in there]
    if missing:
        raise UsageError(f"a column is missing: {', '.join(missing)}")
    twice = [n for n in wanted.names if names.count(n) > 1] if len(there) < len(names) else []
    if twice:
        raise UsageError(f"a column occurs twice: {', '.join(twice)}: remove one of them")
    table = table.select(wanted.names)
    try:
        check_arrays(table)
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


def check_arrays(table: pa.Table) -> None:
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
