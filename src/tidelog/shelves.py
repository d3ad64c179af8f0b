"""The logs of a location, plain and keyed, by name.

What they need is loaded when one is used: to read a collection, half as much has to be there.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tidelog.clock import Clock
from tidelog.consensus.port import Consensus
from tidelog.errors import NoSuchLog
from tidelog.store.port import Store
from tidelog.store.urls import open_store

if TYPE_CHECKING:
    from tidelog.keyed.log import KeyedLog
    from tidelog.keyed.logs import KeyedLogs
    from tidelog.keyed.reader import KeyedReader
    from tidelog.keyed.values import Retention, Sealing
    from tidelog.wal.admin.destroy import Destroyed
    from tidelog.wal.append.batching import Batching
    from tidelog.wal.log import Log
    from tidelog.wal.logs import Logs
    from tidelog.wal.slot_protocol.shape import Shape


class Shelves(ABC):
    """The part of a `tidelog.location.Location` that is about logs."""

    __slots__ = ()

    clock: Clock
    consensus: Consensus

    @property
    @abstractmethod
    def store(self) -> Store:
        """Return the store as this process uses it."""

    @property
    @abstractmethod
    def told_url(self) -> str:
        """Return the URL by which other processes open this location."""

    @property
    def shelf(self) -> Logs:
        """Return the logs of this location, to be made, copied or destroyed."""
        from tidelog.wal.logs import Logs

        return Logs(store=self.store, clock=self.clock, writer=writer_name())

    async def log(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        """Open a log; ``shape`` and ``batching`` are how it is written, if it is.

        Raises:
            UsageError: the name will not do. NoSuchLog: there is none of that name.
        """
        try:
            return await self.shelf.open(name, shape=shape, batching=batching)
        except NoSuchLog as error:
            if type(error) is NoSuchLog and await self.keyed_shelf.has(name):
                raise NoSuchLog(
                    f"{name!r} is a keyed log, not a log: 'tidelog keyed scan {name}' reads it, "
                    f"and in Python lake.keyed({name!r})"
                ) from None
            raise

    async def create_log(
        self,
        name: str,
        *,
        protocol: str = "slot",
        shape: Shape | None = None,
        batching: Batching | None = None,
    ) -> Log:
        """Make a log, and open it; see `log`.

        Raises:
            UsageError: the name or the protocol will not do. NameTaken: there is one already.
        """
        return await self.shelf.create(name, protocol=protocol, shape=shape, batching=batching)

    async def logs(self, *, lost: bool = False) -> list[str]:
        """Return the names of all logs, in order, also of such as were destroyed.

        ``lost`` asks for those alone that have records and no manifest.
        """
        return await self.shelf.names(lost=lost)

    async def fork_log(self, source: str, name: str, *, start: int = 0) -> Log:
        """Make a log that begins as another, from ``start`` on, and shares what it has stored.

        Raises:
            UsageError: the source has no such position, or is of the manifest protocol, or the name
            is not of letters, digits and _. NameTaken: there is such a log, or a pin of the name
            that no fork made. NoSuchLog: there is no source. PositionCollected: ``start`` was
            collected. ContentionError: others changed the source meanwhile.
        """
        return await self.shelf.fork(source, name, start=start)

    async def copy_log(
        self, source: str, name: str, *, protocol: str | None = None, start: int = 0
    ) -> Log:
        """Copy a log, from ``start`` on, to one of its own protocol or another; positions stay.

        Hold the source meanwhile, by a cursor or a pin.

        Raises:
            UsageError: there is no such protocol, or no such position yet; or the source has
            streams, which the manifest protocol has not. NameTaken: there is a log of the name.
            NoSuchLog: there is no source. PositionCollected: ``start`` was collected.
        """
        return await self.shelf.copy(source, name, protocol=protocol, start=start)

    async def destroy_log(self, name: str, *, grace_us: int | None = None) -> Destroyed:
        """Destroy a log, ``grace_us`` microseconds after it was closed to all readers and writers.

        Units: ``grace_us`` is a minute unless told.

        Raises:
            NoSuchLog: there is none, or its manifest is lost: rebuild it first. UsageError: it has
            forks, or there are other objects beside it. ContentionError: others were first each
            time.
        """
        from tidelog.wal.gc.collector import GRACE_US

        grace_us = GRACE_US if grace_us is None else grace_us
        return await self.shelf.destroy(name, grace_us=grace_us)

    async def rebuild_log(self, name: str, *, start: int | None = None) -> Log:
        """Make the lost manifest of a log of the slot protocol again, from its records.

        ``start`` is a position from which on the log is known to be whole, if it is not all.

        Raises:
            NameTaken: there is a manifest. UsageError: there are no records of such a log, or none
            begins at ``start``. CorruptionError: they do not make a log; nothing was written.
        """
        return await self.shelf.rebuild(name, start=start)

    async def adopt_log(self, url: str | os.PathLike[str], name: str) -> Log:
        """Copy a log that Chroma's wal3 wrote somewhere else, and its cursors.

        Raises:
            NoSuchLog: there is none. UsageError: it is no log in wal3's form. NameTaken: there is a
            log of the name.
        """
        return await self.shelf.adopt(open_store(url, clock=self.clock), name)

    async def export_log(self, name: str, url: str | os.PathLike[str], *, start: int = 0) -> None:
        """Copy a log to another place as Chroma's wal3 reads it; see `copy_log`."""
        target = open_store(url, clock=self.clock, create=True)
        await self.shelf.export(name, target, start=start)

    @property
    def keyed_shelf(self) -> KeyedLogs:
        """Return the keyed logs of this location."""
        from tidelog.keyed.logs import KeyedLogs

        return KeyedLogs(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            writer=writer_name(),
            location_url=self.told_url,
        )

    async def create_keyed(
        self, name: str, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> KeyedLog:
        """Make a keyed log, and open it; see `keyed`.

        Raises:
            UsageError: the name or the settings will not do. NameTaken: there is one already, or
            was.
        """
        return await self.keyed_shelf.create(name, sealing=sealing, retention=retention)

    async def keyed(
        self,
        name: str,
        *,
        visibility: str = "memory",
        batching: Batching | None = None,
        upkeep: bool = True,
    ) -> KeyedLog:
        """Open a keyed log, in which every key is its own ordered log.

        ``visibility`` says whether this handle's reads show what it has only ordered (``memory``),
        or what is ``durable``; ``batching`` is how it is written, if it is. While it writes, it
        compacts beside, unless ``upkeep`` is False.

        Raises:
            UsageError: the name or the settings will not do. NoSuchLog: there is none.
        """
        return await self.keyed_shelf.open(
            name, visibility=visibility, batching=batching, upkeep=upkeep
        )

    async def keyed_reader(
        self, name: str, *, refresh_us: int = 1_000_000, checkpoint: str | None = None
    ) -> KeyedReader:
        """Open a keyed log to be read: as it goes on, or as it was at a checkpoint.

        Units: it looks what is new when it is asked ``refresh_us`` microseconds after the last
            time, or later.

        Raises:
            NoSuchLog: there is none. NoSuchCheckpoint: it has no such checkpoint.
        """
        return await self.keyed_shelf.reader(name, refresh_us=refresh_us, checkpoint=checkpoint)

    async def keyed_logs(self) -> list[str]:
        """Return the names of all keyed logs, in order."""
        return await self.keyed_shelf.names()

    async def fork_keyed(self, source: str, name: str) -> KeyedLog:
        """Make a keyed log that begins as another is now, and shares what it has stored.

        Raises:
            UsageError: the name is not of letters, digits and _. NameTaken: there is such a log.
            NoSuchLog: there is no source. ContentionError: others changed the source meanwhile.
        """
        return await self.keyed_shelf.fork(source, name)

    async def drop_keyed(self, name: str) -> None:
        """Drop a keyed log, for good; its name stays taken.

        Raises:
            NoSuchLog: there is none. UsageError: forks read what it has stored.
        """
        await self.keyed_shelf.drop(name)


def writer_name() -> str:
    """Return what people see of this process in what it writes to logs."""
    return f"{socket.gethostname()}:{os.getpid()}"
