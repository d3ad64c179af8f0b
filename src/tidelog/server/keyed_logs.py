"""The keyed logs that a server has opened: one handle per log, shared by all requests."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.core.ids import check_name
from tidelog.errors import Fenced, HandleError, NoSuchLog, Outcome, TidelogError
from tidelog.http.api.failures import Forbidden
from tidelog.keyed.port import KeyedReads, KeyedWrites
from tidelog.keyed.values import DURABLE

_logger = logging.getLogger(__name__)

TRIES: Final = 3  # An append opens the log at most this often.
Send = Callable[[KeyedWrites], Awaitable[int]]


class KeyedPlace(Protocol):
    """The keyed logs of a location."""

    async def open(self, name: str, *, visibility: str) -> KeyedWrites:
        """Open a log to write and read it."""
        ...

    async def reader(self, name: str) -> KeyedReads:
        """Open a log to read it."""
        ...

    async def list(self) -> builtins.list[str]:
        """Return the names of the logs."""
        ...


@dataclass(slots=True, eq=False)
class OpenLog:
    """A handle, and the number of requests that use it."""

    handle: KeyedReads
    users: int = 0


class ServedLogs:
    """The open logs; each is opened at its first request.

    If another process fences this server's handle, the next append opens the log again, and so
    fences the other process. A read fences nothing. A follower keeps the handle it began with.

    Reads show durable records by default. A record that is not durable may be lost, and another
    record then gets its sequence. A follower that passed the lost one would never see the other.
    """

    def __init__(
        self, place: KeyedPlace, *, is_read_only: bool = False, visibility: str = DURABLE
    ) -> None:
        self._place, self._visibility = place, visibility
        self._is_read_only = is_read_only
        self._opened: dict[str, OpenLog] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._fenced: list[OpenLog] = []  # Fenced handles that followers still use.

    async def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        return sorted(await self._place.list())

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[KeyedReads]:
        """Yield the handle of a log; after a fatal error, the next request opens a new one.

        Raises:
            NoSuchLog: no log has the name.
            UsageError: the name is not valid.
        """
        used = await self._open(name)
        used.users += 1
        try:
            yield used.handle
        except (HandleError, NoSuchLog) as error:
            if self._opened.get(name) is used:
                del self._opened[name]
                if isinstance(error, Fenced):
                    _logger.warning("another process opened and fenced a keyed log, name=%s", name)
                    self._fenced.append(used)
                else:
                    await _close(used.handle)
            raise
        finally:
            used.users -= 1
            if not used.users and used in self._fenced:
                self._fenced.remove(used)
                await _close(used.handle)

    async def _open(self, name: str) -> OpenLog:
        check_name(name, of="name of a keyed log")
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._opened:
                try:
                    self._opened[name] = OpenLog(await self._handle(name))
                except TidelogError:
                    self._opening.pop(name, None)  # Clients may send any number of wrong names.
                    raise
            return self._opened[name]

    async def _handle(self, name: str) -> KeyedReads:
        if self._is_read_only:
            return await self._place.reader(name)
        return await self._place.open(name, visibility=self._visibility)

    async def check_append(self, name: str) -> None:
        """Check, before the body of an append is read, that the log accepts it.

        Raises:
            Forbidden: the server is read-only.
            NoSuchLog, UsageError: see `using`.
        """
        if self._is_read_only:
            raise Forbidden("this server is read-only: append on a server that writes the log")
        await self._open(name)

    async def append(self, name: str, send: Send) -> int:
        """Append with the open handle, or with a new one if another process fenced it.

        Raises:
            Fenced: another process opened the log. UNKNOWN if the records may be in the log;
                NOT_APPLIED if that happened before each try.
        """
        for _ in range(TRIES):
            try:
                async with self.using(name) as log:
                    assert isinstance(log, KeyedWrites)
                    return await send(log)
            except Fenced as error:
                if error.outcome is not Outcome.NOT_APPLIED:
                    raise
        raise Fenced(
            "other processes keep opening the log and fencing this server: append by one of them, "
            "or try again",
            log=name,
        )

    async def close(self) -> None:
        """Write the appended records, and close all handles."""
        handles = [*self._opened.values(), *self._fenced]
        self._opened.clear()
        for served in handles:
            await _close(served.handle, level=logging.WARNING)


async def _close(handle: KeyedReads, *, level: int = logging.INFO) -> None:
    """Close a handle; an error is only logged, as its requests have received it already."""
    try:
        await handle.close()
    except TidelogError as error:
        _logger.log(level, "closing a keyed log failed, name=%s, why=%s", handle.name, error)
