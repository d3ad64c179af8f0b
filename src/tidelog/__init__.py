"""Durable logs and definite time-varying collections on plain object storage.

``import tidelog`` is synchronous; `tidelog.aio` has the same names as coroutines.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.blocking.collections import (
        Collection,
        Collections,
        Contents,
        Table,
        Tables,
        TableTransaction,
    )
    from tidelog.blocking.connection import connect, read_split
    from tidelog.blocking.keyed import KeyedLog, KeyedLogs, KeyedReader
    from tidelog.blocking.location import Location
    from tidelog.blocking.logs import Log, Logs
    from tidelog.blocking.shards import Shard, Shards, Transactions
    from tidelog.blocking.sources import Renditions, Sources
    from tidelog.collection.formats.csv.guess import CsvOptions
    from tidelog.collection.reading import CollectionDescription
    from tidelog.collection.rendition_spec import RenditionSpec
    from tidelog.collection.renditions import RenditionChange, RenditionFacts
    from tidelog.collection.spec_types import SourceSpec
    from tidelog.collection.table.history import TableCommit
    from tidelog.keyed.values import Keys, Retention, Sealing
    from tidelog.persist.format.codec import (
        Moments,
        RecordCodec,
        RecordUpdate,
        decode_contents,
        decode_updates,
        encode_updates,
    )
    from tidelog.persist.read.splits import Split
    from tidelog.persist.states.transition import Verdict
    from tidelog.wal.append.batching import Batching
    from tidelog.wal.gc.cursors import Witness
    from tidelog.wal.gc.deletion import Pace
    from tidelog.wal.gc.plan import Keep
    from tidelog.wal.read.limits import Limits
    from tidelog.wal.slot_protocol.shape import Shape

__version__ = "0.1.0"
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
    "Verdict",
    "Witness",
    "connect",
    "decode_contents",
    "decode_updates",
    "encode_updates",
    "read_split",
]

_HOMES = {
    "Collection": "tidelog.blocking.collections",
    "Collections": "tidelog.blocking.collections",
    "CollectionDescription": "tidelog.collection.reading",
    "Contents": "tidelog.blocking.collections",
    "KeyedLogs": "tidelog.blocking.keyed",
    "Location": "tidelog.blocking.location",
    "Logs": "tidelog.blocking.logs",
    "Shards": "tidelog.blocking.shards",
    "RenditionChange": "tidelog.collection.renditions",
    "RenditionFacts": "tidelog.collection.renditions",
    "RenditionSpec": "tidelog.collection.rendition_spec",
    "Renditions": "tidelog.blocking.sources",
    "Sources": "tidelog.blocking.sources",
    "Table": "tidelog.blocking.collections",
    "TableCommit": "tidelog.collection.table.history",
    "TableTransaction": "tidelog.blocking.collections",
    "Tables": "tidelog.blocking.collections",
    "CsvOptions": "tidelog.collection.formats.csv.guess",
    "Log": "tidelog.blocking.logs",
    "Shard": "tidelog.blocking.shards",
    "Transactions": "tidelog.blocking.shards",
    "Verdict": "tidelog.persist.states.transition",
    "SourceSpec": "tidelog.collection.spec_types",
    "Batching": "tidelog.wal.append.batching",
    "Keep": "tidelog.wal.gc.plan",
    "KeyedLog": "tidelog.blocking.keyed",
    "KeyedReader": "tidelog.blocking.keyed",
    "Keys": "tidelog.keyed.values",
    "Retention": "tidelog.keyed.values",
    "Sealing": "tidelog.keyed.values",
    "Limits": "tidelog.wal.read.limits",
    "Pace": "tidelog.wal.gc.deletion",
    "RecordCodec": "tidelog.persist.format.codec",
    "RecordUpdate": "tidelog.persist.format.codec",
    "Moments": "tidelog.persist.format.codec",
    "encode_updates": "tidelog.persist.format.codec",
    "decode_updates": "tidelog.persist.format.codec",
    "decode_contents": "tidelog.persist.format.codec",
    "Shape": "tidelog.wal.slot_protocol.shape",
    "Witness": "tidelog.wal.gc.cursors",
    "connect": "tidelog.blocking.connection",
    "read_split": "tidelog.blocking.connection",
    "Split": "tidelog.persist.read.splits",
}

_MODULES = {
    "aio": "tidelog.aio",
    "errors": "tidelog.errors",
    "metrics": "tidelog.core.metrics",
    "spark": "tidelog.spark",
}


def __dir__() -> list[str]:
    # This includes the names that are loaded at their first use. It leaves out spark, which is
    # loaded in the same way, because tools that read each name fail without PySpark.
    return sorted({*__all__, "__version__", *_MODULES} - {"spark"})


def __getattr__(name: str) -> object:
    # Modules load at their first use: a command that only prints its help needs neither Arrow nor
    # DuckDB.
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
