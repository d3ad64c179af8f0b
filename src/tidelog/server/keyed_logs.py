"""The keyed logs that a server has open: one handle each, for all requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.errors import Fenced, HandleError, NoSuchLog, Outcome, TidelogError
from tidelog.http_api.failures import Forbidden
from tidelog.ids import check_name
from tidelog.keyed.port import KeyedReads, KeyedWrites
from tidelog.keyed.values import DURABLE

_logger = logging.getLogger(__name__)

TRIES: Final = 3  # An append may take the log over so often.
Send = Callable[[KeyedWrites], Awaitable[int]]


class KeyedPlace(Protocol):
    """Where keyed logs lie: a location."""

    async def keyed(self, name: str, *, visibility: str) -> KeyedWrites:
        """Open a log to write and read it."""
        ...

    async def keyed_reader(self, name: str) -> KeyedReads:
        """Open a log to read it."""
        ...

    async def keyed_logs(self) -> list[str]:
        """Return the names of the logs that there are."""
        ...


@dataclass(slots=True, eq=False)
class OpenLog:
    """A handle, and the number of requests that use it."""

    handle: KeyedReads
    users: int = 0


class ServedLogs:
    """Opens each log at its first request.

    If another process takes a log over, the next append opens the log again and takes it back; a
    read takes nothing over. A follower stays with the handle that it began with.

    Reads show durable records, unless ``visibility`` says otherwise: a record may be lost before it
    is durable, and a follower that passed it would never see the record that gets its sequence.
    """

    def __init__(
        self, place: KeyedPlace, *, is_read_only: bool = False, visibility: str = DURABLE
    ) -> None:
        self._place, self._visibility = place, visibility
        self._is_read_only = is_read_only
        self._opened: dict[str, OpenLog] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._fenced: list[OpenLog] = []  # Followers still use these.

    async def names(self) -> list[str]:
        """Return the names of all logs."""
        return sorted(await self._place.keyed_logs())

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[KeyedReads]:
        """Yield the handle of a log; a handle that proves to be over is opened again next time.

        Raises:
            NoSuchLog: no log has the name. UsageError: it is not a name.
        """
        used = await self._open(name)
        used.users += 1
        try:
            yield used.handle
        except (HandleError, NoSuchLog) as error:
            if self._opened.get(name) is used:
                del self._opened[name]
                if isinstance(error, Fenced):
                    _logger.warning("another process took a keyed log over, name=%s", name)
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
                    self._opening.pop(name, None)  # A client may ask for any number of names.
                    raise
            return self._opened[name]

    async def _handle(self, name: str) -> KeyedReads:
        if self._is_read_only:
            return await self._place.keyed_reader(name)
        return await self._place.keyed(name, visibility=self._visibility)

    async def check_append(self, name: str) -> None:
        """Refuse an append before its body is read.

        Raises:
            Forbidden: the server only reads. NoSuchLog, UsageError: see `using`.
        """
        if self._is_read_only:
            raise Forbidden("this server only reads: append where the log is written")
        await self._open(name)

    async def append(self, name: str, send: Send) -> int:
        """Append by the open handle, or by a new one if another process took the log over.

        Raises:
            Fenced: another process took the log over. UNKNOWN: the records met the takeover.
            NOT_APPLIED: the other process did so at each try.
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
            "other processes keep taking the log over from this server: append by one of them, or "
            "try again",
            log=name,
        )

    async def close(self) -> None:
        """Close all handles, and write the appended records."""
        handles = [*self._opened.values(), *self._fenced]
        self._opened.clear()
        for one in handles:
            await _close(one.handle, level=logging.WARNING)


async def _close(handle: KeyedReads, *, level: int = logging.INFO) -> None:
    """Close a handle; the requests that used it have its errors already."""
    try:
        await handle.close()
    except TidelogError as error:
        _logger.log(level, "a keyed log was not closed whole, name=%s, why=%s", handle.name, error)
