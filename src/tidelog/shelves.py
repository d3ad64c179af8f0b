"""The logs of a location, plain and keyed, by name.

The engines load at their first use: a process that only reads a collection imports half as much.
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
    """The methods of a `tidelog.location.Location` for logs."""

    __slots__ = ()

    clock: Clock
    consensus: Consensus

    @property
    @abstractmethod
    def store(self) -> Store:
        """Return the store with this process's options, such as a cache."""

    @property
    @abstractmethod
    def told_url(self) -> str:
        """Return the URL by which other processes open this location."""

    @property
    def shelf(self) -> Logs:
        """Return the port that creates, opens, copies and destroys this location's logs."""
        from tidelog.wal.logs import Logs

        return Logs(store=self.store, clock=self.clock, writer=writer_name())

    async def log(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        """Open a log; ``shape`` and ``batching`` are settings for writing it.

        Raises:
            UsageError: the name is not valid.
            NoSuchLog: no log has the name.
        """
        try:
            return await self.shelf.open(name, shape=shape, batching=batching)
        except NoSuchLog as error:
            if type(error) is NoSuchLog and await self.keyed_shelf.has(name):
                raise NoSuchLog(
                    f"{name!r} is a keyed log, not a log: read it with "
                    f"'tidelog keyed scan {name}', or in Python with lake.keyed({name!r})"
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
        """Create a log, and open it; see `log`.

        Raises:
            UsageError: the name or the protocol is not valid.
            NameTaken: a log has the name.
        """
        return await self.shelf.create(name, protocol=protocol, shape=shape, batching=batching)

    async def logs(self, *, lost: bool = False) -> list[str]:
        """Return the names of all logs, sorted, destroyed ones included.

        With ``lost``, return only the logs that have records and no manifest.
        """
        return await self.shelf.names(lost=lost)

    async def fork_log(self, source: str, name: str, *, start: int = 0) -> Log:
        """Create a log that begins as a copy of another from ``start``, and shares its objects.

        Raises:
            UsageError: the source has no such position, or has the manifest protocol, or the name
                contains characters other than letters, digits and _.
            NameTaken: a log has the name, or a pin that is not a fork's.
            NoSuchLog: the source does not exist.
            PositionCollected: ``start`` was collected.
            ContentionError: other processes kept changing the source concurrently.
        """
        return await self.shelf.fork(source, name, start=start)

    async def copy_log(
        self, source: str, name: str, *, protocol: str | None = None, start: int = 0
    ) -> Log:
        """Copy a log from ``start`` into a new log of any protocol; positions stay the same.

        Hold the source with a cursor or a pin during the copy.

        Raises:
            UsageError: no such protocol or position exists; or the source has streams, which the
                manifest protocol does not support.
            NameTaken: a log has the name.
            NoSuchLog: the source does not exist.
            PositionCollected: ``start`` was collected.
        """
        return await self.shelf.copy(source, name, protocol=protocol, start=start)

    async def destroy_log(self, name: str, *, grace_us: int | None = None) -> Destroyed:
        """Close a log to all readers and writers, and delete it ``grace_us`` later.

        Units: ``grace_us``: microseconds; a minute by default.

        Raises:
            NoSuchLog: no log has the name, or its manifest is lost: rebuild it first.
            UsageError: the log has forks, or its folder contains other objects.
            ContentionError: other processes kept changing the log.
        """
        from tidelog.wal.gc.collector import GRACE_US

        grace_us = GRACE_US if grace_us is None else grace_us
        return await self.shelf.destroy(name, grace_us=grace_us)

    async def rebuild_log(self, name: str, *, start: int | None = None) -> Log:
        """Rebuild the lost manifest of a log of the slot protocol from its records.

        ``start`` is the position after which the log is complete, if its begin is not.

        Raises:
            NameTaken: a manifest exists.
            UsageError: no records of such a log exist, or none begins at ``start``.
            CorruptionError: the records do not form a log; nothing was written.
        """
        return await self.shelf.rebuild(name, start=start)

    async def adopt_log(self, url: str | os.PathLike[str], name: str) -> Log:
        """Copy a log that Chroma's wal3 wrote in another place, with its cursors.

        Raises:
            NoSuchLog: no log exists at ``url``.
            UsageError: it is not a log in wal3's form.
            NameTaken: a log has the name.
        """
        return await self.shelf.adopt(open_store(url, clock=self.clock), name)

    async def export_log(self, name: str, url: str | os.PathLike[str], *, start: int = 0) -> None:
        """Copy a log to another place in the form that Chroma's wal3 reads; see `copy_log`."""
        target = open_store(url, clock=self.clock, create=True)
        await self.shelf.export(name, target, start=start)

    @property
    def keyed_shelf(self) -> KeyedLogs:
        """Return the port that creates, opens, forks and drops this location's keyed logs."""
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
        """Create a keyed log, and open it; see `keyed`.

        Raises:
            UsageError: the name or the settings are not valid.
            NameTaken: a keyed log has the name, or a dropped one had it.
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
        """Open a keyed log, in which every key is an ordered log of its own.

        ``visibility``: ``memory`` also shows records that this handle has ordered but not yet
        stored; ``durable`` shows only stored records. ``batching`` holds settings for writing.
        While the handle writes, it compacts concurrently, unless ``upkeep`` is False.

        Raises:
            UsageError: the name or the settings are not valid.
            NoSuchLog: no keyed log has the name.
        """
        return await self.keyed_shelf.open(
            name, visibility=visibility, batching=batching, upkeep=upkeep
        )

    async def keyed_reader(
        self, name: str, *, refresh_us: int = 1_000_000, checkpoint: str | None = None
    ) -> KeyedReader:
        """Open a keyed log for reading, at its newest records or at a checkpoint.

        Units: ``refresh_us``: a read looks for new records if the last look is at least this many
            microseconds ago.

        Raises:
            NoSuchLog: no keyed log has the name.
            NoSuchCheckpoint: the keyed log has no such checkpoint.
        """
        return await self.keyed_shelf.reader(name, refresh_us=refresh_us, checkpoint=checkpoint)

    async def keyed_logs(self) -> list[str]:
        """Return the names of all keyed logs, sorted."""
        return await self.keyed_shelf.names()

    async def fork_keyed(self, source: str, name: str) -> KeyedLog:
        """Create a keyed log that begins as a copy of another, and shares its objects.

        Raises:
            UsageError: the name contains characters other than letters, digits and _.
            NameTaken: a keyed log has the name.
            NoSuchLog: the source does not exist.
            ContentionError: other processes kept changing the source concurrently.
        """
        return await self.keyed_shelf.fork(source, name)

    async def drop_keyed(self, name: str) -> None:
        """Drop a keyed log for good; its name is never reused.

        Raises:
            NoSuchLog: no keyed log has the name.
            UsageError: a fork reads its objects.
        """
        await self.keyed_shelf.drop(name)


def writer_name() -> str:
    """Return the name of this process in logs, for people: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"
