"""The synchronous API: the same names, for notebooks, Spark drivers and scripts.

A connection owns one loop in one thread, from `connect` to `close` (`tidelog.portal`).
Each method imports the engine that it needs, so a process loads Arrow and DuckDB only on use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidelog import location as aio_location
from tidelog.portal import Blocking, Portal, documented_as

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.collection.create import SourceSpec
    from tidelog.collection.ingest.engine import Engine
    from tidelog.collection.ingest.summary import RunProgress as IngestProgress
    from tidelog.collection.ingest.summary import Summary
    from tidelog.keyed import log as aio_keyed
    from tidelog.keyed.values import Retention, Sealing
    from tidelog.moving import Moved
    from tidelog.persist.read.reader import Split
    from tidelog.sync_collection import Collection
    from tidelog.sync_keyed import KeyedLog, KeyedReader
    from tidelog.sync_log import Log
    from tidelog.sync_shard import Shard
    from tidelog.sync_transactions import Transactions
    from tidelog.wal import log as aio_log
    from tidelog.wal.admin.destroy import Destroyed
    from tidelog.wal.append.batching import Batching
    from tidelog.wal.slot_protocol.shape import Shape


@documented_as(aio_location.Location)
class Location(Blocking[aio_location.Location]):
    """A connected location; close it, or use it in ``with``."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def url(self) -> str:
        return self._inner.url

    def shard(
        self, name: str, *, schema: pa.Schema | None = None, key: list[str] | None = None
    ) -> Shard:
        from tidelog.sync_shard import Shard

        return Shard(self._portal, self._inner.shard(name, schema=schema, key=key))

    def transactions(self, name: str) -> Transactions:
        from tidelog.sync_transactions import Transactions

        return Transactions(self._portal, self._inner.transactions(name))

    def shards(self) -> list[str]:
        return self._portal.run(self._inner.shards())

    def log(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        return self._opened_log(self._inner.log(name, shape=shape, batching=batching))

    def create_log(
        self,
        name: str,
        *,
        protocol: str = "slot",
        shape: Shape | None = None,
        batching: Batching | None = None,
    ) -> Log:
        made = self._inner.create_log(name, protocol=protocol, shape=shape, batching=batching)
        return self._opened_log(made)

    def fork_log(self, source: str, name: str, *, start: int = 0) -> Log:
        return self._opened_log(self._inner.fork_log(source, name, start=start))

    def copy_log(
        self, source: str, name: str, *, protocol: str | None = None, start: int = 0
    ) -> Log:
        copy = self._inner.copy_log(source, name, protocol=protocol, start=start)
        return self._opened_log(copy)

    def destroy_log(self, name: str, *, grace_us: int | None = None) -> Destroyed:
        return self._portal.run(self._inner.destroy_log(name, grace_us=grace_us))

    def rebuild_log(self, name: str, *, start: int | None = None) -> Log:
        return self._opened_log(self._inner.rebuild_log(name, start=start))

    def adopt_log(self, url: str | os.PathLike[str], name: str) -> Log:
        return self._opened_log(self._inner.adopt_log(url, name))

    def export_log(self, name: str, url: str | os.PathLike[str], *, start: int = 0) -> None:
        self._portal.run(self._inner.export_log(name, url, start=start))

    def logs(self, *, lost: bool = False) -> list[str]:
        return self._portal.run(self._inner.logs(lost=lost))

    def create_keyed(
        self, name: str, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> KeyedLog:
        made = self._inner.create_keyed(name, sealing=sealing, retention=retention)
        return self._opened_keyed(made)

    def keyed(
        self,
        name: str,
        *,
        visibility: str = "memory",
        batching: Batching | None = None,
        upkeep: bool = True,
    ) -> KeyedLog:
        opened = self._inner.keyed(name, visibility=visibility, batching=batching, upkeep=upkeep)
        return self._opened_keyed(opened)

    def keyed_reader(
        self, name: str, *, refresh_us: int = 1_000_000, checkpoint: str | None = None
    ) -> KeyedReader:
        from tidelog.sync_keyed import KeyedReader

        opened = self._inner.keyed_reader(name, refresh_us=refresh_us, checkpoint=checkpoint)
        return KeyedReader(self._portal, self._portal.run(opened))

    def keyed_logs(self) -> list[str]:
        return self._portal.run(self._inner.keyed_logs())

    def fork_keyed(self, source: str, name: str) -> KeyedLog:
        return self._opened_keyed(self._inner.fork_keyed(source, name))

    def drop_keyed(self, name: str) -> None:
        self._portal.run(self._inner.drop_keyed(name))

    def collection(self, name: str) -> Collection:
        from tidelog.sync_collection import Collection

        return Collection(self._portal, self._portal.run(self._inner.collection(name)))

    def collections(self) -> list[str]:
        """Return the names of all collections."""
        return sorted(self._portal.run(self._inner.controller.catalog()).collections)

    def create_source(self, spec: SourceSpec) -> None:
        self._portal.run(self._inner.create_source(spec))

    def drop_source(self, name: str) -> None:
        self._portal.run(self._inner.drop_source(name))

    def move_consensus(self, to: str) -> Moved:
        return self._portal.run(self._inner.move_consensus(to))

    def retain(self, name: str, retain_ms: int | None) -> None:
        self._portal.run(self._inner.retain(name, retain_ms))

    def acknowledge(self, name: str, *paths: str) -> None:
        self._portal.run(self._inner.acknowledge(name, *paths))

    def skip_file(self, name: str, path: str) -> None:
        self._portal.run(self._inner.skip_file(name, path))

    def ingest(
        self,
        name: str,
        *,
        engine: Engine | None = None,
        bytes_max: int | None = None,
        strict: bool = False,
        final: bool = False,
        on_tick: Callable[[IngestProgress], None] | None = None,
    ) -> Summary:
        """Ingest a source up to its present end, in this process or by the ``engine``.

        ``final`` states that the source is complete, like ``tidelog ingest --final``.
        """
        from tidelog.collection.ingest.run import run_ingest

        async def work() -> Summary:
            ingester = await self._inner.ingester(
                name, engine=engine, bytes_max=bytes_max, strict=strict, final=final
            )
            return await run_ingest(
                ingester,
                follow=False,
                interval_us=0,
                on_tick=on_tick or (lambda _: None),
                stop=lambda: False,
            )

        return self._portal.run(work())

    def _opened_log(self, opened: Coroutine[Any, Any, aio_log.Log]) -> Log:
        from tidelog.sync_log import Log

        return Log(self._portal, self._portal.run(opened))

    def _opened_keyed(self, opened: Coroutine[Any, Any, aio_keyed.KeyedLog]) -> KeyedLog:
        from tidelog.sync_keyed import KeyedLog

        return KeyedLog(self._portal, self._portal.run(opened))

    def close(self) -> None:
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    consensus: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    hedge: bool | None = None,
) -> Location:
    """Connect to the location at a URL or a path; with ``create``, create it if none exists.

    ``consensus`` is the place that resolves concurrent commits, chosen when a location is created:
    ``store`` (the default), ``sqlite:PATH`` or ``postgresql://...``.
    ``cache`` keeps the parts read, in memory (``256MiB``) or in a folder. ``hedge`` repeats slow
    reads.

    Raises:
        NoSuchLocation: no location exists at the URL.
        UsageError, LocationError: see `tidelog.location.open_location`.
    """
    portal = Portal()
    try:
        opened = aio_location.open_location(
            url, create=create, consensus=consensus, cache=cache, hedge=hedge
        )
        return Location(portal, portal.run(opened))
    except BaseException:
        portal.close()
        raise


def read_split(split: Split, lake: Location) -> pa.Table:
    """Return the updates of a split; see `tidelog.aio.read_split`."""
    from tidelog.persist.read import reader

    inner = lake._inner
    return lake._portal.run(reader.read_split(split, store=inner.store, clock=inner.clock))
