"""Updates: tables of ``((key, value), time, diff)``, prepared for writing and consolidated.

Shape: see `tidelog.persist.format.schema.ShardSchema.updates`. A consolidated table has no two rows
    of equal data (and time), and no row whose diff is 0.
Source: persist, "Jargon" and "Compaction".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.frontier import Frontier
from tidelog.errors import UsageError
from tidelog.persist.format.bounds import scalar_of
from tidelog.persist.format.conform import conform
from tidelog.persist.format.duck import duck, quoted, sums_told
from tidelog.persist.format.key_order import (
    can_sort,
    in_key_order,
    is_rising,
    joined_in_order,
    sorted_by_key,
    summed,
)
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema

# Millions of updates of one row with the greatest diff still have a sum of 64 bits.
DIFF_MAX: Final = 2**40


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
    table = conform(updates, schema.updates)
    diffs = table.column(DIFF).to_numpy()
    if np.any((diffs > DIFF_MAX) | (diffs < -DIFF_MAX)):
        raise UsageError(
            "a diff must be from -2^40 to 2^40, so that the diffs of a row can be added",
            least=int(diffs.min()),
            greatest=int(diffs.max()),
        )
    if np.any(diffs == 0):
        table = table.take(np.flatnonzero(diffs))
    if table.num_rows:
        least, greatest = time_bounds(table)
        if lower.passed(least) or not upper.passed(greatest):
            raise UsageError(
                "an update's time is outside the interval of the write: "
                + (
                    f"times before {lower.time} are complete: give it a later time"
                    if lower.passed(least)
                    else "give a greater upper, or an earlier time"
                ),
                least=least,
                greatest=greatest,
                lower=lower,
                upper="end" if upper.is_empty else upper,
            )
    return table


def time_bounds(table: pa.Table) -> tuple[int, int]:
    """Return the least and the greatest time of a non-empty table."""
    times = table.column(TIME).to_numpy()
    return int(times.min()), int(times.max())


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
    return table.sort_by([(n, "ascending") for n in (*schema.names, TIME)])


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
        return _merge_by_sql(filled, schema, out, is_grouped)
    joined = joined_in_order(filled, key)
    if joined is not None:
        return joined
    single, others = sorted_by_key(pa.concat_tables(filled), key)
    if not others.num_rows:
        return single
    return in_key_order([single.cast(out), _merge_by_sql([others], schema, out, is_grouped)], key)


def _merge_by_sql(
    filled: Sequence[pa.Table], schema: ShardSchema, out: pa.Schema, is_grouped: bool
) -> pa.Table:
    columns = ", ".join(quoted(n) for n in schema.names)
    if is_grouped or any(pc.min(t.column(DIFF)).as_py() < 0 for t in filled):
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
        connection.register("updates", pa.concat_tables(filled))
        found: pa.Table = connection.sql(sql).to_arrow_table()
    return found.cast(out)
