"""Bounds of an Arrow filter expression, and the columns that it reads. Pure.

Arrow does not show the tree of an expression, only its text. So this module reads the text of
simple comparisons, builds the expression again, and compares the two. Bounds from a text that was
misread would lose rows; here a misread text differs from the expression, and gives no bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import and_, eq, ge, gt, le, lt, or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.persist.format.bounds import Box, Interval, is_ordered, meet, ordered, scalar_of

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": eq,
    "<=": le,
    ">=": ge,
    "<": lt,
    ">": gt,
}
_LITERAL: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^()"]+')
_CALLS: Final[dict[str, str]] = {
    "is_valid({})": "is_valid",
    "is_null({}, {{nan_is_null=false}})": "is_null",
}


def columns_of(expression: pc.Expression, schema: pa.Schema) -> set[str]:
    """Return the columns that an expression reads, and perhaps some others.

    The text of an expression contains the name of each column that it reads.
    """
    text = str(expression)
    words = set(re.findall(r"\w+", text))
    # A word of the regular expression ends at a combining mark, which a name may have.
    plain = {name for name in schema.names if name.isascii() and name.isidentifier()}
    return {name for name in schema.names if name in (words if name in plain else text)}


def box_of_filter(expression: pc.Expression, schema: pa.Schema) -> Box:
    """Return bounds that each row lies within for which the expression is true.

    Comparisons of columns with values, null tests, AND and OR are understood. Any other expression
    gives no bounds.
    """
    try:
        condition, end = _Parser(str(expression), schema).condition(0)
    except (ValueError, pa.ArrowException):
        return {}
    again: Any = condition.expression  # The stubs of Arrow omit `equals`.
    is_whole = end == len(str(expression)) and again.equals(expression)
    return meet(condition.bounds) if is_whole else {}


@dataclass(frozen=True, slots=True)
class _Condition:
    """A part of an expression, built again, with the bounds that it sets."""

    expression: pc.Expression
    bounds: tuple[tuple[str, Interval], ...] = ()


class _Parser:
    """Parses the text of an expression; each method returns a result and its end in the text.

    Raises:
        ValueError: the text has another form.
    """

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        # The longest name first, because a name may begin with another one.
        self._names = sorted(schema.names, key=len, reverse=True)

    def condition(self, at: int) -> tuple[_Condition, int]:
        for form, call in _CALLS.items():
            for name in self._names:
                if self._text.startswith(text := form.format(name), at):
                    return _Condition(getattr(pc.field(name), call)()), at + len(text)
        if not self._text.startswith("(", at):
            raise ValueError
        if self._text[at + 1 : at + 2] == "(" or self._text.startswith("is_", at + 1):
            try:
                return self._joined(at + 1)
            except ValueError:  # The name of a column may have the same beginning.
                pass
        return self._compared(at + 1)

    def _joined(self, at: int) -> tuple[_Condition, int]:
        left, at = self.condition(at)
        is_and = self._text.startswith(" and ", at)
        at = self._after(" and " if is_and else " or ", at)
        right, at = self.condition(at)
        join = and_ if is_and else or_
        # A row that satisfies one side of an OR may lie outside the bounds of the other.
        bounds = left.bounds + right.bounds if is_and else ()
        return _Condition(join(left.expression, right.expression), bounds), self._after(")", at)

    def _compared(self, at: int) -> tuple[_Condition, int]:
        for name, sign in self._starts(at):
            literal = _LITERAL.match(self._text, at + len(name) + len(sign) + 2)
            if literal is None:
                continue
            dtype = self._schema.field(name).type
            value = _value(literal[0], dtype)
            expression = _COMPARISONS[sign](pc.field(name), scalar_of(value, dtype))
            bounds = ((name, _interval(sign, value)),)
            return _Condition(expression, bounds), self._after(")", literal.end())
        raise ValueError

    def _starts(self, at: int) -> Iterator[tuple[str, str]]:
        for name in self._names:
            for sign in _COMPARISONS:
                if self._text.startswith(f"{name} {sign} ", at):
                    yield name, sign

    def _after(self, text: str, at: int) -> int:
        if not self._text.startswith(text, at):
            raise ValueError
        return at + len(text)


def _value(text: str, dtype: pa.DataType) -> Any:
    """Return a literal of a column's type in the form of bounds; see `ordered`."""
    if not is_ordered(dtype):
        raise ValueError
    if pa.types.is_string(dtype):
        return str(json.loads(text))
    if pa.types.is_integer(dtype):
        return int(text)
    moment = pa.chunked_array([pa.array([text]).cast(dtype)])
    return ordered(moment).to_pylist()[0]


def _interval(sign: str, value: Any) -> Interval:
    return (
        value if sign in {"==", ">=", ">"} else None,
        value if sign in {"==", "<=", "<"} else None,
    )
