"""Updates in the order of their key: whether they are, and how they come to be. Pure.

A key that comes once has nothing to be merged with. So most rows need at most be put in their
place, and only those whose key comes again have to be compared as a whole.
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

# Of more rows SQL makes less of a burden, which has memory of its own and spills.
SORTED_ROWS_MAX: Final = 1_000_000
LOOK_ROWS: Final = 1_024

_Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


def can_sort(tables: Sequence[pa.Table], key: Sequence[str]) -> bool:
    """Say whether Arrow puts the rows of some tables in the order that SQL has."""
    if not tables or not key or sum(t.num_rows for t in tables) > SORTED_ROWS_MAX:
        return False
    return all(is_ordered(tables[0].schema.field(name).type) for name in key)


def joined_in_order(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table | None:
    """Return tables one behind the other, if then each row's key is greater than the one before."""
    if any(table.column(name).null_count for table in tables for name in key):
        return None
    joined = pa.concat_tables(sorted(tables, key=lambda table: _first(table, key)))
    return joined if _all_rise(joined, key) else None


def is_rising(table: pa.Table, key: Sequence[str]) -> bool:
    """Say whether each row's key is known to be greater than the one before."""
    if not key or not all(is_ordered(table.schema.field(name).type) for name in key):
        return False
    if any(table.column(name).null_count for name in key):
        return False
    # Whoever is in no order mostly shows it at once.
    first = table.slice(0, LOOK_ROWS)
    return _all_rise(first, key) and _all_rise(table, key)


def sorted_by_key(table: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows whose key comes once, in the order of the key, and all others.

    Of a key with a null in it nothing is known, and it counts among the others.
    """
    table = table.take(_places(table, key))
    is_new = np.concatenate([[True], _rises(table, key), [True]])
    is_single = is_new[:-1] & is_new[1:]
    if is_single.all() and not any(table.column(name).null_count for name in key):
        return table, table.slice(0, 0)
    return _chosen(table, is_single), _chosen(table, ~is_single)


def summed(table: pa.Table) -> pa.Table | None:
    """Return data and ``_diff``, consolidated, in the order of the data; None where SQL has to.

    It has to where there are nulls: none is known to be the same as another, here. And where a sum
    may not have 64 bits: numpy's would begin anew.
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
    """Return tables as one, in the order of the key; rows of one key stay as they stood."""
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
    """Say of each row but the first whether its key is known to be greater than the one before."""
    rises = _compared(table, key)
    # What fills nulls makes a scalar, for which Arrow loads pandas.
    known = pc.and_kleene(rises, pc.is_valid(rises))
    return cast("_Bools", int64_of(pa.table({DIFF: known.cast(pa.int64())}), DIFF) != 0)


def _all_rise(table: pa.Table, key: Sequence[str]) -> bool:
    """Say whether each row's key is known to be greater than the one before."""
    return pc.all(_compared(table, key), skip_nulls=False, min_count=0).as_py() is True


def _compared(table: pa.Table, key: Sequence[str]) -> Any:
    """Return of each row but the first whether its key is greater than the one before; or null."""
    rises: Any = None
    for name in reversed(key):
        column = ordered(table.column(name))
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        less = pc.less(before, after)
        if rises is not None:
            less = pc.or_kleene(less, pc.and_kleene(pc.equal(before, after), rises))
        rises = less
    require(rises is not None, "rows without a key are in no order")
    return rises
