"""Checked expressions and conditions on one row, and the sandbox that evaluates them.

Invariants: the ``sql`` is one expression over its ``schema``, which `expression` ensures, and that
of a predicate is boolean; rows keep their order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.core.grouping import rows_of_array
from tidelog.errors import ExpressionTooSlow, UsageError

# The limits of a sandbox, far above the need of any condition on a row. Exceeding one is an error
# of the expression. A timeout never decides about a row, since another machine may be faster.
MEMORY_MAX = "2GiB"
SECONDS_MAX = 300.0
GRACE_SECONDS = 1.0  # The wait for the end of an interrupted computation.
AT_WORK = "tidelog-condition"  # The name of the thread that evaluates a condition.
ROWS = "tidelog_rows"  # The name of the rows' table in the sandbox.
Values: TypeAlias = "pa.ChunkedArray[Any]"
IDLE_MAX = 2  # Opening a sandbox takes 30 ms; one waits for each of two reads at a time.

_IDLE: dict[int, deque[duckdb.DuckDBPyConnection]] = {}  # By the id of the process.


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression. Put ``(sql)`` into a statement, never bare ``sql``.

    Shape: ``schema`` has the columns that the expression reads, in the order of the schema that
    the check used.
    """

    sql: str
    schema: pa.Schema
    what: str

    def values_in(self, sandbox: duckdb.DuckDBPyConnection, table: pa.Table) -> Values:
        """Return the value for each row, in an open sandbox.

        Raises:
            UsageError: a column is missing or cannot be cast to its type, or the expression fails
                on a row.
            ExpressionTooSlow: the time limit is exceeded.
        """
        return self._selected(sandbox, table, f"({self.sql})")

    def _selected(
        self, sandbox: duckdb.DuckDBPyConnection, table: pa.Table, expression: str
    ) -> Values:
        rows = self.rows(table)
        sandbox.register(ROWS, rows)
        array_rows = rows_of_array(rows)
        try:
            statement = f"SELECT {expression} AS p FROM {ROWS}"
            result = self._in_time(
                sandbox, lambda: sandbox.sql(statement).to_arrow_table(array_rows)
            )
        except duckdb.Error as error:
            raise UsageError(
                f"{self.what} fails on a row: {told_by(error)}", expression=self.sql
            ) from error
        finally:
            with suppress(duckdb.Error):  # The thread may still use it: see `_in_time`.
                sandbox.unregister(ROWS)
        return result.column("p")

    def _in_time(
        self, sandbox: duckdb.DuckDBPyConnection, compute: Callable[[], pa.Table]
    ) -> pa.Table:
        """Return the result of a computation, or stop waiting for it.

        DuckDB stops only between blocks of 2,048 rows, and one block may take hours. If it does not
        stop soon, the computation continues in a daemon thread, and its result is dropped.

        Raises:
            ExpressionTooSlow: the time limit is exceeded.
        """
        future: Future[pa.Table] = Future()

        def work() -> None:
            try:
                future.set_result(compute())
            except BaseException as error:  # noqa: BLE001 - the caller's `result()` raises it.
                future.set_exception(error)

        Thread(target=work, daemon=True, name=AT_WORK).start()
        try:
            return future.result(SECONDS_MAX)
        except TimeoutError as error:
            raise ExpressionTooSlow(
                f"{self.what} takes longer than {SECONDS_MAX:g} s on some rows: simplify it",
                expression=self.sql,
            ) from error
        finally:
            if not future.done():
                sandbox.interrupt()
                wait([future], GRACE_SECONDS)

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the columns that the expression reads, cast to the types of the check.

        Raises:
            UsageError: a column is missing or cannot be cast to its type.
        """
        if not self.schema.names:
            # An expression without columns still needs the number of rows.
            return pa.table({"row": pa.nulls(table.num_rows, pa.int8())})
        try:
            # Other integer widths would overflow at other values, and select other rows.
            return table.select(self.schema.names).cast(self.schema)
        except (KeyError, pa.ArrowException) as error:
            raise UsageError(
                f"{self.what} does not fit the columns of these rows: {error}",
                expression=self.sql,
            ) from error


@dataclass(frozen=True, slots=True)
class Predicate(Expression):
    """A checked boolean expression."""

    def mask(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return True for each row on which the expression is true; null counts as false.

        Raises:
            UsageError: a column is missing or cannot be cast to its type, or the expression fails
                on a row.
            ExpressionTooSlow: the time limit is exceeded.
        """
        with open_sandbox() as connection:
            return np.asarray(self.mask_in(connection, table).to_numpy(), np.bool_)

    def mask_in(self, sandbox: duckdb.DuckDBPyConnection, table: pa.Table) -> Values:
        """Return the `mask`, in a sandbox that is already open."""
        return self._selected(sandbox, table, f"coalesce(({self.sql}), false)")

    def failing(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return True for each row on which the expression fails; there `mask` raises an error.

        Raises:
            UsageError: a column is missing or cannot be cast to its type.
        """
        # TRY turns a failure into null, so the CASE maps a null of the expression to 1.
        expression = f"TRY(CASE WHEN ({self.sql}) IS NULL THEN 1 ELSE 2 END) IS NULL"
        with open_sandbox() as connection:
            connection.register(ROWS, self.rows(table))
            statement = f"SELECT {expression} AS p FROM {ROWS}"
            result = self._in_time(connection, lambda: connection.sql(statement).to_arrow_table())
        return np.asarray(result.column("p").to_numpy(), np.bool_)


def filter_table(table: pa.Table, predicate: Predicate) -> pa.Table:
    """Keep the rows for which ``predicate`` is true, in their order.

    Raises:
        UsageError: as `Predicate.mask`.
    """
    with open_sandbox() as sandbox:
        return table.filter(predicate.mask_in(sandbox, table))


@contextmanager
def open_sandbox() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB with access to nothing but the tables registered with it.

    A sandbox whose use ends without an error waits for the next use in this process.
    """
    # A child process must not use, or even close, a database of its parent.
    idle = _IDLE.setdefault(os.getpid(), deque(maxlen=IDLE_MAX))
    try:
        connection = idle.pop()
    except IndexError:
        connection = _new_sandbox()
    try:
        yield connection
    except BaseException:
        with suppress(duckdb.Error):  # If a thread still uses it, it closes after that.
            connection.close()
        raise
    with suppress(duckdb.Error):
        connection.unregister(ROWS)
    idle.append(connection)


def _new_sandbox() -> duckdb.DuckDBPyConnection:
    # One thread keeps the order of rows, and an executor's task has one core.
    connection = duckdb.connect(
        ":memory:",
        config={"threads": 1, "enable_external_access": "false", "memory_limit": MEMORY_MAX},
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET lock_configuration = true")
    return connection


def told_by(error: BaseException) -> str:
    """Return the first line of DuckDB's message, without its class of error."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return first.partition(" Error: ")[2] or first
