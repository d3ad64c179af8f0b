"""The uses in a SQL expression: DuckDB's parse tree, reduced to the facts to judge. Pure.

``json_serialize_sql`` returns the tree as JSON, and its fields differ between versions of DuckDB.
So the walk knows a few kinds of nodes, passes through the kinds that are known to be harmless, and
reports all others as refused. It judges nothing: see `expression`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

# Nodes that are a value of one row if their children are.
_OF_ONE_ROW = frozenset(
    {
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "TYPE",
    }
)
# Aggregates over a list's elements; the name of the aggregate is an argument.
_AGGREGATES_BY_NAME = frozenset(
    {
        "aggregate",
        "array_aggr",
        "array_aggregate",
        "list_aggr",
        "list_aggregate",
    }
)
# Functions whose result is as long as a number among these arguments. DuckDB neither interrupts
# them nor applies its memory limit to them.
_SIZED: Final[dict[str, slice]] = {
    "array_resize": slice(1, 2),
    "bar": slice(1, None),
    "bitstring": slice(1, 2),
    "format": slice(0, 1),
    "generate_series": slice(0, None),
    "list_resize": slice(1, 2),
    "lpad": slice(1, 2),
    "printf": slice(0, 1),
    "range": slice(0, None),
    "repeat": slice(1, 2),
    "rpad": slice(1, 2),
    "to_base": slice(2, 3),
}
_LONG: Final = re.compile(r"[0-9]{5}|[eE]")


class Kind(Enum):
    """The kinds of uses in an expression."""

    NAME = "a name that should be a column's"
    PARAMETER = "a name left of an arrow: a lambda's parameter, or a JSON column"
    FUNCTION = "a function or operator"
    AGGREGATE = "an aggregate over a list, by name; the empty name if it is computed"
    COLLATION = "a collation"
    SIZE = "a function whose result may have any length"
    REFUSED = "a node that no expression over one row may contain, by DuckDB's class"


@dataclass(frozen=True, slots=True)
class Use:
    """One use in an expression; a qualified name has several parts."""

    kind: Kind
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path[-1]


def without_places(node: Json) -> Json:
    """Return a tree without its nodes' positions in the text, so that trees can be compared."""
    if isinstance(node, dict):
        return {
            key: without_places(value)
            for key, value in node.items()
            if not key.startswith("query_location")
        }
    if isinstance(node, list):
        return [without_places(value) for value in node]
    return node


def uses_of(node: Json, scope: frozenset[str] = frozenset()) -> Iterator[Use]:
    """Yield the uses in an expression; names in ``scope``, in lower case, are parameters."""
    if isinstance(node, list):
        for value in node:
            yield from uses_of(value, scope)
        return
    if not isinstance(node, dict):
        return
    match node.get("class"):
        case None:
            yield from uses_of(list(node.values()), scope)
        case "COLUMN_REF":
            path = _texts(node["column_names"])
            if path[0].lower() not in scope:
                yield Use(Kind.NAME, path)
        case "FUNCTION":
            yield from _uses_of_function(node, scope)
        case "LAMBDA":
            parameters = frozenset(_parameters(node["lhs"]))
            for parameter in sorted(parameters):
                yield Use(Kind.PARAMETER, (parameter,))
            inner = scope | {parameter.lower() for parameter in parameters}
            yield from uses_of([node["lhs"], node["expr"]], inner)
        case "COLLATE":
            yield Use(Kind.COLLATION, (str(node["collation"]),))
            yield from uses_of(node["child"], scope)
        case str(node_class) if node_class in _OF_ONE_ROW:
            yield from uses_of(list(node.values()), scope)
        case node_class:
            yield Use(Kind.REFUSED, (str(node_class),))


def _uses_of_function(node: dict[str, Json], scope: frozenset[str]) -> Iterator[Use]:
    qualified = node.get("qualified_name")
    if isinstance(qualified, dict):
        path = _texts(qualified["path"])
    else:
        path = tuple(
            part
            for part in _texts([node.get("catalog"), node.get("schema"), node["function_name"]])
            if part
        )
    # In `column.function()` the column has the place of a schema.
    if path[0].lower() in scope and len(path) > 1:
        path = path[1:]
    yield Use(Kind.FUNCTION, path)
    arguments = node.get("arguments", node.get("children"))
    if path[-1].lower() in _AGGREGATES_BY_NAME:
        yield Use(Kind.AGGREGATE, (_name_of_aggregate(arguments, method=len(path) > 1),))
    if not _is_bounded(path, arguments):
        yield Use(Kind.SIZE, path)
    yield from uses_of([value for key, value in node.items() if key != "qualified_name"], scope)


def _is_bounded(path: tuple[str, ...], arguments: Json) -> bool:
    """Return True if no argument makes a result longer than four digits, or than its input."""
    sized = _SIZED.get(path[-1].lower())
    if sized is None or not isinstance(arguments, list):
        return True
    given = [None, *arguments] if len(path) > 1 else arguments
    texts = [None if argument is None else _constant(argument) for argument in given[sized]]
    return all(text is not None and not _LONG.search(text) for text in texts)


def _name_of_aggregate(arguments: Json, *, method: bool) -> str:
    """Return the constant argument that names the aggregate; empty if it is computed."""
    at = 0 if method else 1
    if not isinstance(arguments, list) or len(arguments) <= at:
        return ""
    return _constant(arguments[at]) or ""


def _constant(argument: Json) -> str | None:
    """Return a constant argument as text; None if it is not a constant."""
    if isinstance(argument, dict) and "class" not in argument:
        argument = argument.get("expression")
    if not isinstance(argument, dict) or argument.get("class") != "CONSTANT":
        return None
    for holder, key in (("literal", "text"), ("value", "value")):
        held = argument.get(holder)
        if isinstance(held, dict) and isinstance(held.get(key), str | int):
            return str(held[key])
    return None


def _parameters(node: Json) -> Iterator[str]:
    """Yield the plain names left of an arrow: ``x``, or ``(x, y)``."""
    if isinstance(node, list):
        for value in node:
            yield from _parameters(value)
    elif isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            path = _texts(node["column_names"])
            if len(path) == 1:
                yield path[0]
        elif node.get("class") in (None, "FUNCTION"):
            yield from _parameters(list(node.values()))


def _texts(parts: Json) -> tuple[str, ...]:
    return tuple(str(part or "") for part in parts) if isinstance(parts, list) else ()
