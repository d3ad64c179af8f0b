"""Locations: one URL, and every log, shard, collection and source stored under it.

Opening a location always reads its marker first: see `tidelog.mark`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidelog.arguments import check_kind, check_names, check_whole
from tidelog.clock import Clock, SystemClock
from tidelog.consensus.kinds import (
    STORE,
    ConsensusPlace,
    check_same,
    check_there,
    open_consensus,
    parse_consensus,
)
from tidelog.consensus.port import ENVIRONMENT, Consensus
from tidelog.errors import CorruptionError, NoSuchLocation, ObjectNotFound, UsageError
from tidelog.frontier import Frontier
from tidelog.ids import Named, name_of, named_id
from tidelog.machine.guarded import GuardedConsensus
from tidelog.mark import MARK, make_mark, read_mark
from tidelog.moving import MarkMoves, Moved, move_consensus
from tidelog.shelves import Shelves
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.store.urls import open_store, url_text
from tidelog.store.wrapping import (
    NOTHING_TOLD,
    Dressed,
    Wrapping,
    dress,
    split_wrapping,
    told_wrapping,
    with_wrapping,
)

if TYPE_CHECKING:
    # Each method imports its engine, so a process that only connects starts without Arrow.
    import pyarrow as pa

    from tidelog.collection.catalog.catalog import CollectionInfo, RenditionInfo, SourceInfo
    from tidelog.collection.catalog.controller import Controller
    from tidelog.collection.collection import Collection
    from tidelog.collection.create import SourceSpec
    from tidelog.collection.ingest.engine import Engine
    from tidelog.collection.ingest.ingest import Ingester
    from tidelog.collection.maintenance import Maintenance
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.transactions.transactions import Transactions

# Keys that only a location has: consensus states or its `WITNESS`, and shards' parts and rollups.
_STATES: Final = "consensus"
_OBJECT: Final = re.compile(r"shard/[^/]+/(part/[0-9a-f]{8}|rollup)/")


@dataclass(slots=True, kw_only=True)
class Location(Shelves):
    """An open location: its store, its consensus, and handles on its objects.

    ``url`` names the place, without options for caching and hedging: see `told_url`.
    """

    url: str
    stores: Dressed
    consensus: Consensus
    clock: Clock
    wrapping: Wrapping = NOTHING_TOLD
    _controller: Controller | None = field(init=False, default=None)

    def __repr__(self) -> str:
        return f"<tidelog location {self.store.url}>"

    @property
    def store(self) -> Store:
        """Return the store with this process's options, such as a cache."""
        return self.stores.whole

    @property
    def told_url(self) -> str:
        """Return the URL that opens the location with the same options, for Spark executors."""
        return with_wrapping(self.url, self.wrapping)

    @property
    def controller(self) -> Controller:
        """Return the handle of the catalog, which is created at its first use."""
        from tidelog.collection.catalog.controller import Controller

        if self._controller is None:
            self._controller = Controller(
                store=self.store, consensus=self.consensus, clock=self.clock
            )
        return self._controller

    def shard(
        self, name: str, *, schema: pa.Schema | None = None, key: list[str] | None = None
    ) -> Shard:
        """Return the handle of a shard. Without a schema, the shard must have been written.

        The first write places the hold ``history`` at 0, so all times stay readable, whatever other
        holds and leases do. To forget times, move it:
        ``shard.downgrade_since("history", time)``.

        Raises:
            UsageError: the name or the schema is not valid.
        """
        import pyarrow as pa

        from tidelog.collection.catalog.retention import HISTORY_HOLD
        from tidelog.persist.format.schema import shard_schema
        from tidelog.persist.handle.shard import Shard

        if schema is not None:
            check_kind(schema, pa.Schema, "the schema of a shard must be a pyarrow.Schema")
        if key is not None:
            check_names(key, "key")
        shaped = None if schema is None else shard_schema(schema, key=key)
        return Shard(
            id=named_id(Named.SHARD, name),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=shaped,
            first_holds={HISTORY_HOLD: Frontier.at(0)},
            location_url=self.told_url,
        )

    def transactions(self, name: str) -> Transactions:
        """Return the handle of transactions, which write several shards at one time.

        Raises:
            UsageError: the name is not valid.
        """
        from tidelog.persist.transactions.transactions import Transactions

        return Transactions(
            name=name,
            kind=Named.SHARD,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )

    async def shards(self) -> list[str]:
        """Return the names of all shards that users created, sorted, finished ones included."""
        keys = self.consensus.list_keys(Named.SHARD.prefix)
        found = [name_of(Named.SHARD, key) async for key in keys]
        return sorted(name for name in found if name is not None)

    async def collection(self, name: str) -> Collection:
        """Return the handle of a collection, or of a source's errors as ``NAME_errors``.

        Raises:
            NoSuchCollection: no collection has the name.
        """
        from tidelog.collection.collection import find_collection

        return find_collection(
            await self.controller.catalog(),
            name,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )

    async def create_source(self, spec: SourceSpec) -> SourceInfo:
        """Create a source and the collection that it feeds.

        Raises:
            UsageError: the spec is not valid; the message names the correction. Nothing was made.
            NameTaken: a source or collection has the name. Nothing was made.
        """
        from tidelog.collection.create import SourceSpec, resolve_spec

        check_kind(spec, SourceSpec, "the spec of a source must be a tidelog.SourceSpec")
        spec.check()
        resolved = await resolve_spec(
            spec, location_url=self.url, clock=self.clock, store=self.store
        )
        return await self.add_source(*resolved)

    async def add_source(
        self, collection: CollectionInfo, rendition: RenditionInfo, info: SourceInfo
    ) -> SourceInfo:
        """Create a source from a resolved spec: see `create_source`."""
        from tidelog.collection.source.kinds import open_source

        await self.controller.create_source(collection, rendition, info)
        source = open_source(info, rendition.data_schema, store=self.store, clock=self.clock)
        await source.hold({}, make=True)
        return info

    async def drop_source(self, name: str) -> None:
        """Drop a source and its collection, or finish a drop whose process died.

        Raises:
            NoSuchCollection: no source has the name.
        """
        tending = self.maintenance
        catalog = await self.controller.catalog()
        if name in catalog.sources or not await tending.unreleased(name):
            await self.controller.drop_source(name)
        async for _ in tending.release(await tending.unreleased(name)):
            pass

    @property
    def maintenance(self) -> Maintenance:
        """Return the maintenance of this location: compaction and collection of its shards."""
        from tidelog.collection.maintenance import Maintenance

        return Maintenance(
            store=self.store,
            fresh=self.stores.fresh,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
        )

    async def move_consensus(self, to: str) -> Moved:
        """Move consensus to another place: ``store``, ``sqlite:PATH`` or a ``postgresql://`` URL.

        Every process must open the location again afterwards; so must the caller. If the call
        fails or the process dies, the location is either in the old place or in the new one. The
        same call again resumes the move.

        Raises:
            UsageError: ``to`` is not such a place.
            ContentionError: other writers gave the move up at every try.
            LocationError: a store or a database failed; call again.
        """
        guarded = self.consensus
        if not isinstance(guarded, GuardedConsensus) or not isinstance(guarded.moves, MarkMoves):
            raise UsageError(
                "this handle cannot move the consensus: open the location by its URL first"
            )
        place, moves = parse_consensus(to), guarded.moves.moves
        return await move_consensus(self.store, guarded.inner, place, moves=moves, clock=self.clock)

    async def retain(self, name: str, retain_ms: int | None) -> None:
        """Set how much history a collection keeps; None keeps all that is readable now.

        Older times become unreadable, and no later call makes them readable again.

        Raises:
            NoSuchCollection: no source feeds a collection of that name.
        """
        from tidelog.collection.catalog.retention import move_history

        await self.controller.retain(name, retain_ms)
        collection = await self.collection(name)
        await collection.refresh()
        await move_history(collection.all_shards, collection.upper, retain_ms)

    async def skip_file(self, name: str, path: str) -> None:
        """Continue a source without a missing or rewritten file (docs/guides/follow-a-folder.md).

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: the file does not stop the source.
        """
        from tidelog.collection.ingest.skip import skip_file

        await skip_file(await self.ingester(name), path)

    async def acknowledge(self, name: str, *paths: str) -> None:
        """Remove a source's reports about some files, or all if there are no ``paths``.

        Raises:
            NoSuchCollection: no source has the name. UsageError: no report is about a path.
        """
        from tidelog.collection.ingest.notes import acknowledge

        info, _ = await self.source(name)
        await acknowledge(self.store, info.id, paths)

    async def source(self, name: str) -> tuple[SourceInfo, RenditionInfo]:
        """Find a source and the rendition that it feeds."""
        catalog = await self.controller.catalog()
        info = catalog.source(name)
        return info, catalog.renditions[info.rendition]

    async def ingester(
        self,
        name: str,
        *,
        engine: Engine | None = None,
        bytes_max: int | None = None,
        strict: bool = False,
        final: bool = False,
    ) -> Ingester:
        """Return an ingester of a source, with the progress of its shards already read.

        ``final`` means that the source's files are complete. It reads the last record of a text
        file without a line end, and the rows held back for ``--lateness``. Otherwise the ingester
        waits for the line end, except after a whole JSON object.

        Units: ``bytes_max`` is about the bytes of the source that one tick reads; by default the
            engine chooses.

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: an argument has a wrong type.
        """
        from tidelog.collection.ingest.engine import LocalEngine
        from tidelog.collection.ingest.ingest import Ingester
        from tidelog.collection.source.kinds import open_source

        if isinstance(engine, str):
            raise UsageError(
                "engine must be an object such as SparkEngine(spark, location_url=url), or None to "
                "use this process",
                engine=engine,
            )
        if bytes_max is not None:
            check_whole(bytes_max, "bytes_max")
        engine = engine or LocalEngine(store=self.store, clock=self.clock)
        info, rendition = await self.source(name)
        schema = rendition.data_schema
        source = open_source(info, schema, store=self.store, clock=self.clock, final=final)
        # Before the first survey: a skipped file is not pending, and no reason to start Spark.
        source.pass_over(frozenset(info.skipped))
        ingester = Ingester(
            info=info,
            rendition=rendition,
            source=source,
            engine=engine,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            bytes_max=bytes_max or engine.tick_bytes,
            strict=strict,
            final=final,
        )
        await ingester.refresh()
        return ingester


async def open_location(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    consensus: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    hedge: bool | None = None,
    clock: Clock | None = None,
    store: Store | None = None,
) -> Location:
    """Open the location at a URL or a path; with ``create``, create it if it does not exist.

    ``consensus`` is the store of states, which resolves concurrent commits: ``store`` (the
    location's own, the default), ``sqlite:PATH`` for the processes of one machine, or
    ``postgresql://...``. By default the environment's ``TIDELOG_CONSENSUS`` names it. A location
    remembers it, except for a password.

    ``cache`` keeps the parts read: a size in memory (``256MiB``), a folder, or ``off``. ``hedge``
    repeats slow reads. A cloud URL may contain both (``?cache=256MiB&hedge=on``), and so may the
    environment (``TIDELOG_CACHE``, ``TIDELOG_HEDGE``). The argument wins, then the URL.

    The store is probed once, when a location is created on it.

    Raises:
        NoSuchLocation: no location exists at the URL.
        UsageError: the URL has no known form, a newer tidelog made the location, or its consensus
            is another one.
        StoreRefused: the store fails its probe, or denies access.
        CorruptionError: objects of a location exist, but its marker does not.
    """
    clock = clock or SystemClock()
    url, in_url = split_wrapping(url_text(url))
    given, around = told_wrapping(cache=cache, hedge=hedge, environment=os.environ)
    wrapping = given.otherwise(in_url).otherwise(around)
    asked = consensus or os.environ.get(ENVIRONMENT)
    place = None if asked is None else parse_consensus(asked)
    stores = dress(store or open_store(url, clock=clock, create=create), wrapping, clock=clock)
    metered = stores.meter
    try:
        found = (await metered.get(MARK)).data
    except ObjectNotFound:
        again = await _look_again(metered)
        if again is None and not create:
            raise NoSuchLocation(
                f"no location exists at {metered.url}: create one with 'tidelog source create', "
                "'tidelog log create', 'tidelog keyed create' or 'tidelog shard create', or in "
                "Python with connect(url, create=True)"
            ) from None
        if again is None:
            place = place or ConsensusPlace(STORE)
            # First: without its consensus, a new location would be unusable.
            await check_there(place, clock=clock)
            again = await make_mark(metered, place, clock)
        found = again
    mark = read_mark(found, where=metered.url)
    if place is not None:
        check_same(place, mark.consensus, mark.consensus_at)
    known = place or parse_consensus(mark.consensus_at or mark.consensus)
    opened = GuardedConsensus(
        inner=open_consensus(
            known, location=mark.id, store=stores.fresh, clock=clock, founded=True
        ),
        moves=MarkMoves(store=metered, clock=clock, moves=mark.moves),
        clock=clock,
    )
    return Location(url=url, stores=stores, consensus=opened, clock=clock, wrapping=wrapping)


async def _look_again(store: Store) -> bytes | None:
    """Return the marker of a location created just now, or None if no location exists.

    Raises:
        CorruptionError: objects that are written after the marker exist, but no marker.
    """
    found = await first_entry(store, _STATES)
    if found is None:
        found = await first_entry(store, "shard/")
        if found is None or _OBJECT.match(found.key) is None:
            return None
    try:
        return (await store.get(MARK)).data
    except ObjectNotFound:
        raise CorruptionError(
            f"{MARK} is gone from {store.url}, but {found.key} exists: restore {MARK} from "
            "a backup or from an older version of the object"
        ) from None
