"""Changes of a table: the updates of each kind of write. Pure.

A change names the rows that it depends on (its lookup), and plans its updates from them. In a table
with a key, the updates leave at most one row for each key.
Shape: rows have the table's columns; old rows and updates also have ``_diff``. Updates are
    consolidated: an old row that is equal to the new one gives no update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.types import sql_type_of
from tidelog.collection.table.inputs import fits, keys_of, table_of
from tidelog.collection.table.lookups import ByCondition, ByValues, Lookup, by_condition, distinct
from tidelog.core.arguments import check_kind, check_names, joined_names, quoted
from tidelog.errors import KeyExists, UsageError
from tidelog.persist.format.corrected import consolidated
from tidelog.persist.format.foreign_rows import first_misfit
from tidelog.persist.format.inputs import python_of, row_text
from tidelog.persist.format.part import int64_array, int64_of, negated, taken
from tidelog.persist.format.schema import DIFF, ShardSchema

if TYPE_CHECKING:
    from tidelog.predicate.predicate import Expression

WhenMatched: TypeAlias = Literal["update", "delete", "ignore"]
WhenNotMatched: TypeAlias = Literal["insert", "ignore"]
Counts: TypeAlias = npt.NDArray[np.int64]
MATCHED: Final = ("update", "delete", "ignore")
NOT_MATCHED: Final = ("insert", "ignore")
INSERT: Final = "insert"
UPSERT: Final = "upsert"
DELETE: Final = "delete"
OVERWRITE: Final = "overwrite"


class TableChange(Protocol):
    """One write: the rows that it depends on, and its updates.

    ``schema`` is that of the table. ``lookup`` is None if the write depends on no row.
    """

    @property
    def schema(self) -> ShardSchema: ...

    @property
    def lookup(self) -> Lookup | None: ...

    def updates(self, old: pa.Table) -> pa.Table:
        """Return the updates on top of ``old``, the rows of the lookup.

        Raises:
            KeyExists: an inserted key has a row. UsageError: two rows would have one key, or an
                expression fails on a row.
        """
        ...


@dataclass(frozen=True, slots=True)
class Insert:
    """An insert of rows; in a table with a key, the keys must be new."""

    schema: ShardSchema
    rows: pa.Table
    lookup: ByValues | None

    def updates(self, old: pa.Table) -> pa.Table:
        if self.lookup is not None:
            check_absent(self.lookup, old)
        return _signed(self.rows, 1)


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge: rows of the table whose columns match a row are updated, deleted or left.

    An upsert and a delete by keys are merges, too.
    """

    schema: ShardSchema
    rows: pa.Table
    lookup: ByValues
    when_matched: WhenMatched = "update"
    when_not_matched: WhenNotMatched = "insert"

    def updates(self, old: pa.Table) -> pa.Table:
        found, copies = [_taken_back(self, old)], _copies(self, old)
        if copies.any():  # The rows of a delete have only the compared columns.
            found.append(_added(self.rows, copies))
        return consolidated(pa.concat_tables(one.cast(self.schema.contents) for one in found))


@dataclass(frozen=True, slots=True)
class SpooledMerge:
    """A merge whose rows are not in memory; its updates only take back the rows that it replaces.

    Shape: ``known`` has the key and the compared columns of all rows.
    """

    schema: ShardSchema
    known: pa.Table
    lookup: ByValues
    when_matched: WhenMatched
    when_not_matched: WhenNotMatched

    def updates(self, old: pa.Table) -> pa.Table:
        return _taken_back(self, old)

    def copies(self, old: pa.Table) -> Counts:
        """Return how often the merge adds each of its rows."""
        return _copies(self, old)

    def key_updates(self, old: pa.Table) -> pa.Table:
        """Return the updates of the key columns, with those of the rows that the merge adds."""
        names = [*self.schema.key, DIFF]
        added = _added(self.known, _copies(self, old))
        return pa.concat_tables([_taken_back(self, old).select(names), added.select(names)])


def _taken_back(merge: Merge | SpooledMerge, old: pa.Table) -> pa.Table:
    return old.slice(0, 0) if merge.when_matched == "ignore" else negated(old)


def _copies(merge: Merge | SpooledMerge, old: pa.Table) -> Counts:
    """Return how often a merge adds each of its rows, on top of the rows that match."""
    places = merge.lookup.places(old)
    found = np.full(merge.lookup.values.num_rows, merge.when_not_matched == "insert", np.int64)
    found[places] = 0
    if merge.when_matched == "update":
        # A row of a table without a key may occur several times.
        np.add.at(found, places, int64_of(old, DIFF))
    return found


def _added(rows: pa.Table, copies: Counts) -> pa.Table:
    places = np.flatnonzero(copies)
    field = pa.field(DIFF, pa.int64(), nullable=False)
    return taken(rows, places).append_column(field, int64_array(copies[places]))


@dataclass(frozen=True, slots=True)
class DeleteWhere:
    """A delete of the rows for which a condition is true."""

    schema: ShardSchema
    lookup: ByCondition

    def updates(self, old: pa.Table) -> pa.Table:
        return negated(old)


@dataclass(frozen=True, slots=True)
class UpdateWhere:
    """An update of the rows for which a condition is true, by one expression for each column."""

    schema: ShardSchema
    lookup: ByCondition
    set: Mapping[str, Expression]

    def updates(self, old: pa.Table) -> pa.Table:
        from tidelog.predicate.predicate import open_sandbox  # Imports DuckDB, in 50 ms.

        if not old.num_rows:
            return old
        columns = {name: old.column(name) for name in self.schema.names}
        with open_sandbox() as sandbox:
            for name, expression in self.set.items():
                found = expression.values_in(sandbox, old)
                columns[name] = _rounded(found, self.schema.data.field(name).type)
        try:
            new = table_of(pa.table(columns), self.schema).append_column(DIFF, old.column(DIFF))
        except UsageError as error:
            raise self._refused(columns, old) or error from error
        return consolidated(pa.concat_tables([negated(old), new.cast(self.schema.contents)]))

    def _refused(
        self, columns: Mapping[str, pa.ChunkedArray[Any]], old: pa.Table
    ) -> UsageError | None:
        """Return the error of the first value that does not fit, and of its row."""
        for name in self.set:
            made = pa.table({name: columns[name]})
            field = self.schema.data.field(name)
            wanted = ShardSchema(pa.schema([field]), int(name in self.schema.key))
            if fits(made, wanted):
                continue
            place = first_misfit(made, partial(fits, schema=wanted))
            value = python_of(made.column(0)[place])
            shown = "null" if value is None else quoted(value)
            row = row_text(old.slice(place, 1), self.schema.key or self.schema.names[:3])
            why = "a key is never null" if value is None else f"its type is {sql_type_of(field)}"
            return UsageError(
                f"set= of {name!r} gives {shown} for the row with {row}, which the column "
                f"cannot hold: {why}"
            )
        return None


def _rounded(values: pa.ChunkedArray[Any], wanted: pa.DataType) -> pa.ChunkedArray[Any]:
    """Return computed floats rounded to those of a shorter column, if they are in its range."""
    if not (pa.types.is_floating(values.type) and pa.types.is_floating(wanted)):
        return values
    made = values.cast(wanted)
    return made if pc.is_inf(made).equals(pc.is_inf(values)) else values


@dataclass(frozen=True, slots=True)
class Staged:
    """A write by key whose rows are parts already; its updates take back the rows of the keys.

    Without ``replaces``, it is an insert: the rows of the lookup must not exist.
    """

    schema: ShardSchema
    lookup: ByValues
    replaces: bool

    def updates(self, old: pa.Table) -> pa.Table:
        if self.replaces:
            return negated(old)
        check_absent(self.lookup, old)
        return old.slice(0, 0)


def insert_of(rows: object, schema: ShardSchema) -> Insert:
    """Return the insert of rows of any kind.

    Raises:
        UsageError: the rows do not fit, or a key occurs twice among them.
    """
    return inserted(table_of(rows, schema), schema)


def inserted(table: pa.Table, schema: ShardSchema) -> Insert:
    """Return the insert of a table of rows that fit; see `insert_of`."""
    return Insert(schema, table, _keys_once(table, schema) if schema.key else None)


def upsert_of(rows: object, schema: ShardSchema) -> Merge:
    """Return the upsert of rows: each is inserted, or replaces the row of its key.

    Raises:
        UsageError: the table has no key; or see `insert_of`.
    """
    check_upsert(schema)
    return upserted(table_of(rows, schema), schema)


def check_upsert(schema: ShardSchema) -> None:
    """Check that a table has a key, without which no row replaces another.

    Raises:
        UsageError: it has none.
    """
    if not schema.key:
        raise UsageError(
            "the table has no key, so no row can replace another: insert the rows, or create a "
            "table with a key"
        )


def upserted(table: pa.Table, schema: ShardSchema) -> Merge:
    """Return the upsert of a table of rows that fit; see `upsert_of`."""
    return Merge(schema, table, _keys_once(table, schema))


def delete_of(keys: object, where: str | None, schema: ShardSchema) -> Merge | DeleteWhere:
    """Return the delete of some keys, or of the rows for which a condition is true.

    Raises:
        UsageError: both or none are given, the table has no key, or one does not fit.
    """
    if (keys is None) == (where is None):
        raise UsageError("delete needs either keys= or where=: pass one of them")
    if where is not None:
        return DeleteWhere(schema, by_condition(where, schema))
    lookup = distinct(keys_of(keys, schema))
    return Merge(schema, lookup.values, lookup, when_matched="delete", when_not_matched="ignore")


def update_of(set: object, where: str, schema: ShardSchema) -> UpdateWhere:
    """Return the update of rows by expressions in DuckDB's dialect over the old row.

    Raises:
        UsageError: a column does not exist, or an expression or the condition is not valid.
    """
    from tidelog.predicate.expression import check_expression  # Imports DuckDB, in 50 ms.

    if not isinstance(set, Mapping) or not set:
        raise UsageError(
            'set must be a dict of columns and SQL expressions, such as {"price": "price + 1"}'
        )
    expressions: dict[str, Expression] = {}
    for name, sql in set.items():
        if name not in schema.names:
            raise UsageError(
                f"set= names an unknown column: {quoted(name)}; the columns are "
                f"{joined_names(schema.names)}"
            )
        what = f"set= of {name!r}"
        check_kind(sql, str, f"{what} must be a SQL expression, as a str")
        expressions[name] = check_expression(sql, schema.data, what=what)
    return UpdateWhere(schema, by_condition(where, schema), expressions)


def merge_of(
    rows: object,
    on: Sequence[str] | None,
    schema: ShardSchema,
    *,
    when_matched: WhenMatched,
    when_not_matched: WhenNotMatched,
) -> Merge:
    """Return the merge of rows; ``on`` are the compared columns, by default those of the key.

    Raises:
        UsageError: two rows have equal values in these columns; or see `rule_of` and `insert_of`.
    """
    rule = rule_of(on, schema, when_matched=when_matched, when_not_matched=when_not_matched)
    return rule.merge(table_of(rows, rule.given(schema)), schema)


@dataclass(frozen=True, slots=True)
class MergeRule:
    """A merge without its rows.

    Shape: ``columns`` are the compared ones, in the order of the table.
    """

    columns: list[str]
    when_matched: WhenMatched
    when_not_matched: WhenNotMatched

    @property
    def adds_rows(self) -> bool:
        return self.when_matched == "update" or self.when_not_matched == "insert"

    def given(self, schema: ShardSchema) -> ShardSchema:
        """Return the schema of the given rows: they need no key if none is added or compared."""
        needs_key = self.adds_rows or {*schema.key} & {*self.columns}
        return schema if needs_key else replace(schema, key_columns=0)

    def is_upsert(self, schema: ShardSchema) -> bool:
        replaces = (self.when_matched, self.when_not_matched) == ("update", "insert")
        return replaces and self.columns == schema.key

    def merge(self, rows: pa.Table, schema: ShardSchema) -> Merge:
        """Return the merge of rows that have the schema `given`."""
        lookup = _once(rows.select(self.columns), "merge")
        return Merge(schema, rows, lookup, self.when_matched, self.when_not_matched)

    def spooled(self, known: pa.Table, schema: ShardSchema) -> SpooledMerge:
        """Return the merge of rows that are not in memory."""
        lookup = _once(known.select(self.columns), "merge")
        return SpooledMerge(schema, known, lookup, self.when_matched, self.when_not_matched)


def rule_of(
    on: Sequence[str] | None,
    schema: ShardSchema,
    *,
    when_matched: WhenMatched,
    when_not_matched: WhenNotMatched,
) -> MergeRule:
    """Return the rule of a merge; ``on`` are the compared columns, by default those of the key.

    Raises:
        UsageError: ``on`` is missing or names an unknown column, or an action is unknown.
    """
    for value, known, what in (
        (when_matched, MATCHED, "when_matched"),
        (when_not_matched, NOT_MATCHED, "when_not_matched"),
    ):
        if value not in known:
            raise UsageError(f"{what} must be {' or '.join(known)}, not {quoted(value)}")
    asked = schema.key if on is None else check_names(on, "on")
    unknown = [name for name in asked if name not in schema.names]
    if unknown or not asked:
        if unknown:
            what = f"on= names an unknown column: {quoted(unknown[0])}"
        elif on is None:
            what = "the table has no key: pass on= with the columns to compare"
        else:
            what = "on= names no column: pass the columns to compare"
        raise UsageError(f"{what}; the columns are {joined_names(schema.names)}")
    columns = [name for name in schema.names if name in asked]
    return MergeRule(columns, when_matched, when_not_matched)


def staged_of(operation: str, keys: pa.Table, schema: ShardSchema) -> Staged:
    """Return an insert, an upsert or a delete of staged rows with some keys.

    Raises:
        UsageError: a key occurs twice, except in a delete.
    """
    if operation == DELETE:
        return Staged(schema, distinct(keys), replaces=True)
    return Staged(schema, _keys_once(keys, schema), replaces=operation == UPSERT)


def check_keys_once(keys: pa.Table, schema: ShardSchema) -> None:
    """Check that each key occurs once; a table without a key has none.

    Raises:
        UsageError: one occurs twice.
    """
    if schema.key:
        _keys_once(keys, schema)


def unread_keys(change: TableChange, updates: pa.Table) -> ByValues | None:
    """Return the keys that updates add and that the lookup of the change does not cover.

    The table must have no row of them: see `check_absent`.

    Raises:
        UsageError: two rows would have one key.
    """
    schema, lookup = change.schema, change.lookup
    if not schema.key or (isinstance(lookup, ByValues) and lookup.columns == schema.key):
        return None
    keys, diffs = updates.select(schema.key), int64_of(updates, DIFF)
    known = distinct(keys)
    places = known.places(keys)
    added, net = np.zeros((2, known.values.num_rows), np.int64)
    np.add.at(added, places, np.maximum(diffs, 0))
    np.add.at(net, places, diffs)
    twice = np.flatnonzero(added > 1)
    if len(twice):
        raise UsageError(
            f"two rows would have the key {_shown(known.values, int(twice[0]))}: keys are unique"
        )
    new = np.flatnonzero(net > 0)
    return ByValues(known.values.take(new)) if len(new) else None


def check_absent(keys: ByValues, old: pa.Table) -> None:
    """Check that none of the rows ``old`` has one of the keys.

    Raises:
        KeyExists: one has; the message names the first such key.
    """
    places = keys.places(old)
    if (places >= 0).any():
        shown = _shown(keys.values, int(places[places >= 0].min()))
        raise KeyExists(f"the key {shown} exists: choose another key, or upsert its row")


def keys_of_updates(change: TableChange, updates: pa.Table) -> ByValues | None:
    """Return the keys that updates change; None in a table without a key."""
    return distinct(updates.select(change.schema.key)) if change.schema.key else None


def _signed(rows: pa.Table, diff: int) -> pa.Table:
    return rows.append_column(DIFF, int64_array(np.full(rows.num_rows, diff, np.int64)))


def _keys_once(table: pa.Table, schema: ShardSchema) -> ByValues:
    return _once(table.select(schema.key), "write")


def _once(values: pa.Table, what: str) -> ByValues:
    """Return the lookup of values.

    Raises:
        UsageError: a combination occurs twice.
    """
    lookup = ByValues(values)
    if lookup.repeated is not None:
        raise UsageError(
            f"two rows of the {what} have {_shown(values, lookup.repeated)}: keep one of them"
        )
    return lookup


def _shown(keys: pa.Table, place: int) -> str:
    """Return one row of keys as text: id=7, name='a'."""
    return row_text(keys.slice(place, 1), keys.column_names)
