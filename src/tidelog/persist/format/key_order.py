"""Updates in key order: tests for it, and sorting. Pure.

A key that occurs once needs no merging. Most rows therefore need at most sorting by key, and only
rows whose key repeats must be compared as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import require
from tidelog.persist.format.bounds import is_ordered, ordered
from tidelog.persist.format.part import int64_array, int64_of
from tidelog.persist.format.schema import DIFF

# Larger tables are left to SQL, which limits its memory and spills.
SORTED_ROWS_MAX: Final = 1_000_000
LOOK_ROWS: Final = 1_024

_Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


def can_sort(tables: Sequence[pa.Table], key: Sequence[str]) -> bool:
    """Return True if Arrow can sort the rows of some tables in the same order as SQL."""
    if not tables or not key or sum(t.num_rows for t in tables) > SORTED_ROWS_MAX:
        return False
    return all(is_ordered(tables[0].schema.field(name).type) for name in key)


def joined_in_order(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table | None:
    """Return the concatenated tables if each row's key is then greater than the one before."""
    if any(table.column(name).null_count for table in tables for name in key):
        return None
    joined = pa.concat_tables(sorted(tables, key=lambda table: _first(table, key)))
    return joined if _all_rise(joined, key) else None


def is_rising(table: pa.Table, key: Sequence[str]) -> bool:
    """Return True if each row's key is known to be greater than the one before."""
    if not key or not all(is_ordered(table.schema.field(name).type) for name in key):
        return False
    if any(table.column(name).null_count for name in key):
        return False
    # An unordered table usually shows that in its first rows.
    first = table.slice(0, LOOK_ROWS)
    return _all_rise(first, key) and _all_rise(table, key)


def sorted_by_key(table: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows with a unique key, in key order, and all other rows.

    A key with a null cannot be compared here, so its rows are among the other rows.
    """
    table = table.take(_places(table, key))
    is_new = np.concatenate([[True], _rises(table, key), [True]])
    is_single = is_new[:-1] & is_new[1:]
    if is_single.all() and not any(table.column(name).null_count for name in key):
        return table, table.slice(0, 0)
    return _chosen(table, is_single), _chosen(table, ~is_single)


def summed(table: pa.Table) -> pa.Table | None:
    """Return data and ``_diff``, consolidated, in data order; None if SQL must do it.

    SQL must do it if there are nulls, which cannot be compared here, or if a sum may overflow 64
    bits, which numpy would not detect.
    """
    names = [name for name in table.column_names if name != DIFF]
    if not can_sort([table], names) or any(table.column(name).null_count for name in names):
        return None
    if not table.num_rows:
        return table
    diffs = int64_of(table, DIFF)
    if max(-int(diffs.min()), int(diffs.max())) * len(diffs) >= 2**63:
        return None
    table = table.take(_places(table, names))
    is_first = np.concatenate([[True], _rises(table, names)])
    sums = np.add.reduceat(int64_of(table, DIFF), np.flatnonzero(is_first))
    position = table.schema.get_field_index(DIFF)
    made = _chosen(table, is_first).set_column(position, DIFF, int64_array(sums))
    return _chosen(made, sums != 0)


def in_key_order(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Return the concatenated tables in key order; rows of equal keys keep their order."""
    joined = pa.concat_tables(tables)
    return joined.take(_places(joined, key))


def _places(table: pa.Table, key: Sequence[str]) -> pa.Array[Any]:
    columns = pa.table([ordered(table.column(name)) for name in key], list(key))
    return pc.sort_indices(columns, [(name, "ascending") for name in key])


def _first(table: pa.Table, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(ordered(table.column(name).slice(0, 1))[0].as_py() for name in key)


def _chosen(table: pa.Table, which: _Bools) -> pa.Table:
    return table.take(int64_array(np.flatnonzero(which)))


def _rises(table: pa.Table, key: Sequence[str]) -> _Bools:
    """Return for each row after the first whether its key is known to exceed the one before."""
    rises = _compared(table, key)
    # `fill_null` would create a scalar, and Arrow imports pandas for that.
    known = pc.and_kleene(rises, pc.is_valid(rises))
    return cast("_Bools", int64_of(pa.table({DIFF: known.cast(pa.int64())}), DIFF) != 0)


def _all_rise(table: pa.Table, key: Sequence[str]) -> bool:
    """Return True if each row's key is known to be greater than the one before."""
    return pc.all(_compared(table, key), skip_nulls=False, min_count=0).as_py() is True


def _compared(table: pa.Table, key: Sequence[str]) -> Any:
    """Compare the key of each row after the first with the one before; null if not comparable."""
    rises: Any = None
    for name in reversed(key):
        column = ordered(table.column(name))
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        less = pc.less(before, after)
        if rises is not None:
            less = pc.or_kleene(less, pc.and_kleene(pc.equal(before, after), rises))
        rises = less
    require(rises is not None, "rows without a key have no order")
    return rises
