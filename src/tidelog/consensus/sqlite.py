"""SQLite as the database of consensus: for the processes of one machine, on a local disk.

Each statement is flushed to disk before it returns. Do not use a file on a network disk: file locks
are not reliable there.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tidelog.consensus.connection import OneConnection, Rows
from tidelog.consensus.port import ENVIRONMENT
from tidelog.consensus.sql import TABLE
from tidelog.core.clock import Clock
from tidelog.core.temporary import temporary_files
from tidelog.errors import ConsensusGone, CorruptionError, LocationError, Outcome, TidelogError

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_WAIT_S: Final = 10.0
_READS_MAX: Final = 20
_NO_TABLE: Final = "no such table"  # The file is new, or another database.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyFile:
    """The database in a file, for reading: no statement creates or changes a file."""

    path: Path
    clock: Clock

    async def run(self, statement: str, values: dict[str, object]) -> Rows:
        return await self.clock.offload(partial(self._run, statement, values))

    async def close(self) -> None:
        """Do nothing: each statement has a connection of its own."""

    def _run(self, statement: str, values: dict[str, object]) -> Rows:
        try:
            return _read(self.path, statement, values)
        except sqlite3.Error as error:
            if _NO_TABLE in str(error):
                return []
            mapped = _error_of(self.path, error)
            assert mapped is not None
            raise mapped from error


def _read(path: Path, statement: str, values: dict[str, object]) -> Rows:
    """Return the rows of a query.

    SQLite would create files next to a database in WAL mode that no process has open. So such a
    file is read as immutable, or copied if it has a write-ahead log, and again if it has changed.
    """
    log, memory = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    for _ in range(_READS_MAX):
        if not path.exists():
            raise _gone(path)
        if log.exists() and memory.exists():
            return _query(path, "mode=ro", statement, values)
        before = _version(path), _version(log)
        try:
            rows = _read_unused(path, log, statement, values)
        except sqlite3.DatabaseError:
            if (_version(path), _version(log)) == before:
                raise
        else:
            if (_version(path), _version(log)) == before:
                return rows
    raise sqlite3.OperationalError("writers kept changing the file")


def _read_unused(path: Path, log: Path, statement: str, values: dict[str, object]) -> Rows:
    if not log.exists():
        return _query(path, "mode=ro&immutable=1", statement, values)
    with temporary_files(), TemporaryDirectory(prefix="tidelog-") as folder:
        for each in (path, log):
            shutil.copyfile(each, Path(folder, each.name))
        return _query(Path(folder, path.name), "mode=rw", statement, values)


def _query(path: Path, mode: str, statement: str, values: dict[str, object]) -> Rows:
    with closing(_opened(path, mode)) as connection:
        return _execute(connection, statement, values)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _gone(path: Path) -> ConsensusGone:
    return ConsensusGone(
        "the consensus file does not exist: restore it, or pass its path with consensus= or "
        f"{ENVIRONMENT}; no new file was created",
        path=path,
    )


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    # Without an isolation level, each statement is a transaction of its own.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=_WAIT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _connect(path: Path, *, make: bool) -> sqlite3.Connection:
    if not make and not path.exists():
        raise _gone(path)
    made = _opened(path, "mode=rwc" if make else "mode=rw")
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
    try:
        rows = connection.execute(_PARAMETER.sub(r":\1", statement), values).fetchall()
    except sqlite3.IntegrityError:
        return []  # Another process has inserted a row of it: see `tidelog.consensus.sql`.
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
