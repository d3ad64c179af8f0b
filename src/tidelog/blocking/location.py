"""The blocking API: location. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog import location as awaited_location
from tidelog.blocking.portal import documented_as
from tidelog.blocking.transacting import TransactingConnection

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.blocking.collections import (
        Collection,
        Collections,
        Table,
        Tables,
        TableTransaction,
    )
    from tidelog.blocking.keyed import KeyedLogs
    from tidelog.blocking.logs import Log, Logs
    from tidelog.blocking.shards import Shard, Shards
    from tidelog.blocking.sources import Renditions, Sources
    from tidelog.collection.formats.times import When
    from tidelog.collection.reading import SqlResult
    from tidelog.location.consensus_migration import MoveReport
    from tidelog.wal.append.batching import Batching
    from tidelog.wal.slot_protocol.shape import Shape


@documented_as(awaited_location.Location)
class Location(TransactingConnection[awaited_location.Location]):
    """A connection to a location; close it, or use it in ``with``."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def logs(self) -> Logs:
        from tidelog.blocking.logs import Logs

        return Logs(self._portal, self._inner.logs)

    @property
    def keyed(self) -> KeyedLogs:
        from tidelog.blocking.keyed import KeyedLogs

        return KeyedLogs(self._portal, self._inner.keyed)

    @property
    def shards(self) -> Shards:
        from tidelog.blocking.shards import Shards

        return Shards(self._portal, self._inner.shards)

    @property
    def collections(self) -> Collections:
        from tidelog.blocking.collections import Collections

        return Collections(self._portal, self._inner.collections)

    @property
    def tables(self) -> Tables:
        from tidelog.blocking.collections import Tables

        return Tables(self._portal, self._inner.tables)

    @property
    def sources(self) -> Sources:
        from tidelog.blocking.sources import Sources

        return Sources(self._portal, self._inner.sources)

    @property
    def renditions(self) -> Renditions:
        from tidelog.blocking.sources import Renditions

        return Renditions(self._portal, self._inner.renditions)

    def log(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        from tidelog.blocking.logs import Log

        return Log(
            self._portal, self._portal.run(self._inner.log(name, shape=shape, batching=batching))
        )

    def shard(
        self, name: str, *, schema: pa.Schema | None = None, key: list[str] | None = None
    ) -> Shard:
        from tidelog.blocking.shards import Shard

        return Shard(self._portal, self._inner.shard(name, schema=schema, key=key))

    def collection(self, name: str) -> Collection:
        from tidelog.blocking.collections import Collection

        return Collection(self._portal, self._portal.run(self._inner.collection(name)))

    def table(self, name: str) -> Table:
        from tidelog.blocking.collections import Table

        return Table(self._portal, self._portal.run(self._inner.table(name)))

    def transaction(self, *, at: int | None = None) -> TableTransaction:
        from tidelog.blocking.collections import TableTransaction

        return TableTransaction(self._portal, self._inner.transaction(at=at))

    def sql(
        self,
        query: str,
        *,
        as_of: When | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
        engine: str = "duckdb",
    ) -> SqlResult:
        return self._portal.run(
            self._inner.sql(query, as_of=as_of, wait=wait, timeout_us=timeout_us, engine=engine)
        )

    def move_consensus(self, to: str) -> MoveReport:
        return self._portal.run(self._inner.move_consensus(to))
