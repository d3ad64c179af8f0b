"""PostgreSQL as a database of consensus: one that is there already, and is kept and backed up.

A statement is committed to disk before it is answered (``synchronous_commit`` is set so). One
connection a process; it is made again where it broke.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.clock import Clock
from tidelog.consensus.sql import TABLE
from tidelog.errors import LocationError, Outcome, StoreRefused, UsageError

if TYPE_CHECKING:
    import psycopg

_SETTINGS: Final[dict[str, Any]] = {
    "application_name": "tidelog",
    "client_encoding": "utf8",  # Else a database without one gives text as bytes.
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "tcp_user_timeout": 30_000,
}
_REFUSED: Final = ("28", "3D", "42501")  # No such user or password, no such database, no rights.
_IN_USE: Final = ("23505", "42P07")  # Another process made the table at the same moment.


@dataclass(slots=True, kw_only=True)
class PostgresDatabase:
    """A server, and a database there. ``url`` may have a password; ``told`` has none."""

    url: str
    told: str
    clock: Clock
    _connection: psycopg.Connection[Any] | None = field(init=False, default=None)
    # Statements come from threads; one at a time has the connection.
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __del__(self) -> None:
        self._close()

    async def run(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        return await self.clock.offload(partial(self._run, statement, values))

    async def close(self) -> None:
        with self._lock:
            self._close()

    def _run(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        psycopg = _driver()
        with self._lock:
            try:
                found: list[tuple[Any, ...]]
                found = self._open().execute(statement.encode(), values).fetchall()
                return found
            except (psycopg.Error, OSError) as error:
                self._close()
                raise self._told(error) from error

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            psycopg = _driver()
            self._connection = psycopg.connect(self.url, autocommit=True, **_SETTINGS)
            self._connection.execute("SET synchronous_commit = on")
            try:
                # Not by making it if there is none: who may write to it may not make tables.
                self._connection.execute("SELECT 1 FROM tidelog_records LIMIT 0")
            except psycopg.errors.UndefinedTable:
                _make_table(self._connection)
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _told(self, error: Exception) -> LocationError:
        state = getattr(error, "sqlstate", None) or ""
        why = " ".join(str(error).split())
        refused = state.startswith(_REFUSED) or "no password supplied" in why
        if refused or "authentication failed" in why or "does not exist" in why:
            return StoreRefused(
                "PostgreSQL refuses: check the user, the database and its rights; a password goes "
                "into PGPASSWORD, a .pgpass file or TIDELOG_CONSENSUS",
                database=self.told,
                why=why,
            )
        return LocationError(
            "PostgreSQL does not answer: see that it runs, and can be reached from here",
            outcome=Outcome.UNKNOWN,
            database=self.told,
            why=why or type(error).__name__,
        )


def _make_table(connection: psycopg.Connection[Any]) -> None:
    psycopg = _driver()
    try:
        connection.execute(TABLE.format(bytes="BYTEA").encode())
    except psycopg.Error as error:
        if error.sqlstate not in _IN_USE:
            raise


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(
            "PostgreSQL is spoken by psycopg: pip install 'tidelog[postgres]'"
        ) from error
    return psycopg
