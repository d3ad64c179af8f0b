"""One connection to a database: made at the first statement, and again after an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tidelog.core.clock import Clock
from tidelog.errors import TidelogError

Rows = list[tuple[Any, ...]]


class Connection(Protocol):
    """The part of a driver's connection that this module uses."""

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class OneConnection:
    """A `Database` with one connection, which one thread at a time uses.

    ``told`` returns the tidelog error for an error of the driver, or None for an unknown error.
    """

    connect: Callable[[], Any]
    execute: Callable[[Any, str, dict[str, object]], Rows]
    told: Callable[[Exception], TidelogError | None]
    clock: Clock
    _connection: Connection | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __del__(self) -> None:
        self._close()

    async def run(self, statement: str, values: dict[str, object]) -> Rows:
        return await self.clock.offload(partial(self._run, statement, values))

    async def close(self) -> None:
        with self._lock:
            self._close()

    def _run(self, statement: str, values: dict[str, object]) -> Rows:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self.connect()
                return self.execute(self._connection, statement, values)
            except Exception as error:
                self._close()
                mapped = self.told(error)
                if mapped is None:
                    raise
                raise mapped from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
