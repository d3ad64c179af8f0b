"""Predicates: checked conditions on one row, and the sandbox in which they are computed.

Invariants: a predicate's ``sql`` is one boolean expression over its ``schema`` (`expression` sees
to that), and rows keep their order.
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

# What a sandbox may use: far more than any condition on a row needs. Both are errors of the
# expression, and the second decides nothing about a row: another machine is quicker.
MEMORY_MAX = "2GiB"
SECONDS_MAX = 300.0
GRACE_SECONDS = 1.0  # After which a computation that was broken off is left alone.
AT_WORK = "tidelog-condition"  # The thread that computes one.
ROWS = "tidelog_rows"  # What the rows are called inside the sandbox.


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked boolean expression. Put ``(sql)`` into a statement, never bare ``sql``.

    Shape: ``schema`` holds the columns that the expression reads, in the order of the schema it
    was checked against.
    """

    sql: str
    schema: pa.Schema
    what: str

    def mask(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Say for each row whether the expression is true; null counts as false.

        Raises:
            UsageError: a column is missing or cannot be cast to its type, or the expression fails
                on a row, or takes too long (ExpressionTooSlow).
        """
        with open_sandbox() as connection:
            return np.asarray(self.mask_in(connection, table).to_numpy(), np.bool_)

    def mask_in(
        self, sandbox: duckdb.DuckDBPyConnection, table: pa.Table
    ) -> pa.ChunkedArray[pa.BooleanScalar]:
        """Do as `mask` does, in a sandbox that is open: to open one takes 30 ms."""
        sandbox.register(ROWS, self.rows(table))
        try:
            statement = f"SELECT coalesce(({self.sql}), false) AS p FROM {ROWS}"
            found = self._in_time(sandbox, lambda: sandbox.sql(statement).to_arrow_table())
        except duckdb.Error as error:
            raise UsageError(
                f"{self.what} fails on a row: {told_by(error)}", expression=self.sql
            ) from error
        finally:
            with suppress(duckdb.Error):  # It is still at work: see `_in_time`.
                sandbox.unregister(ROWS)
        return found.column("p")

    def failing(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Say for each row whether the expression fails on it, for which `mask` fails on all.

        Raises:
            UsageError: a column is missing or cannot be cast to its type.
        """
        # What is null by itself must be told from what is null since it failed.
        told = f"TRY(CASE WHEN ({self.sql}) IS NULL THEN 1 ELSE 2 END) IS NULL"
        with open_sandbox() as connection:
            connection.register(ROWS, self.rows(table))
            statement = f"SELECT {told} AS p FROM {ROWS}"
            found = self._in_time(connection, lambda: connection.sql(statement).to_arrow_table())
        return np.asarray(found.column("p").to_numpy(), np.bool_)

    def _in_time(
        self, sandbox: duckdb.DuckDBPyConnection, compute: Callable[[], pa.Table]
    ) -> pa.Table:
        """Return what is computed, or stop waiting for it.

        DuckDB ends between lots of 2,048 rows, and one may take it hours: where it does not end
        soon, a thread of its own goes on with it, for which nobody waits.

        Raises:
            ExpressionTooSlow: it took too long.
        """
        found: Future[pa.Table] = Future()

        def work() -> None:
            try:
                found.set_result(compute())
            except BaseException as error:  # noqa: BLE001 - it is raised by whoever waits.
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
        """Return what of ``table`` the expression reads, in the types it was checked for.

        Raises:
            UsageError: a column is missing or cannot be cast to its type.
        """
        if not self.schema.names:
            # Rows must be counted even where nothing of them is read.
            return pa.table({"row": pa.nulls(table.num_rows, pa.int8())})
        try:
            # Other widths would overflow elsewhere, and so choose other rows.
            return table.select(self.schema.names).cast(self.schema)
        except (KeyError, pa.ArrowException) as error:
            raise UsageError(
                f"{self.what} was checked for other columns than it is used on: {error}",
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
    """Open a DuckDB that reaches nothing but what is registered with it."""
    # One thread: rows come back in their order, and executors have one core each.
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
        with suppress(duckdb.Error):  # It is still at work, and goes when that is done.
            connection.close()


def told_by(error: BaseException) -> str:
    """Return the first line of what DuckDB says, without its class of error."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return first.partition(" Error: ")[2] or first
