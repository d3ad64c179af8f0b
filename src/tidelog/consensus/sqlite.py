"""SQLite as the database of consensus: for the processes of one machine, on a local disk.

Each statement is flushed to disk before it returns. Do not use a file on a network disk: file locks
are not reliable there.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from tidelog.consensus.connection import OneConnection, Rows
from tidelog.consensus.port import ENVIRONMENT
from tidelog.consensus.sql import TABLE
from tidelog.core.clock import Clock
from tidelog.errors import ConsensusGone, CorruptionError, LocationError, Outcome, TidelogError

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_WAIT_S: Final = 10.0
_DAMAGED: Final = ("malformed", "not a database", "disk image")


def sqlite_database(path: Path, *, clock: Clock, make: bool = True) -> OneConnection:
    """Return the database in a file; the first statement creates it if it does not exist.

    With ``make`` false, a missing file raises `ConsensusGone` instead.
    """
    return OneConnection(
        connect=partial(_connect, path, make=make),
        execute=_execute,
        told=partial(_error_of, path),
        clock=clock,
    )


def _connect(path: Path, *, make: bool) -> sqlite3.Connection:
    if not make and not path.exists():
        raise ConsensusGone(
            "the consensus file does not exist: restore it, or pass its path with consensus= or "
            f"{ENVIRONMENT}; no new file was created",
            path=path,
        )
    mode = "rwc" if make else "rw"
    # Without an isolation level, each statement is a transaction of its own.
    made = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_WAIT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = FULL")
        made.execute("PRAGMA secure_delete = ON")
        made.execute(TABLE.format(bytes="BLOB"))
    except BaseException:
        made.close()
        raise
    return made


def _execute(connection: sqlite3.Connection, statement: str, values: dict[str, object]) -> Rows:
    rows = connection.execute(_PARAMETER.sub(r":\1", statement), values).fetchall()
    if rows and statement.startswith("DELETE"):
        _empty_wal(connection)
    return rows


def _empty_wal(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log, which has the deleted rows, unless another process uses it."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(1_000 * _WAIT_S)}")


def _error_of(path: Path, error: Exception) -> TidelogError | None:
    if not isinstance(error, sqlite3.Error):
        return None
    why = str(error)
    if any(sign in why for sign in _DAMAGED):
        return CorruptionError(
            "the consensus file is damaged, or is not a SQLite database: restore it", path=path
        )
    return LocationError(
        "the consensus file cannot be used: check that its folder exists and is writable, that "
        "the disk has space, and that no other program locks the file",
        outcome=Outcome.UNKNOWN,
        path=path,
        why=why,
    )
