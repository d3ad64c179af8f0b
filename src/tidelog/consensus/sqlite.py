"""SQLite as a database of consensus: for the processes of one machine, on one of its own disks.

Each statement is flushed to the disk before it is answered. A file on a network's disk is not for
this: its locks are not reliable there.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidelog.clock import Clock
from tidelog.consensus.sql import TABLE
from tidelog.errors import CorruptionError, LocationError, Outcome

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_WAIT_S: Final = 10.0
_DAMAGED: Final = ("malformed", "not a database", "disk image")


@dataclass(slots=True, kw_only=True)
class SqliteDatabase:
    """A file. It is opened with the first statement, which makes it if there is none."""

    path: Path
    clock: Clock
    _connection: sqlite3.Connection | None = field(init=False, default=None)
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
        with self._lock:
            try:
                connection = self._open()
                return connection.execute(_PARAMETER.sub(r":\1", statement), values).fetchall()
            except sqlite3.Error as error:
                self._close()
                raise self._told(error) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # Without a level of isolation each statement is a transaction of its own.
            made = sqlite3.connect(
                self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._connection = made
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("PRAGMA synchronous = FULL")
            made.execute(TABLE.format(bytes="BLOB"))
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _told(self, error: sqlite3.Error) -> LocationError | CorruptionError:
        why = str(error)
        if any(sign in why for sign in _DAMAGED):
            return CorruptionError(
                "the consensus file is damaged, or is something else: restore it", path=self.path
            )
        return LocationError(
            "the consensus file cannot be used: see that its folder is there and can be written, "
            "that there is room, and that no other program holds it",
            outcome=Outcome.UNKNOWN,
            path=self.path,
            why=why,
        )
