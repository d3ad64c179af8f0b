"""Predicates: checked conditions on one row, and the sandbox that evaluates them.

Invariants: a predicate's ``sql`` is one boolean expression over its ``schema``, which `expression`
ensures; rows keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import ExpressionTooSlow, UsageError

# The limits of a sandbox, far above the need of any condition on a row. Exceeding one is an error
# of the expression. A timeout never decides about a row, since another machine may be faster.
MEMORY_MAX = "2GiB"
SECONDS_MAX = 300.0
GRACE_SECONDS = 1.0  # The wait for the end of an interrupted computation.
AT_WORK = "tidelog-condition"  # The name of the thread that evaluates a condition.
ROWS = "tidelog_rows"  # The name of the rows' table in the sandbox.


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked boolean expression. Put ``(sql)`` into a statement, never bare ``sql``.

    Shape: ``schema`` has the columns that the expression reads, in the order of the schema that
    the check used.
    """

    sql: str
    schema: pa.Schema
    what: str

    def mask(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return True for each row on which the expression is true; null counts as false.

        Raises:
            UsageError: a column is missing or cannot be cast to its type, or the expression fails
                on a row.
            ExpressionTooSlow: the time limit is exceeded.
        """
        with open_sandbox() as connection:
            return np.asarray(self.mask_in(connection, table).to_numpy(), np.bool_)

    def mask_in(
        self, sandbox: duckdb.DuckDBPyConnection, table: pa.Table
    ) -> pa.ChunkedArray[pa.BooleanScalar]:
        """Return the `mask`, in a sandbox that is already open: opening one takes 30 ms."""
        sandbox.register(ROWS, self.rows(table))
        try:
            statement = f"SELECT coalesce(({self.sql}), false) AS p FROM {ROWS}"
            found = self._in_time(sandbox, lambda: sandbox.sql(statement).to_arrow_table())
        except duckdb.Error as error:
            raise UsageError(
                f"{self.what} fails on a row: {told_by(error)}", expression=self.sql
            ) from error
        finally:
            with suppress(duckdb.Error):  # The thread may still use it: see `_in_time`.
                sandbox.unregister(ROWS)
        return found.column("p")

    def failing(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return True for each row on which the expression fails; there `mask` raises an error.

        Raises:
            UsageError: a column is missing or cannot be cast to its type.
        """
        # TRY turns a failure into null, so the CASE maps a null of the expression to 1.
        told = f"TRY(CASE WHEN ({self.sql}) IS NULL THEN 1 ELSE 2 END) IS NULL"
        with open_sandbox() as connection:
            connection.register(ROWS, self.rows(table))
            statement = f"SELECT {told} AS p FROM {ROWS}"
            found = self._in_time(connection, lambda: connection.sql(statement).to_arrow_table())
        return np.asarray(found.column("p").to_numpy(), np.bool_)

    def _in_time(
        self, sandbox: duckdb.DuckDBPyConnection, compute: Callable[[], pa.Table]
    ) -> pa.Table:
        """Return the result of a computation, or stop waiting for it.

        DuckDB stops only between blocks of 2,048 rows, and one block may take hours. If it does not
        stop soon, the computation continues in a daemon thread, and its result is dropped.

        Raises:
            ExpressionTooSlow: the time limit is exceeded.
        """
        found: Future[pa.Table] = Future()

        def work() -> None:
            try:
                found.set_result(compute())
            except BaseException as error:  # noqa: BLE001 - the caller's `result()` raises it.
                found.set_exception(error)

        Thread(target=work, daemon=True, name=AT_WORK).start()
        try:
            return found.result(SECONDS_MAX)
        except TimeoutError as error:
            raise ExpressionTooSlow(
                f"{self.what} takes longer than {SECONDS_MAX:g} s on some rows: simplify it",
                expression=self.sql,
            ) from error
        finally:
            if not found.done():
                sandbox.interrupt()
                wait([found], GRACE_SECONDS)

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


def filter_table(table: pa.Table, predicate: Predicate) -> pa.Table:
    """Keep the rows for which ``predicate`` is true, in their order.

    Raises:
        UsageError: as `Predicate.mask`.
    """
    with open_sandbox() as sandbox:
        return table.filter(predicate.mask_in(sandbox, table))


@contextmanager
def open_sandbox() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB with access to nothing but the tables registered with it."""
    # One thread keeps the order of rows, and an executor's task has one core.
    connection = duckdb.connect(
        ":memory:",
        config={"threads": 1, "enable_external_access": "false", "memory_limit": MEMORY_MAX},
    )
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    finally:
        with suppress(duckdb.Error):  # If a thread still uses it, it closes after that.
            connection.close()


def told_by(error: BaseException) -> str:
    """Return the first line of DuckDB's message, without its class of error."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return first.partition(" Error: ")[2] or first
