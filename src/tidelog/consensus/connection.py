"""One connection to a database, that is made when it is needed, and again where it broke."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tidelog.clock import Clock
from tidelog.errors import TidelogError

Rows = list[tuple[Any, ...]]


class Connection(Protocol):
    """What the drivers of databases call a connection."""

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class OneConnection:
    """A `Database`: statements come from threads, and one at a time has the connection.

    ``told`` returns the error that stands for one of the driver's, or None for what is none.
    """

    connect: Callable[[], Any]
    execute: Callable[[Any, str, dict[str, Any]], Rows]
    told: Callable[[Exception], TidelogError | None]
    clock: Clock
    _connection: Connection | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __del__(self) -> None:
        self._close()

    async def run(self, statement: str, values: dict[str, Any]) -> Rows:
        return await self.clock.offload(partial(self._run, statement, values))

    async def close(self) -> None:
        with self._lock:
            self._close()

    def _run(self, statement: str, values: dict[str, Any]) -> Rows:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self.connect()
                return self.execute(self._connection, statement, values)
            except Exception as error:
                self._close()
                told = self.told(error)
                if told is None:
                    raise
                raise told from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
