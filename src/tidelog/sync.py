"""The synchronous face: the same names, for notebooks, Spark drivers and scripts.

A connection owns one loop in one thread, from `connect` to its end (`tidelog.portal`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tidelog import location as aio_location
from tidelog.collection import collection as aio_collection
from tidelog.collection.create import SourceSpec
from tidelog.collection.formats.times import When, format_time
from tidelog.collection.ingest.engine import Engine
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import RunProgress as IngestProgress
from tidelog.collection.ingest.summary import Summary
from tidelog.frontier import Frontier
from tidelog.keyed.values import Retention, Sealing
from tidelog.moving import Moved
from tidelog.persist.read import reader
from tidelog.persist.read.reader import Split
from tidelog.persist.read.selection import RowSelection, repeated
from tidelog.portal import Blocking, Portal
from tidelog.sync_keyed import KeyedLog, KeyedReader
from tidelog.sync_log import Log, documented_as
from tidelog.sync_shard import Shard
from tidelog.sync_transactions import Transactions
from tidelog.wal.admin.destroy import Destroyed
from tidelog.wal.append.batching import Batching
from tidelog.wal.slot_protocol.shape import Shape


@dataclass(frozen=True, slots=True)
class Contents:
    """A snapshot: rows at one time, each as often as it is there; no later commit changes it."""

    table: pa.Table
    as_of: int

    def __repr__(self) -> str:
        shape = f"{self.table.num_rows} rows, {self.table.num_columns} columns"
        return f"<tidelog contents: {shape} as of {format_time(self.as_of)}>"

    def __len__(self) -> int:
        return self.table.num_rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # By this pandas, Polars, DuckDB and PyArrow take it as it is.
        stream: object = self.table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
        return stream

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame (pandas must be installed)."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a polars DataFrame (polars must be installed)."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def to_spark(self, spark: Any) -> Any:
        """Return a Spark DataFrame on a session."""
        return spark.createDataFrame(self.to_arrow())


class Collection(Blocking[aio_collection.Collection]):
    """One collection.

    A time is ISO 8601 text, a datetime, a date (its midnight, in UTC) or milliseconds since 1970.
    """

    def __repr__(self) -> str:
        return repr(self._inner)

    def snapshot(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Contents:
        """Return the rows at a time; without one, at the newest that is complete.

        ``where`` is a condition in DuckDB's dialect. What ``columns``, ``where`` and ``limit``
        leave out is not read, where that can be told without reading it.
        """

        async def read() -> Contents:
            selection = RowSelection(columns=columns, where=where, limit=limit)
            reading = self._inner.reading(selection)
            time = await self._inner.resolve_as_of(as_of)
            pieces = self._inner.contents(reading, time)
            found = [rows async for piece in pieces for rows in repeated(piece)]
            return Contents(pa.concat_tables([reading.narrow.data.empty_table(), *found]), time)

        return self._portal.run(read())

    def scan(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows at a time, some thousands at once; see `snapshot`."""
        stream = self._inner.scan(as_of, columns=columns, where=where, limit=limit)
        return self._portal.iterate(stream)

    def changes(
        self,
        since: When,
        until: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the updates after ``since`` up to ``until``, with ``_time`` and ``_diff``."""
        return self._portal.run(
            self._inner.changes(since, until, columns=columns, where=where, limit=limit)
        )

    def hold(self, name: str, at: When | None = None, *, token: int | None = None) -> Frontier:
        """Keep times from ``at`` on readable; see the awaited one."""
        return self._portal.run(self._inner.hold(name, at, token=token))

    def downgrade_since(self, name: str, at: When, *, token: int | None = None) -> Frontier:
        """Move a hold up; gives from when on the collection can be read."""
        return self._portal.run(self._inner.downgrade_since(name, at, token=token))

    def release(self, name: str, *, token: int | None = None) -> bool:
        """Drop a hold; gives whether there was one."""
        return self._portal.run(self._inner.release(name, token=token))

    def describe(self) -> dict[str, Any]:
        return self._portal.run(self._inner.describe())


@documented_as(aio_location.Location)
class Location(Blocking[aio_location.Location]):
    """A location that was connected to; close it, or use it in ``with``."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def url(self) -> str:
        return self._inner.url

    def shard(
        self, name: str, *, schema: pa.Schema | None = None, key: list[str] | None = None
    ) -> Shard:
        return Shard(self._portal, self._inner.shard(name, schema=schema, key=key))

    def transactions(self, name: str) -> Transactions:
        return Transactions(self._portal, self._inner.transactions(name))

    def shards(self) -> list[str]:
        return self._portal.run(self._inner.shards())

    def log(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        opened = self._inner.log(name, shape=shape, batching=batching)
        return Log(self._portal, self._portal.run(opened))

    def create_log(
        self,
        name: str,
        *,
        protocol: str = "slot",
        shape: Shape | None = None,
        batching: Batching | None = None,
    ) -> Log:
        made = self._inner.create_log(name, protocol=protocol, shape=shape, batching=batching)
        return Log(self._portal, self._portal.run(made))

    def fork_log(self, source: str, name: str, *, start: int = 0) -> Log:
        return Log(self._portal, self._portal.run(self._inner.fork_log(source, name, start=start)))

    def copy_log(
        self, source: str, name: str, *, protocol: str | None = None, start: int = 0
    ) -> Log:
        copy = self._inner.copy_log(source, name, protocol=protocol, start=start)
        return Log(self._portal, self._portal.run(copy))

    def destroy_log(self, name: str, *, grace_us: int | None = None) -> Destroyed:
        return self._portal.run(self._inner.destroy_log(name, grace_us=grace_us))

    def rebuild_log(self, name: str, *, start: int | None = None) -> Log:
        return Log(self._portal, self._portal.run(self._inner.rebuild_log(name, start=start)))

    def adopt_log(self, url: str | os.PathLike[str], name: str) -> Log:
        return Log(self._portal, self._portal.run(self._inner.adopt_log(url, name)))

    def export_log(self, name: str, url: str | os.PathLike[str], *, start: int = 0) -> None:
        self._portal.run(self._inner.export_log(name, url, start=start))

    def logs(self, *, lost: bool = False) -> list[str]:
        return self._portal.run(self._inner.logs(lost=lost))

    def create_keyed(
        self, name: str, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> KeyedLog:
        made = self._inner.create_keyed(name, sealing=sealing, retention=retention)
        return KeyedLog(self._portal, self._portal.run(made))

    def keyed(
        self,
        name: str,
        *,
        visibility: str = "memory",
        batching: Batching | None = None,
        upkeep: bool = True,
    ) -> KeyedLog:
        opened = self._inner.keyed(name, visibility=visibility, batching=batching, upkeep=upkeep)
        return KeyedLog(self._portal, self._portal.run(opened))

    def keyed_reader(
        self, name: str, *, refresh_us: int = 1_000_000, checkpoint: str | None = None
    ) -> KeyedReader:
        opened = self._inner.keyed_reader(name, refresh_us=refresh_us, checkpoint=checkpoint)
        return KeyedReader(self._portal, self._portal.run(opened))

    def keyed_logs(self) -> list[str]:
        return self._portal.run(self._inner.keyed_logs())

    def fork_keyed(self, source: str, name: str) -> KeyedLog:
        return KeyedLog(self._portal, self._portal.run(self._inner.fork_keyed(source, name)))

    def drop_keyed(self, name: str) -> None:
        self._portal.run(self._inner.drop_keyed(name))

    def collection(self, name: str) -> Collection:
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
        """Ingest a source up to where it is now, in this process or by the ``engine``'s.

        ``final`` says that nothing more comes, as ``tidelog ingest --final`` does.
        """

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
    """Connect to the location at a URL or a path; with ``create``, make it if there is none.

    ``consensus`` is what decides between writers, said when a location is made: ``store``, as
    always unless told, ``sqlite:PATH`` or ``postgresql://...``.
    ``cache`` keeps parts that were read, in memory (``256MiB``) or in a folder; ``hedge`` sends
    slow reads again.

    Raises:
        NoSuchLocation: there is none. UsageError, LocationError: see
        `tidelog.location.open_location`.
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
    inner = lake._inner
    return lake._portal.run(reader.read_split(split, store=inner.store, clock=inner.clock))
