"""PostgreSQL as the database of consensus.

A statement is committed to disk before it returns, because ``synchronous_commit`` is on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.consensus.connection import OneConnection, Rows
from tidelog.consensus.sql import TABLE
from tidelog.core.clock import Clock
from tidelog.errors import LocationError, Outcome, StoreRefused, TidelogError, UsageError

if TYPE_CHECKING:
    import psycopg

_SETTINGS: Final[dict[str, Any]] = {
    "application_name": "tidelog",
    # Without it, a database of encoding SQL_ASCII returns text as bytes.
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "tcp_user_timeout": 30_000,
}
_REFUSED: Final = ("28", "3D", "42501")  # Wrong user or password, no such database, no rights.
_REFUSED_SO: Final = ("no password supplied", "authentication failed", "does not exist")
_IN_USE: Final = ("23505", "42P07")  # Another process created the table concurrently.


def postgres_database(
    url: str, *, told: str, clock: Clock, read_only: bool = False
) -> OneConnection:
    """Return a database of a server; ``url`` may have a password, ``told`` must not."""
    return OneConnection(
        connect=partial(_connect, url, read_only=read_only),
        execute=_execute,
        told=partial(_error_of, told),
        clock=clock,
    )


def _connect(url: str, *, read_only: bool) -> psycopg.Connection[Any]:
    made: psycopg.Connection[Any] = _driver().connect(url, autocommit=True, **_SETTINGS)
    try:
        if read_only:
            made.read_only = True
            # The server then refuses each change. The attribute alone applies to no autocommit.
            made.execute("SET default_transaction_read_only = on")
        else:
            made.execute("SET synchronous_commit = on")
            _find_or_make_table(made)
    except BaseException:
        made.close()
        raise
    return made


def _find_or_make_table(connection: psycopg.Connection[Any]) -> None:
    try:
        # Not CREATE TABLE IF NOT EXISTS: a user who may write to the table may lack the right to
        # create tables.
        connection.execute("SELECT 1 FROM tidelog_records LIMIT 0")
    except _driver().errors.UndefinedTable:
        _make_table(connection)


def _make_table(connection: psycopg.Connection[Any]) -> None:
    driver = _driver()
    try:
        connection.execute(TABLE.format(bytes="BYTEA").encode())
    except driver.Error as error:
        if error.sqlstate not in _IN_USE:
            raise


def _execute(
    connection: psycopg.Connection[Any], statement: str, values: dict[str, object]
) -> Rows:
    try:
        rows: Rows = connection.execute(statement.encode(), values).fetchall()
    except _driver().errors.UndefinedTable:
        if not connection.read_only:
            raise
        return []  # Another connection creates the table before the location's first record.
    except _driver().errors.UniqueViolation:
        return []  # Another process has inserted a row of it: see `tidelog.consensus.sql`.
    return rows


def _error_of(database: str, error: Exception) -> TidelogError | None:
    if not isinstance(error, (_driver().Error, OSError)):
        return None
    state = getattr(error, "sqlstate", None) or ""
    why = " ".join(str(error).split())
    if state.startswith(_REFUSED) or any(sign in why for sign in _REFUSED_SO):
        return StoreRefused(
            "PostgreSQL refuses the connection or the statement: check the user, the database and "
            "its rights; pass a password in PGPASSWORD, a .pgpass file or TIDELOG_CONSENSUS",
            database=database,
            why=why,
        )
    return LocationError(
        "PostgreSQL does not answer: check that it runs, and that this machine can connect to it",
        outcome=Outcome.UNKNOWN,
        database=database,
        why=why or type(error).__name__,
    )


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(
            "consensus in PostgreSQL needs psycopg: pip install 'tidelog[postgres]'"
        ) from error
    return psycopg
