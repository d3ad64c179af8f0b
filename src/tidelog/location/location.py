"""Locations: one URL, and namespaces for all objects stored there.

The first request always reads the marker at the root: see `tidelog.location.marker`.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.consensus.kinds import (
    STORE,
    ConsensusPlace,
    check_same,
    check_there,
    open_consensus,
    parse_consensus,
)
from tidelog.consensus.port import ENVIRONMENT, Consensus
from tidelog.consensus.read_only import ReadOnlyConsensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock, SystemClock
from tidelog.errors import (
    CorruptionError,
    NoSuchLocation,
    NoSuchLog,
    ObjectNotFound,
    UsageError,
)
from tidelog.location.consensus_migration import MarkMoves, MoveReport, move_consensus
from tidelog.location.marker import MARKER, make_marker, read_marker
from tidelog.machine.guarded import GuardedConsensus
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.store.urls import open_store, url_text
from tidelog.store.wrappers.read_only import (
    is_read_only,
    refuses_writes,
    told_read_only,
)
from tidelog.store.wrapping import (
    INGEST_CACHE,
    NOTHING_TOLD,
    WrappedStores,
    Wrapping,
    keep_parts,
    split_wrapping,
    told_wrapping,
    with_wrapping,
    wrap,
)

if TYPE_CHECKING:
    # Each property imports its engine, so that a process that only connects loads no Arrow.
    import pyarrow as pa

    from tidelog.collection.catalog.controller import Controller
    from tidelog.collection.collection import Collection
    from tidelog.collection.collections import Collections
    from tidelog.collection.formats.times import When
    from tidelog.collection.maintenance import Maintenance
    from tidelog.collection.reading import SqlResult
    from tidelog.collection.renditions import Renditions
    from tidelog.collection.sources import Sources
    from tidelog.collection.table_handle import Table
    from tidelog.collection.tables import Tables
    from tidelog.collection.transaction import TableTransaction
    from tidelog.keyed.logs import KeyedLogs
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.shards import Shards
    from tidelog.persist.transactions.transactions import Transactions
    from tidelog.wal.append.batching import Batching
    from tidelog.wal.log import Log
    from tidelog.wal.logs import Logs
    from tidelog.wal.slot_protocol.shape import Shape

# Objects that only a location has: consensus states, or its `WITNESS`; parts and rollups.
_STATES: Final = "consensus"
_OBJECT: Final = re.compile(r"shard/[^/]+/(part/[0-9a-f]{8}|rollup)/")

T = TypeVar("T")


@refuses_writes()
@dataclass(slots=True, kw_only=True)
class Location:
    """An open location: its URL, and the namespaces of its logs, shards and collections.

    ``url`` names the place, without the settings of the cache and of hedged reads: see
    `executor_url`.
    """

    url: str
    stores: WrappedStores
    consensus: Consensus
    clock: Clock
    wrapping: Wrapping = NOTHING_TOLD
    _kept: Store | None = field(init=False, default=None)
    _controller: Controller | None = field(init=False, default=None)
    _table_transactions: Transactions | None = field(init=False, default=None)

    def __repr__(self) -> str:
        return f"<tidelog location {self.store.url}>"

    @property
    def logs(self) -> Logs:
        """Return the namespace of logs."""
        from tidelog.wal.logs import Logs

        return Logs(store=self.store, clock=self.clock, writer=writer_name())

    @property
    def keyed(self) -> KeyedLogs:
        """Return the namespace of keyed logs."""
        from tidelog.keyed.logs import KeyedLogs

        return KeyedLogs(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            writer=writer_name(),
            location_url=self.executor_url,
        )

    @property
    def shards(self) -> Shards:
        """Return the namespace of shards."""
        from tidelog.persist.shards import Shards

        return Shards(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            location_url=self.executor_url,
        )

    @property
    def collections(self) -> Collections:
        """Return the namespace of collections."""
        from tidelog.collection.collections import Collections

        return Collections(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            transactions=self.table_transactions,
        )

    @property
    def tables(self) -> Tables:
        """Return the namespace of tables."""
        from tidelog.collection.tables import Tables

        return Tables(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            transactions=self.table_transactions,
        )

    @property
    def sources(self) -> Sources:
        """Return the namespace of sources."""
        from tidelog.collection.sources import Sources

        return Sources(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            maintenance=self.maintenance,
            url=self.url,
            ingest_store=self.ingest_store,
        )

    @property
    def renditions(self) -> Renditions:
        """Return the namespace of renditions."""
        from tidelog.collection.renditions import Renditions

        return Renditions(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            collections=self.collections,
            maintenance=self.maintenance,
        )

    async def log(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        """Open a log; short for ``logs.open``.

        Raises:
            UsageError: the name is invalid.
            NoSuchLog: the log does not exist; the message says so if a keyed log has the name.
        """
        try:
            return await self.logs.open(name, shape=shape, batching=batching)
        except NoSuchLog as error:
            if type(error) is NoSuchLog and await self.keyed.has(name):
                raise NoSuchLog(
                    f"{name!r} is a keyed log, not a log: read it with "
                    f"'tidelog keyed scan {name}', or in Python with lake.keyed.open({name!r})"
                ) from None
            raise

    def shard(
        self, name: str, *, schema: pa.Schema | None = None, key: list[str] | None = None
    ) -> Shard:
        """Return the handle of a shard; short for ``shards.open``.

        Raises:
            UsageError: the name or the schema is invalid.
        """
        return self.shards.open(name, schema=schema, key=key)

    async def collection(self, name: str) -> Collection:
        """Return the handle of a collection; short for ``collections.open``.

        Raises:
            NoSuchCollection: no collection has the name; the message lists the existing ones.
        """
        return await self.collections.open(name)

    async def table(self, name: str) -> Table:
        """Return the handle of a table; short for ``tables.open``.

        Raises:
            NoSuchCollection: no table has the name; the message lists the existing ones.
        """
        return await self.tables.open(name)

    def transaction(self, *, at: int | None = None) -> TableTransaction:
        """Return a transaction over tables: ``async with lake.transaction() as tx``.

        Its reads and writes are those of one time, and its writes are visible all or none. It
        begins at its first call. The time is not before ``at`` (default: the clock), in
        milliseconds.
        """
        from tidelog.collection.transaction import TableTransaction

        return TableTransaction(tables=self.tables, at=at)

    async def transact(
        self, work: Callable[[TableTransaction], Awaitable[T]], *, at: int | None = None
    ) -> T:
        """Return the result of ``work(transaction)``, with all its writes or none.

        If another process first changes or alters one of its tables, the work runs again, in a new
        transaction. So it must have no other effects.

        Raises:
            ContentionError: other commits changed its tables at every try. NOT_APPLIED.
            All errors of the work, and of the commit of the transaction.
        """
        from tidelog.collection.transaction import transact

        return await transact(self.attempts(at=at), work)

    def attempts(self, *, at: int | None = None) -> AsyncGenerator[TableTransaction, None]:
        """Yield the transactions of `transact`, until the caller has committed one."""
        from tidelog.collection.transaction import attempts

        return attempts(self.tables, at=at)

    async def sql(
        self,
        query: str,
        *,
        as_of: When | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
        engine: str = "duckdb",
    ) -> SqlResult:
        """Return the rows of a query over collections, in the dialect of the engine.

        The engine is ``duckdb``, in this process, or ``spark``: the active Spark session, or a new
        one on this machine.

        All collections are read as of ``as_of``; by default, as of the newest time at which all of
        them are complete. Only the needed columns, parts and row groups are read. With ``wait``,
        the call waits until all of them are complete at the time. ``timeout_us`` ends the wait, and
        alone implies ``wait``.

        Raises:
            UsageError: the query is invalid, fails on a row, writes, or reads a file.
            NoSuchCollection: the query names no collection; the message lists the existing ones.
            AsOfBeforeSince, AsOfNotComplete: a collection is not readable at the time.
            DeadlineExceeded: a collection did not become complete in time.
        """
        import pyarrow as pa

        from tidelog.collection.reading import SqlResult
        from tidelog.collection.sql import engine_of

        check_kind(query, str, "the query must be a SQL text, as a str")
        answer = engine_of(engine)
        running = answer(self.collections, query, as_of, wait=wait, timeout_us=timeout_us)
        async with running as found:
            batches = [batch async for batch in found.batches]
            table = pa.Table.from_batches(batches, found.schema)
            return SqlResult(table, found.as_of, found.later)

    async def move_consensus(self, to: str) -> MoveReport:
        """Move consensus to another place: ``store``, ``sqlite:PATH`` or a PostgreSQL URL.

        Afterwards, each process must open the location again, this one too. If the call fails or
        the process dies, the location uses the old place or the new one; call again to finish.

        Raises:
            UsageError: ``to`` is not such a place.
            ContentionError: other processes gave the move up at every try.
            LocationError: a store or a database failed.
        """
        guarded = self.consensus
        if not isinstance(guarded, GuardedConsensus) or not isinstance(guarded.moves, MarkMoves):
            raise UsageError(
                "this handle cannot move the consensus: open the location by its URL first"
            )
        place, moves = parse_consensus(to), guarded.moves.moves
        return await move_consensus(self.store, guarded.inner, place, moves=moves, clock=self.clock)

    @property
    def store(self) -> Store:
        """Return the store as this process uses it, possibly with a cache."""
        return self.stores.whole

    @property
    def ingest_store(self) -> Store:
        """Return the store of the ingesters, which keeps the newest parts unless a cache is set.

        A merge soon reads the parts that a tick has written. All ingesters share the memory.
        """
        if self.wrapping.cache is not None:
            return self.store
        if self._kept is None:
            self._kept = keep_parts(self.store, INGEST_CACHE, clock=self.clock)
        return self._kept

    @property
    def executor_url(self) -> str:
        """Return the URL by which other processes open the location with the same settings."""
        return with_wrapping(self.url, self.wrapping)

    @property
    def controller(self) -> Controller:
        """Return the handle of the catalog; the first use creates it."""
        from tidelog.collection.catalog.controller import Controller

        if self._controller is None:
            self._controller = Controller(
                store=self.store, consensus=self.consensus, clock=self.clock
            )
        return self._controller

    @property
    def table_transactions(self) -> Transactions:
        """Return the handle of the transactions that write the tables.

        The first use creates it. All tables share it, because it stores their commits together.
        """
        from tidelog.collection.tables import table_transactions

        if self._table_transactions is None:
            self._table_transactions = table_transactions(
                self.store, self.consensus, self.clock, f"{user_name()}@{writer_name()}"
            )
        return self._table_transactions

    @property
    def maintenance(self) -> Maintenance:
        """Return the maintenance of the shards: merges, and deletion of garbage."""
        from tidelog.collection.maintenance import Maintenance

        return Maintenance(
            store=self.store,
            fresh=self.stores.fresh,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            tables=self.table_transactions,
        )


async def open_location(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    consensus: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    hedge: bool | None = None,
    read_only: bool | None = None,
    clock: Clock | None = None,
    store: Store | None = None,
) -> Location:
    """Open the location at a URL or a path; with ``create``, create it if it does not exist.

    ``consensus`` resolves concurrent commits: ``store`` (the location's own store, the default),
    ``sqlite:PATH`` for the processes of one machine, or ``postgresql://...``. The environment
    variable ``TIDELOG_CONSENSUS`` changes the default. The location stores the choice, without a
    password.
    ``cache`` keeps parts that were read: a size in memory (``256MiB``), a folder, or ``off``.
    ``hedge`` sends slow reads again. A cloud URL may have both (``?cache=256MiB&hedge=on``), as may
    the environment variables ``TIDELOG_CACHE`` and ``TIDELOG_HEDGE``.
    With ``read_only``, or ``TIDELOG_READ_ONLY=on`` in the environment, the store and the consensus
    get no write, and each call that writes raises UsageError.
    The first process probes the store, when it creates the location.

    Raises:
        NoSuchLocation: no location exists at the URL.
        UsageError: the URL has an unknown form, a newer tidelog created the location, or the
            location has another consensus.
        StoreRefused: the store breaks a promise that tidelog needs, or denies access.
        CorruptionError: the location lacks its marker.
    """
    clock = clock or SystemClock()
    url, in_url = split_wrapping(url_text(url))
    given, around = told_wrapping(cache=cache, hedge=hedge, environment=os.environ)
    wrapping = given.otherwise(in_url).otherwise(around)
    reads_only = told_read_only(read_only, create=create)
    asked = consensus or os.environ.get(ENVIRONMENT)
    place = None if asked is None else parse_consensus(asked)
    opened_store = store or open_store(url, clock=clock, create=create)
    stores = wrap(opened_store, wrapping, clock=clock, read_only=reads_only)
    metered = stores.meter
    try:
        data = (await metered.get(MARKER)).data
    except ObjectNotFound:
        again = await _read_new_marker(metered)
        if again is None and not create:
            raise NoSuchLocation(
                f"no location exists at {metered.url}: create one with 'tidelog source create', "
                "'tidelog table create', 'tidelog log create', 'tidelog keyed create' or 'tidelog "
                "shard create', or in Python with connect(url, create=True)"
            ) from None
        if again is None:
            place = place or ConsensusPlace(STORE)
            # Check it before the marker exists: a location must not need a missing database.
            await check_there(place, clock=clock)
            again = await make_marker(metered, place, clock)
        data = again
    marker = read_marker(data, where=metered.url)
    if place is not None:
        check_same(place, marker.consensus, marker.consensus_at)
    known = place or parse_consensus(marker.consensus_at or marker.consensus)
    opened = GuardedConsensus(
        inner=_consensus_at(known, marker.id, stores.fresh, clock),
        moves=MarkMoves(store=metered, clock=clock, moves=marker.moves),
        clock=clock,
    )
    return Location(url=url, stores=stores, consensus=opened, clock=clock, wrapping=wrapping)


def _consensus_at(place: ConsensusPlace, id: str, store: Store, clock: Clock) -> Consensus:
    reads_only = is_read_only(store)
    found = open_consensus(
        place, location=id, store=store, clock=clock, founded=True, read_only=reads_only
    )
    return ReadOnlyConsensus(found) if reads_only else found


async def _read_new_marker(store: Store) -> bytes | None:
    """Return the marker of a location that was just created, or None without a location.

    Raises:
        CorruptionError: objects that are written after the marker exist, and the marker does not.
    """
    entry = await first_entry(store, _STATES)
    if entry is None:
        entry = await first_entry(store, "shard/")
        if entry is None or _OBJECT.match(entry.key) is None:
            return None
    try:
        return (await store.get(MARKER)).data
    except ObjectNotFound:
        raise CorruptionError(
            f"{MARKER} is gone from {store.url}, but {entry.key} exists: restore {MARKER} from "
            "a backup or from an older version of the object"
        ) from None


def user_name() -> str:
    """Return the name of the user of this process, or the user's number if it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def writer_name() -> str:
    """Return the name of this process for people: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"
