"""The asynchronous API: the names of `tidelog`, for programs that run an event loop."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidelog.location import Location, open_location

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.collection.collection import Collection
    from tidelog.collection.collections import Collections
    from tidelog.collection.formats.csv.guess import CsvOptions
    from tidelog.collection.reading import CollectionDescription, Contents
    from tidelog.collection.rendition_spec import RenditionSpec
    from tidelog.collection.renditions import RenditionChange, RenditionFacts, Renditions
    from tidelog.collection.sources import Sources
    from tidelog.collection.spec_types import SourceSpec
    from tidelog.collection.table.history import TableCommit
    from tidelog.collection.table_handle import Table
    from tidelog.collection.tables import Tables
    from tidelog.collection.transaction import TableTransaction
    from tidelog.core.clock import Clock
    from tidelog.keyed.log import KeyedLog
    from tidelog.keyed.logs import KeyedLogs
    from tidelog.keyed.reader import KeyedReader
    from tidelog.keyed.values import Keys, Retention, Sealing
    from tidelog.persist.format.codec import (
        Moments,
        RecordCodec,
        RecordUpdate,
        decode_contents,
        decode_updates,
        encode_updates,
    )
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.read.splits import Split
    from tidelog.persist.shards import Shards
    from tidelog.persist.transactions.transactions import Transactions
    from tidelog.store.port import Store
    from tidelog.wal.append.batching import Batching
    from tidelog.wal.gc.cursors import Witness
    from tidelog.wal.gc.deletion import Pace
    from tidelog.wal.gc.plan import Keep
    from tidelog.wal.log import Log
    from tidelog.wal.logs import Logs
    from tidelog.wal.read.limits import Limits
    from tidelog.wal.slot_protocol.shape import Shape

__all__ = [
    "Batching",
    "Collection",
    "CollectionDescription",
    "Collections",
    "Contents",
    "CsvOptions",
    "Keep",
    "KeyedLog",
    "KeyedLogs",
    "KeyedReader",
    "Keys",
    "Limits",
    "Location",
    "Log",
    "Logs",
    "Moments",
    "Pace",
    "RecordCodec",
    "RecordUpdate",
    "RenditionChange",
    "RenditionFacts",
    "RenditionSpec",
    "Renditions",
    "Retention",
    "Sealing",
    "Shape",
    "Shard",
    "Shards",
    "SourceSpec",
    "Sources",
    "Split",
    "Table",
    "TableCommit",
    "TableTransaction",
    "Tables",
    "Transactions",
    "Witness",
    "connect",
    "decode_contents",
    "decode_updates",
    "encode_updates",
    "read_split",
]

_AWAITED = {
    "Collection": "tidelog.collection.collection",
    "Collections": "tidelog.collection.collections",
    "Contents": "tidelog.collection.reading",
    "KeyedLog": "tidelog.keyed.log",
    "KeyedLogs": "tidelog.keyed.logs",
    "KeyedReader": "tidelog.keyed.reader",
    "Log": "tidelog.wal.log",
    "Logs": "tidelog.wal.logs",
    "Renditions": "tidelog.collection.renditions",
    "Shard": "tidelog.persist.handle.shard",
    "Shards": "tidelog.persist.shards",
    "Sources": "tidelog.collection.sources",
    "Table": "tidelog.collection.table_handle",
    "TableCommit": "tidelog.collection.table.history",
    "TableTransaction": "tidelog.collection.transaction",
    "Tables": "tidelog.collection.tables",
    "Transactions": "tidelog.persist.transactions.transactions",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    # The imports are lazy: a program that only connects starts without Arrow and DuckDB.
    if name not in __all__:
        raise AttributeError(f"module 'tidelog.aio' has no attribute {name!r}")
    if name in _AWAITED:
        return getattr(importlib.import_module(_AWAITED[name]), name)
    return getattr(importlib.import_module("tidelog"), name)


async def read_split(split: Split, lake: Location) -> pa.Table:
    """Return the updates of one split of a shard's snapshot. Any process may read any split.

    Shape: columns, ``_time`` and ``_diff``; each time is the snapshot's. All splits add up to the
        snapshot: an update of one split may retract an update of another.

    Raises:
        PartMissing: a merge replaced a part, and the collector deleted it. Take the splits from
            the snapshot of a lease.
        CorruptionError: the bytes of a part are wrong.
        LocationError: the store failed.
    """
    from tidelog.persist.read import splits

    return await splits.read_split(split, store=lake.store, clock=lake.clock)


class connect:  # noqa: N801  A caller awaits it like a function, so it is named like one.
    """Connect to the location at a URL or a path; see `tidelog.location.open_location`.

    ``lake = await connect(url)``, or ``async with connect(url) as lake``. A location keeps no
    connection open. The logs that it opens have a ``close`` of their own.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        create: bool = False,
        consensus: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        hedge: bool | None = None,
        read_only: bool | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
    ) -> None:
        self._work = open_location(
            url,
            create=create,
            consensus=consensus,
            cache=cache,
            hedge=hedge,
            read_only=read_only,
            clock=clock,
            store=store,
        )

    def __await__(self) -> Generator[Any, None, Location]:
        return self._work.__await__()

    async def __aenter__(self) -> Location:
        return await self._work

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
