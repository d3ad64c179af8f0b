"""The logs of one store, each in a folder of its own, by name.

Source: wal3, "Copy" and "Destroy"; design page 3, "Manifest tree, setsum, cursors, collection".
"""

from __future__ import annotations

import builtins
import os
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.core.arguments import check_kind, check_whole
from tidelog.core.clock import Clock, run_all
from tidelog.core.ids import check_name
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import (
    NoSuchLog,
    UsageError,
)
from tidelog.store.keys import Within
from tidelog.store.listing import first_entry, folders_below
from tidelog.store.port import Store
from tidelog.store.urls import store_at
from tidelog.store.wrappers.read_only import refuses_writes
from tidelog.wal.admin.copy import copy_log
from tidelog.wal.admin.destroy import DropReport, destroy_log
from tidelog.wal.admin.fork import Fork
from tidelog.wal.admin.rebuild import rebuild_log
from tidelog.wal.admin.transcribe import Transcriber
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.cursor import check_length
from tidelog.wal.format.fragment import FRAGMENTS
from tidelog.wal.format.link import EPOCHS
from tidelog.wal.format.streams import Streams
from tidelog.wal.gc.collector import GRACE_US
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.log import Log
from tidelog.wal.manifest_log import ManifestLog
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.opening import check_protocol, create_log, log_missing, open_log
from tidelog.wal.read.bounds import check_range
from tidelog.wal.read.head import has_manifest, load_head, refuse_slots
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.stream_history import streams_at

LOGS: Final = "log/"


@refuses_writes()
@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """All logs below ``log/`` of a store. ``writer`` is a name for people."""

    store: Store
    clock: Clock
    writer: str

    async def open(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        """Open a log; ``shape`` and ``batching`` are settings for writing it.

        Raises:
            UsageError: the name is invalid.
            NoSuchLog: the log does not exist.
        """
        folder = self.within(name)
        _check_settings(shape, batching)
        return await open_log(
            folder,
            name=name,
            clock=self.clock,
            writer=self.writer,
            shape=shape,
            batching=batching,
        )

    async def create(
        self,
        name: str,
        *,
        protocol: str = "slot",
        shape: Shape | None = None,
        batching: Batching | None = None,
    ) -> Log:
        """Create a log, and open it; see `open`.

        Raises:
            UsageError: the name or the protocol is invalid.
            NameTaken: the log exists.
        """
        folder = self.within(name)
        _check_settings(shape, batching)
        return await create_log(
            folder,
            name=name,
            clock=self.clock,
            writer=self.writer,
            protocol=protocol,
            shape=shape,
            batching=batching,
        )

    async def list(self, *, lost: bool = False) -> builtins.list[str]:
        """Return the names of all logs in order, including destroyed ones.

        With ``lost``, return only logs that have records but no manifest; see `found`.
        """
        return [name for name, is_whole in (await self.found()).items() if is_whole != lost]

    async def found(self) -> dict[str, bool]:
        """Return the names of all logs in order, each with True if it has a manifest.

        A log without a manifest has records. Its manifest was lost, or a copy or a destruction of
        the log did not finish. The logs are checked concurrently.
        """
        names = sorted(await folders_below(self.store, LOGS))
        looks = [partial(self._is_whole, name) for name in names]
        found = zip(names, await run_all(looks, at_once=AT_ONCE_MAX), strict=True)
        return {name: is_whole for name, is_whole in found if is_whole is not None}

    async def _is_whole(self, name: str) -> bool | None:
        """Return True if a folder has a log's manifest, False if only records, None if neither."""
        folder = Within(self.store, f"{LOGS}{name}")
        if await has_manifest(folder):
            return True
        has_records = await first_entry(folder, EPOCHS) or await first_entry(folder, FRAGMENTS)
        return False if has_records else None

    async def fork(self, source: str, name: str, *, start: int = 0) -> Log:
        """Create a log that shares the objects of another one from ``start`` on.

        Raises:
            NoSuchLog: the source does not exist.
            Otherwise see `Fork.make`.
        """
        log_folder(name)
        check_range(start)
        within = self.within(source)
        fork = Fork(store=within, source=source, name=name, clock=self.clock, writer=self.writer)
        try:
            await fork.make(start=start)
        except NoSuchLog as error:
            raise await _told_by_name(within, source, error) from error
        return await self.open(name)

    async def copy(
        self, source: str, name: str, *, protocol: str | None = None, start: int = 0
    ) -> Log:
        """Copy a log from ``start`` on to a new one, of the same protocol or another.

        Positions stay the same. A cursor or a pin should hold the source during the copy.

        Raises:
            UsageError: the protocol is unknown, there is no such position yet, or the source has
            streams or keys, which wal3's form lacks.
            NameTaken: a log has the name.
            NoSuchLog: the source does not exist.
            PositionCollected: ``start`` was collected, before or during the copy.
            CorruptionError: the source is damaged.
            LocationError: the store failed; copy again.
        """
        target = self.within(name)
        log = await self.open(source)
        await self._copy_to(log, target, protocol or log.protocol, start)
        return await self.open(name)

    async def export(
        self, name: str, target: Store | str | os.PathLike[str], *, start: int = 0
    ) -> None:
        """Copy a log to another place (a store, URL or path) in wal3's form; see `copy`."""
        place = store_at(target, clock=self.clock, create=True)
        await self._copy_to(await self.open(name), place, "manifest", start)

    async def adopt(self, source: Store | str | os.PathLike[str], name: str) -> Log:
        """Copy a log that Chroma's wal3 wrote to another place, and its cursors.

        ``source`` is a store, URL or path, with the log at its root.

        Raises:
            NoSuchLog: the log does not exist.
            UsageError: the log is not in wal3's form, or a cursor's name is too long.
            CorruptionError: a cursor or the log cannot be read.
            Otherwise see `copy`.
        """
        target, place = self.within(name), store_at(source, clock=self.clock)
        refuse_slots((await load_head(place)).manifest)
        cursors = Cursors(store=place, clock=self.clock, writer=self.writer)
        theirs = (await cursors.list()).cursors
        for cursor in theirs:
            check_length(cursor, of="cursor")
        await copy_log(Wal3Reader(store=place, clock=self.clock), target, cursors=theirs)
        return await self.open(name)

    async def drop(self, name: str, *, grace_us: int = GRACE_US) -> DropReport:
        """Drop a log permanently, ``grace_us`` after it was closed to all readers and writers.

        Units:
            grace_us: microseconds before the deletion, for running readers.

        Raises:
            NoSuchLog: the log does not exist; or it has slots but no manifest: rebuild it first.
            UsageError: it has forks; or there are foreign objects in the folder of a log in wal3's
            form.
            ContentionError: other processes were first at every try.
            LocationError: the store failed: drop it again.
        """
        check_whole(grace_us, "grace_us")
        folder = self.within(name)
        try:
            return await destroy_log(
                folder, clock=self.clock, writer=self.writer, grace_us=grace_us
            )
        except NoSuchLog as error:
            raise await _told_by_name(folder, name, error) from error

    async def rebuild(self, name: str, *, start: int | None = None) -> Log:
        """Restore the lost manifest of a log; see `rebuild_log`."""
        if start is not None:
            check_range(start)
        await rebuild_log(self.within(name), clock=self.clock, writer=self.writer, start=start)
        return await self.open(name)

    async def _copy_to(self, log: Log, target: Store, protocol: str, start: int) -> None:
        check_protocol(protocol)
        check_range(start)
        bounds = await log.bounds()
        if start > bounds.next:
            raise UsageError(
                "the log has no such position yet: start at a position before its end",
                start=start,
                next=bounds.next,
            )
        if isinstance(log, ManifestLog) and protocol == "manifest":
            await copy_log(Wal3Reader(store=log.store, clock=self.clock), target, start=start)
            return
        begin = start or bounds.oldest
        scribe = Transcriber(target=target, clock=self.clock, writer=self.writer)
        async with aclosing(log.scan(begin, limit=bounds.next, control=True)) as records:
            if protocol == "manifest":
                await scribe.to_wal3(records, start=begin)
                return
            streams = Streams()
            if isinstance(log, SlotLog):
                streams = await streams_at(SlotReader(store=log.store, clock=self.clock), begin)
            await scribe.to_slots(records, start=begin, streams=streams)

    def within(self, name: str) -> Within:
        """Return the folder of a log's name, whether the log exists or not.

        Raises:
            UsageError: the name is invalid.
        """
        return Within(self.store, log_folder(name))


async def _told_by_name(folder: Within, name: str, error: NoSuchLog) -> NoSuchLog:
    """Return the error of a missing log, with its name and the remedy.

    Raises:
        LocationError: the store failed.
    """
    return error if await has_manifest(folder) else await log_missing(folder, name)


def _check_settings(shape: Shape | None, batching: Batching | None) -> None:
    """Refuse invalid settings for writing.

    Raises:
        UsageError: a setting has the wrong type.
    """
    if shape is not None:
        check_kind(shape, Shape, "shape must be a tidelog.Shape")
    if batching is not None:
        check_kind(batching, Batching, "batching must be a tidelog.Batching")


def log_folder(name: str) -> str:
    """Return the folder of a log's name.

    Raises:
        UsageError: the name is invalid.
    """
    return LOGS + check_name(name, of="name of a log")
