"""Pushdown: the bounds that a condition sets on single columns. Pure.

Parts and row groups have the least and the greatest value of their columns, so a reader with bounds
skips most of them. Only simple conditions are understood: comparisons of a column with constants of
its own type, joined by AND. Everything else sets no bounds. The whole condition is still evaluated
on the remaining rows, unless it consists of bounds on whole numbers or texts.

The tree is DuckDB's, as JSON; its fields differ between versions of DuckDB, see `expression_tree`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, cast

import duckdb
import pyarrow as pa

from tidelog.persist.format.bounds import (
    ConditionBounds,
    Interval,
    is_ordered,
    meet,
    ordered,
    whole_range,
)
from tidelog.predicate.expression_tree import Json
from tidelog.predicate.predicate import ROWS, Predicate, open_sandbox

_MIRRORED: Final = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}
_SAME_TYPE: Final = {
    "DATE": "DATE",
    "TIME": "TIME",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMPTZ",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ",
}


# DuckDB's parser takes 1 ms, and readers repeat their conditions.
@lru_cache(maxsize=256)
def bounds_of(predicate: Predicate) -> ConditionBounds:
    """Return the bounds that a checked condition sets on the columns that it reads."""
    query = f"SELECT ({predicate.sql}) AS p FROM {ROWS}"
    with open_sandbox() as sandbox:
        try:
            (text,) = sandbox.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0]
            tree = json.loads(text)["statements"][0]["node"]["select_list"][0]
        except (duckdb.Error, KeyError, IndexError, TypeError):
            return ConditionBounds({}, is_exact=False)
        reader = _TreeReader(predicate.schema, sandbox)
        return ConditionBounds(meet(reader.bounds(tree)), is_exact=reader.is_exact)


class _TreeReader:
    """Reads a tree; ``sandbox`` converts constants in the same way as a comparison does.

    ``is_exact`` turns False at a node that selects other rows than its bounds.
    """

    def __init__(self, schema: pa.Schema, sandbox: duckdb.DuckDBPyConnection) -> None:
        self.is_exact = True
        self._fields = {f.name.lower(): f for f in schema if is_ordered(f.type)}
        self._sandbox = sandbox

    def bounds(self, node: Json) -> list[tuple[str, Interval]]:
        """Return bounds that every row satisfying the condition lies within."""
        match node:
            case {"type": "CONJUNCTION_AND", "children": list() as children}:
                return [found for child in children for found in self.bounds(child)]
            case {"type": str() as kind, "left": left, "right": right} if kind in _MIRRORED:
                found = self._compared(kind, left, [right])
                found = found or self._compared(_MIRRORED[kind], right, [left])
            case {"type": "COMPARE_BETWEEN", "input": column, "lower": low, "upper": high}:
                above = self._compared("COMPARE_GREATERTHANOREQUALTO", column, [low])
                below = self._compared("COMPARE_LESSTHANOREQUALTO", column, [high])
                found = [*above, *below]
                self.is_exact &= len(found) == 2
            case {"type": "COMPARE_IN", "children": [column, *values]}:
                found = self._compared("COMPARE_EQUAL", column, values)
                self.is_exact &= len(values) == 1
            case _:
                found = []
        self.is_exact &= bool(found)
        return found

    def _compared(
        self, kind: str, column: Json, constants: list[Json]
    ) -> list[tuple[str, Interval]]:
        """Return the bounds of a column that is compared with one of some constants."""
        match column:
            case {"class": "COLUMN_REF", "column_names": [str() as name]}:
                field = self._fields.get(name.lower())
            case _:
                return []
        values = [] if field is None else [self._value(c, field.type) for c in constants]
        if field is None or not values or any(value is None for value in values):
            return []
        low = None if "LESS" in kind else min(values)
        high = None if "GREATER" in kind else max(values)
        if kind in ("COMPARE_LESSTHAN", "COMPARE_GREATERTHAN"):
            return [(field.name, self._closed(low, high, field.type))]
        self.is_exact &= not pa.types.is_temporal(field.type)
        return [(field.name, (low, high))]

    def _closed(self, low: Any, high: Any, dtype: pa.DataType) -> Interval:
        """Return the closed form of an open interval; only whole numbers have one."""
        if pa.types.is_integer(dtype):
            end = low + 1 if high is None else high - 1
            if end in whole_range(dtype):
                return (end, None) if high is None else (None, end)
        self.is_exact = False
        return low, high

    def _value(self, node: Json, dtype: pa.DataType) -> Any:
        """Return a constant in the form of bounds; None if its type differs from the column's."""
        cast_to = _cast_of(node)
        if cast_to is not None and (not pa.types.is_temporal(dtype) or cast_to != _name_of(dtype)):
            return None
        kind, text = _constant(node["child"] if cast_to and isinstance(node, dict) else node)
        if pa.types.is_integer(dtype):
            return _whole(text, dtype) if kind == "INTEGER" else None
        if kind != "STRING":
            return None
        if pa.types.is_string(dtype):
            return text
        try:
            made = self._sandbox.sql(f"SELECT CAST($1 AS {_name_of(dtype)}) AS v", params=[text])
            table = cast("pa.Table", made.to_arrow_table())
            return ordered(table.column("v").cast(dtype)).to_pylist()[0]
        except (duckdb.Error, pa.ArrowException):
            return None


def _cast_of(node: Json) -> str | None:
    """Return the type to which a constant is cast, in a canonical spelling.

    The result is "" for another type, and None without a cast.
    """
    match node:
        case {"type": "OPERATOR_CAST", "try_cast": False, **told}:
            match told:
                case {"type_expr": {"type_name": str() as name}} | {
                    "cast_type": {"id": str() as name}
                }:
                    return _SAME_TYPE.get(name.upper(), "")
            return ""
        case {"type": "OPERATOR_CAST"}:
            return ""
    return None


def _constant(node: Json) -> tuple[str, str]:
    """Return the kind and the text of a literal; two empty strings for another node."""
    match node:
        case {"literal": {"kind": str() as kind, "text": str() as text}}:
            return kind, text
        case {"value": {"type": {"id": "VARCHAR"}, "value": str() as text}}:
            return "STRING", text
        case {"value": {"type": {"id": "INTEGER" | "BIGINT"}, "value": int() as number}}:
            return "INTEGER", str(number)
    return "", ""


def _whole(text: str, dtype: pa.DataType) -> int | None:
    """Return a whole number if a column of a type can hold it, else None."""
    try:
        value = int(text)
    except ValueError:
        return None
    return value if value in whole_range(dtype) else None


def _name_of(dtype: pa.DataType) -> str:
    if pa.types.is_date(dtype):
        return "DATE"
    if pa.types.is_time(dtype):
        return "TIME"
    return "TIMESTAMPTZ" if isinstance(dtype, pa.TimestampType) and dtype.tz else "TIMESTAMP"
