"""The keyed logs that a server has open: one handle each, for all who ask."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from tidelog.errors import Fenced, HandleError, NoSuchLog, Outcome, TidelogError
from tidelog.http_api.failures import Forbidden
from tidelog.ids import check_name
from tidelog.keyed.port import KeyedReads, KeyedWrites
from tidelog.keyed.values import DURABLE

_logger = logging.getLogger(__name__)


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


class ServedLogs:
    """Opens each log once, when it is first asked for.

    A server whose log another process took over takes no more appends for it until it is started
    again: of two servers that took over from each other in turn, neither would get anything done.
    It goes on reading, by another handle; those who follow by the old one stay with it.

    Reads show what is durable, unless ``visibility`` says otherwise: a follower whose cursor passed
    a record that was then lost would never see the one that takes its sequence.
    """

    def __init__(
        self, place: KeyedPlace, *, is_read_only: bool = False, visibility: str = DURABLE
    ) -> None:
        self._place, self._visibility = place, visibility
        self._is_read_only = is_read_only
        self._opened: dict[str, KeyedReads] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._fenced: set[str] = set()
        self._taken_over: list[KeyedReads] = []  # By which some may still follow: one a log.

    async def names(self) -> list[str]:
        """Return the names of all logs."""
        return sorted(await self._place.keyed_logs())

    async def reads(self, name: str) -> KeyedReads:
        """Return a handle that reads.

        Raises:
            NoSuchLog: there is none of that name. UsageError: it is no name.
        """
        check_name(name, of="name of a keyed log")
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._opened:
                try:
                    self._opened[name] = await self._open(name)
                except TidelogError:
                    self._opening.pop(name, None)  # Names that nobody has are not kept.
                    raise
            return self._opened[name]

    async def _open(self, name: str) -> KeyedReads:
        if self._is_read_only or name in self._fenced:
            return await self._place.keyed_reader(name)
        return await self._place.keyed(name, visibility=self._visibility)

    async def writes(self, name: str) -> KeyedWrites:
        """Return the handle that writes.

        Raises:
            Forbidden: the server only reads. Fenced: another process took the log over. Otherwise
            see `reads`.
        """
        if self._is_read_only:
            raise Forbidden("this server only reads: append where the log is written")
        found = await self.reads(name)
        if name in self._fenced:
            raise _lost(name)
        assert isinstance(found, KeyedWrites)
        return found

    async def note(self, name: str, handle: KeyedReads, error: TidelogError) -> TidelogError:
        """Let go of a handle that is over, and return what is to be told of an error."""
        if isinstance(error, HandleError | NoSuchLog) and self._opened.get(name) is handle:
            del self._opened[name]
            if isinstance(error, Fenced):
                self._taken_over.append(handle)
            else:
                await self._close(name, handle)
        if not isinstance(error, Fenced):
            return error
        if name not in self._fenced:
            _logger.warning("another process took over a keyed log, name=%s", name)
            self._fenced.add(name)
        return _lost(name, error.outcome)

    async def _close(self, name: str, handle: KeyedReads) -> None:
        try:
            await handle.close()
        except TidelogError:
            # Whoever appended by it was told already.
            _logger.info("a handle that was over could not be closed, name=%s", name)

    def check_ready(self) -> None:
        """Refuse to be called ready once a log was lost to another process.

        Raises:
            Fenced: so it is.
        """
        for name in self._fenced:
            raise _lost(name)

    async def close(self) -> None:
        """Close all handles; what was appended is answered first."""
        handles = list(self._opened.values())
        self._opened.clear()
        for handle in self._taken_over:
            await self._close(handle.name, handle)
        for handle in handles:
            try:
                await handle.close()
            except TidelogError as error:
                _logger.warning("a keyed log was not closed whole, why=%s", error)


def _lost(name: str, outcome: Outcome = Outcome.NOT_APPLIED) -> Fenced:
    return Fenced(
        "another process took over the log: append there, or start this server again to take it "
        "back",
        outcome=outcome,
        log=name,
    )
