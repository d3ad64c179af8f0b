"""Pushdown: the bounds that a condition sets on single columns. Pure.

Parts and row groups have the least and the greatest value of their columns, so a reader with bounds
skips most of them. Only simple conditions are understood: comparisons of a column with constants of
its own type, joined by AND. Everything else sets no bounds. The whole condition is still evaluated
on the remaining rows.

The tree is DuckDB's, as JSON; its fields differ between versions of DuckDB, see `expression_tree`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, cast

import duckdb
import pyarrow as pa

from tidelog.persist.format.bounds import Box, Interval, is_ordered, meet, ordered, whole_range
from tidelog.predicate.expression_tree import Json
from tidelog.predicate.predicate import ROWS

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


def box_of(sql: str, schema: pa.Schema, sandbox: duckdb.DuckDBPyConnection) -> Box:
    """Return the bounds that a checked condition sets on columns of ``schema``."""
    query = f"SELECT ({sql}) AS p FROM {ROWS}"
    try:
        (text,) = sandbox.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0]
        tree = json.loads(text)["statements"][0]["node"]["select_list"][0]
    except (duckdb.Error, KeyError, IndexError, TypeError):
        return {}
    return meet(_Bounds(schema, sandbox).of(tree))


class _Bounds:
    """Reads a tree; ``sandbox`` converts constants in the same way as a comparison does."""

    def __init__(self, schema: pa.Schema, sandbox: duckdb.DuckDBPyConnection) -> None:
        self._fields = {f.name.lower(): f for f in schema if is_ordered(f.type)}
        self._sandbox = sandbox

    def of(self, node: Json) -> Iterator[tuple[str, Interval]]:
        """Yield bounds that every row satisfying the condition lies within."""
        match node:
            case {"type": "CONJUNCTION_AND", "children": list() as children}:
                for child in children:
                    yield from self.of(child)
            case {"type": str() as kind, "left": left, "right": right} if kind in _MIRRORED:
                yield from self._compared(kind, left, [right])
                yield from self._compared(_MIRRORED[kind], right, [left])
            case {"type": "COMPARE_BETWEEN", "input": column, "lower": low, "upper": high}:
                yield from self._compared("COMPARE_GREATERTHANOREQUALTO", column, [low])
                yield from self._compared("COMPARE_LESSTHANOREQUALTO", column, [high])
            case {"type": "COMPARE_IN", "children": [column, *values]}:
                yield from self._compared("COMPARE_EQUAL", column, values)

    def _compared(
        self, kind: str, column: Json, constants: list[Json]
    ) -> Iterator[tuple[str, Interval]]:
        """Yield the bounds of a column that is compared with one of some constants."""
        match column:
            case {"class": "COLUMN_REF", "column_names": [str() as name]}:
                field = self._fields.get(name.lower())
            case _:
                return
        values = [] if field is None else [self._value(c, field.type) for c in constants]
        if field is None or not values or any(value is None for value in values):
            return
        low = None if "LESS" in kind else min(values)
        high = None if "GREATER" in kind else max(values)
        yield field.name, (low, high)

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
