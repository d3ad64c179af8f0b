"""Checks of users' SQL expressions over one row, in DuckDB's dialect.

An expression is checked once, when a user enters it. It must be one expression over the columns of
one row, also after it is put in parentheses into a statement. A condition must be boolean. A
*definite* expression is a pure function of the row: it has the same value in every process, at
every retry, at any time.

Each use opens a DuckDB of its own, which has no access to files or network, and locks this
configuration. Its time zone is UTC, so results do not depend on the machine.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import duckdb
import pyarrow as pa

from tidelog.errors import UsageError
from tidelog.predicate.expression_tree import Json, Kind, Use, uses_of, without_places
from tidelog.predicate.predicate import (
    ROWS,
    Expression,
    Predicate,
    filter_table,
    open_sandbox,
    told_by,
)

__all__ = ["Predicate", "check_predicate", "filter_table"]

_SCHEMAS = frozenset({"main", "system", "pg_catalog"})
# Names that DuckDB evaluates as function calls if no column has the name.
_CALLS_WITHOUT_PARENTHESES = frozenset(
    {
        "current_catalog",
        "current_date",
        "current_role",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "user",
    }
)
# DuckDB calls them stable, but they read the clock or the version, or change with versions.
_NOT_DEFINITE_EITHER = frozenset(
    {
        "age",
        "current_localtime",
        "current_localtimestamp",
        "current_setting",
        "getvariable",
        "hash",
        "icu_sort_key",
        "version",
    }
)
# DuckDB 2 calls a function of these types consistent within a query only, since it reads the
# setting `TimeZone`. A sandbox holds that setting at UTC, so the result depends on the row alone.
_TYPES_WITH_ZONE = ("TIME WITH TIME ZONE", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS")
# Other collations follow the version of ICU.
_DEFINITE_COLLATIONS = frozenset({"binary", "c", "nfc", "noaccent", "nocase", "posix"})
_NOT_OF_ONE_ROW = {
    "DEFAULT": "DEFAULT",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column's number",
    "STAR": "a star",
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
}


def check_predicate(
    sql: str, schema: pa.Schema, *, definite: bool, what: str = "the expression"
) -> Predicate:
    """Check that ``sql`` is one boolean expression over a row of ``schema``.

    Args:
        definite: also refuse an expression that is not a pure function of the row.
        what: the users' name for the expression, such as "--where"; messages begin with it.

    Raises:
        UsageError: it is not; the message states the reason and the remedy.
    """
    text = sql.strip()
    if not text:
        raise UsageError(f"{what} is empty: write a condition such as \"country = 'DE'\"")
    return _checked_predicate(text, schema, what, definite)


# A check takes 5 ms, and readers repeat their conditions.
@lru_cache(maxsize=256)
def _checked_predicate(text: str, schema: pa.Schema, what: str, definite: bool) -> Predicate:
    with open_sandbox() as connection:
        check = _Check(connection, text, schema, what, definite)
        try:
            return check.predicate()
        except RecursionError as error:
            raise check.refusal("is nested too deeply: simplify it") from error


def check_expression(sql: str, schema: pa.Schema, *, what: str) -> Expression:
    """Check that ``sql`` is one expression over a row of ``schema``; it may read the clock.

    Raises:
        UsageError: it is not; the message begins with ``what``, and states the remedy.
    """
    text = sql.strip()
    if not text:
        raise UsageError(f'{what} is empty: write an expression such as "price + 1"')
    with open_sandbox() as connection:
        check = _Check(connection, text, schema, what, definite=False)
        try:
            found = Expression(text, check.columns(), what)
            found.values_in(connection, _row_of_nulls(found.schema))
        except RecursionError as error:
            raise check.refusal("is nested too deeply: simplify it") from error
    return found


def _row_of_nulls(schema: pa.Schema) -> pa.Table:
    return pa.table([pa.nulls(1, field.type) for field in schema], schema.names)


@dataclass(frozen=True, slots=True)
class _Check:
    """The check of one expression."""

    connection: duckdb.DuckDBPyConnection
    sql: str
    schema: pa.Schema
    what: str
    definite: bool

    def predicate(self) -> Predicate:
        schema = self.columns()
        self._check_type(schema)
        predicate = Predicate(self.sql, schema, self.what)
        # A row of nulls detects a constant that cannot be computed: it would fail on every row.
        predicate.mask_in(self.connection, _row_of_nulls(schema))
        return predicate

    def columns(self) -> pa.Schema:
        """Check that the text is one expression; return the columns that it reads."""
        tree = self._expression()
        uses = list(uses_of(tree))
        self._check_parts(uses)
        read = self._columns(uses)
        self._check_functions(uses)
        if self._parse(self.sql)[0] != tree:
            raise self.refusal("is not one expression: check its parentheses and commas")
        return pa.schema(
            [(name, self.schema.field(name).type) for name in self.schema.names if name in read]
        )

    def _expression(self) -> Json:
        """Parse the expression in parentheses, on one line, which is the form of its use."""
        if "\0" in self.sql or not _is_unicode(self.sql):
            raise self.refusal(
                "contains a zero byte, or a lone surrogate (half of a UTF-16 pair): remove it"
            )
        tree, complaint = self._parse(f"({self.sql})")
        if complaint and not self._parse(f"({self.sql}\n)")[1]:
            raise self.refusal("ends with a comment: remove it")
        if complaint:
            if ")" not in self.sql:  # The parenthesis is ours, so the text ends too early.
                complaint = complaint.replace('at or near ")"', "at its end")
            raise self.refusal(f"is not one SQL expression: {complaint}{self._hint_at_quotes()}")
        return tree

    def _hint_at_quotes(self) -> str:
        """Return a remedy if the name of a column is a keyword of SQL."""
        rows = self.connection.execute(
            "SELECT lower(keyword_name) FROM duckdb_keywords() "
            "WHERE keyword_category IN ('reserved', 'type_function')"
        )
        keywords = {keyword for (keyword,) in rows.fetchall()}
        words = set(re.findall(r"\w+", self.sql.lower()))
        names = [name for name in self.schema.names if name.lower() in keywords & words]
        quoted = " and ".join(f'"{name}"' for name in names)
        return f"; write the column {quoted} in double quotes" if names else ""

    def _parse(self, expression: str) -> tuple[Json, str]:
        """Return the tree of ``expression``, or the reason why it is not exactly one expression."""
        frame, complaint = self._parse_query(expression)
        if complaint:
            return None, complaint
        selected = frame.pop("select_list")
        plain, _ = self._parse_query("true")
        plain.pop("select_list")
        if frame != plain or not isinstance(selected, list) or len(selected) != 1:
            return None, "more text follows it"
        return selected[0], ""

    def _parse_query(self, expression: str) -> tuple[dict[str, Json], str]:
        query = f"SELECT {expression} AS p FROM {ROWS}"
        try:
            rows = self.connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
            parsed: Json = without_places(json.loads(rows[0][0]))
        except duckdb.Error as error:
            return {}, told_by(error)
        match parsed:
            case {"statements": [{"node": dict() as node}]} if "select_list" in node:
                return node, ""
            case {"error_type": "parser", "error_message": str(message)}:
                return {}, message
            case _:
                return {}, "write one condition, and no statements"

    def _check_parts(self, uses: Iterable[Use]) -> None:
        for use in uses:
            if use.kind is Kind.REFUSED:
                part = _NOT_OF_ONE_ROW.get(use.name, f"DuckDB's {use.name}")
                raise self.refusal(f"contains {part}: use columns of one row and constants only")
            if use.kind is Kind.SIZE:
                raise self.refusal(
                    f"calls {use.name}(), whose result may have any length: pass it a number of "
                    "up to four digits, not an expression"
                )
            if not self.definite:
                continue
            if use.kind is Kind.COLLATION and use.name.lower() not in _DEFINITE_COLLATIONS:
                raise self.refusal(
                    f"uses the collation {use.name}, which changes with versions of DuckDB: "
                    "use NOCASE or NOACCENT"
                )
            if use.kind is Kind.AGGREGATE and use.name.lower() in ("", "reservoir_quantile"):
                raise self.refusal(
                    "aggregates a list by a random or computed aggregate: name another one"
                )

    def _columns(self, uses: Iterable[Use]) -> set[str]:
        """Return the columns that the expression reads; raise an error for an unknown name."""
        read: set[str] = set()
        for use in uses:
            first = use.path[0].lower()
            same = [name for name in self.schema.names if name.lower() == first]
            if use.kind is Kind.FUNCTION and (len(use.path) == 1 or first in _SCHEMAS):
                continue
            if use.kind not in (Kind.NAME, Kind.PARAMETER, Kind.FUNCTION):
                continue
            if len(same) > 1:
                raise self.refusal(
                    f"reads {use.path[0]!r}, and columns {' and '.join(map(repr, same))} differ "
                    "in case only: rename one"
                )
            if not same:
                self._check_other_name(use)
            read.update(same)
        return read

    def _check_other_name(self, use: Use) -> None:
        """Check a name that is not the name of a column."""
        if use.path[-1].lower() in _CALLS_WITHOUT_PARENTHESES and len(use.path) == 1:
            if self.definite:
                raise self._not_definite(use.name)
            return
        if use.kind is Kind.PARAMETER:
            return
        name = use.path[0]
        near = difflib.get_close_matches(name.lower(), map(str.lower, self.schema.names), 1)
        hint = next((n for n in self.schema.names if [n.lower()] == near), None)
        advice = (
            f"did you mean {hint!r}?"
            if hint
            else f"the columns are {', '.join(map(repr, self.schema.names)) or 'none'}"
        )
        if not hint:  # Shells remove single quotes, and double quotes are those of names.
            text = name.replace("'", "''")
            advice += f"; write a text in single quotes: '{text}'"
        raise self.refusal(f"reads {name!r}, which is not a column: {advice}")

    def _check_functions(self, uses: Iterable[Use]) -> None:
        for name in sorted({use.name.lower() for use in uses if use.kind is Kind.FUNCTION}):
            kinds = {kind for kind, _, _, _ in self._functions(name)}
            if "aggregate" in kinds:
                raise self.refusal(
                    f"calls {name}(), which aggregates many rows: use columns of one row only"
                )
            if kinds and not kinds & {"scalar", "macro"}:
                raise self.refusal(
                    f"calls {name}(), which does not return one value per row: use another function"
                )
            if self.definite and not self._is_definite(name, frozenset()):
                raise self._not_definite(name)

    def _is_definite(self, name: str, seen: frozenset[str]) -> bool:
        """Return True if each overload depends only on its arguments; follow macros."""
        if name in _NOT_DEFINITE_EITHER:
            return False
        for kind, is_consistent, parameters, definition in self._functions(name):
            if kind == "scalar" and not is_consistent:
                return False
            if kind == "macro" and (
                name in seen or not self._is_definite_macro(definition, parameters, seen | {name})
            ):
                return False
        return True

    def _is_definite_macro(
        self, definition: str, parameters: Iterable[str], seen: frozenset[str]
    ) -> bool:
        tree, complaint = self._parse(f"({definition})")
        scope = frozenset(parameter.lower() for parameter in parameters)
        return not complaint and all(
            use.kind is Kind.PARAMETER
            or (use.kind is Kind.AGGREGATE and use.name not in ("", "reservoir_quantile"))
            or (use.kind is Kind.FUNCTION and self._is_definite(use.name.lower(), seen))
            for use in uses_of(tree, scope)
        )

    def _functions(self, name: str) -> list[tuple[str, bool, list[str], str]]:
        """Return kind, consistency, parameters and definition of each overload of ``name``.

        An overload without parameters reads the clock or the session, so it is not consistent.
        """
        return self.connection.execute(
            "SELECT function_type, stability = 'CONSISTENT' OR ("
            "  stability = 'CONSISTENT_WITHIN_QUERY' AND len(parameters) > 0"
            "  AND list_has_any(list_append(parameter_types, return_type), ?)"
            "), parameters, macro_definition FROM duckdb_functions()"
            " WHERE lower(function_name) = ?",
            [list(_TYPES_WITH_ZONE), name],
        ).fetchall()

    def _check_type(self, schema: pa.Schema) -> None:
        rows = Predicate(self.sql, schema, self.what).rows(pa.Table.from_batches([], schema))
        try:
            self.connection.register(ROWS, rows)
            described = self.connection.execute(f"DESCRIBE SELECT ({self.sql}) AS p FROM {ROWS}")
            type_name = described.fetchall()[0][1]
        except duckdb.Error as error:
            raise self.refusal(f"cannot be computed: {told_by(error)}") from error
        if type_name != "BOOLEAN":
            raise self.refusal(
                f"must be a condition, but its type is {type_name}: compare it with a value"
            )

    def _not_definite(self, name: str) -> UsageError:
        return self.refusal(
            f"calls {name}, whose result does not depend on the row alone and may "
            "differ from run to run: use columns and constants only"
        )

    def refusal(self, reason: str) -> UsageError:
        return UsageError(f"{self.what} {reason}", expression=self.sql)


def _is_unicode(text: str) -> bool:
    """Return True if ``text`` can be encoded as UTF-8: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
