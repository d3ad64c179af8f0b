"""The sources of a location, by name: create, list, alter, ingest and drop.

A source feeds the collection of its name.
Source: storage, "Sources"; design page 6.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidelog.collection.altering import altered_source, check_columns_of_kind, check_no_values
from tidelog.collection.catalog.catalog import (
    Catalog,
    CollectionInfo,
    RenditionInfo,
    SourceInfo,
)
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.collection import Collection
from tidelog.collection.create import resolve_spec
from tidelog.collection.formats.times import When, parse_time
from tidelog.collection.handover import Handovers
from tidelog.collection.ingest.all_sources import AllSources, ignore
from tidelog.collection.ingest.binding_of import BoundAddresses, find_binding
from tidelog.collection.ingest.checking import SourceCheck, check_source
from tidelog.collection.ingest.copying import CopiedShards, copy_hold
from tidelog.collection.ingest.engine import Engine, LocalEngine
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.notes import acknowledge
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.skip import skip_lost
from tidelog.collection.ingest.status import SourceStatus, source_status
from tidelog.collection.ingest.summary import RunProgress, Summary
from tidelog.collection.ingest.turns import Turns
from tidelog.collection.maintenance import Maintenance
from tidelog.collection.spec_types import SourceSpec
from tidelog.collection.table.alteration import Alteration
from tidelog.collection.upstream import open_any
from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind, check_whole
from tidelog.core.clock import Clock
from tidelog.errors import RenditionSucceeded, UsageError
from tidelog.persist.handle.argument_checks import check_flag
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes


@refuses_writes()
@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All sources of a location."""

    store: Store
    consensus: Consensus
    clock: Clock
    controller: Controller
    maintenance: Maintenance
    url: str  # The location's URL: a source of files must not read the location's own objects.
    ingest_store: Store

    async def create(self, spec: SourceSpec) -> SourceInfo:
        """Create a source and the collection that it feeds.

        Raises:
            UsageError: a setting is invalid; the message names the correction. NOT_APPLIED.
            NameTaken: a source of the name exists. NOT_APPLIED.
        """
        check_kind(spec, SourceSpec, "the spec of a source must be a tidelog.SourceSpec")
        spec.check()
        resolved = await resolve_spec(
            spec,
            location_url=self.url,
            clock=self.clock,
            store=self.store,
            collections=self.maintenance.collections,
        )
        return await self.add(*resolved)

    async def add(
        self, collection: CollectionInfo, rendition: RenditionInfo, info: SourceInfo
    ) -> SourceInfo:
        """Create a source from resolved settings; see `create`."""
        await self.controller.create_source(collection, rendition, info)
        source = open_any(
            info,
            rendition.data_schema,
            store=self.store,
            clock=self.clock,
            collections=self.maintenance.collections,
        )
        await source.hold({}, make=True)
        return info

    async def find(self, name: str) -> tuple[SourceInfo, RenditionInfo]:
        """Return the settings of a source, and the rendition that it feeds.

        The name of a collection stands for the source of its active rendition.

        Raises:
            NoSuchCollection: no source has the name.
        """
        catalog = await self.controller.catalog()
        info = catalog.source(name)
        return info, catalog.renditions[info.rendition]

    async def list(self) -> builtins.list[str]:
        """Return the names of all sources, in order."""
        return sorted((await self.controller.catalog()).sources)

    async def drop(self, name: str) -> None:
        """Drop a source and its collection, or finish a drop that was interrupted.

        Raises:
            NoSuchCollection: no source has the name.
        """
        catalog = await self.controller.catalog()
        # The first rendition of a collection, and with it the source of its name, may be dropped.
        is_there = name in catalog.collections or name in catalog.sources
        if is_there or not await self.maintenance.unreleased(name):
            await self.controller.drop_source(name)
        await self.maintenance.release_all(name)

    async def alter(
        self,
        name: str,
        *,
        add: pa.Schema | str | None = None,
        drop: Sequence[str] = (),
        discard_values: bool = False,
    ) -> tuple[SourceInfo, RenditionInfo]:
        """Add columns to a source and its collection, and drop columns; return them as `find` does.

        ``add`` is an Arrow schema or text, such as ``'size double, note varchar'``. New columns
        come last. They have values in the rows of data that appear after this call, and are null in
        earlier rows. A running ingester continues with the new columns. A column that has a value
        at a readable time is dropped only with ``discard_values``; the ingester then counts its
        values as dropped. A name is used once: a dropped column cannot be added again.

        A repeated call of the newest alteration changes nothing.

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: a column cannot be added or dropped, or has values. NOT_APPLIED.
            LocationError: the store failed; call again.
        """
        change = Alteration.of(add, drop)
        check_flag(discard_values, "discard_values")
        info, rendition = await self.find(name)
        if altered_source(change, rendition, info) == rendition:
            # The first call may have been killed before its announcement.
            await self.controller.announce(name)
            return info, rendition
        await check_columns_of_kind(change, info, store=self.store, clock=self.clock)
        if not discard_values:
            await check_no_values(self._collection(info, rendition), change)
        await self.controller.alter_source(name, partial(altered_source, change))
        return await self.find(name)

    def _collection(self, info: SourceInfo, rendition: RenditionInfo) -> Collection:
        return Collection(
            name=info.name,
            rendition=rendition,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )

    async def skip(self, name: str, path: str) -> None:
        """Continue a source without messages that are gone: of a file, or of a path of its kind.

        Each lost range becomes one bad row, with its addresses (docs/guides/follow-a-folder.md).

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: the source did not stop at that path.
        """
        await skip_lost(await self.ingester(name), path)

    async def acknowledge(self, name: str, *paths: str) -> None:
        """Remove a source's reports about the files ``paths``, or all reports without ``paths``.

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: no report is about a path.
        """
        info, _ = await self.find(name)
        await acknowledge(self.store, info.id, paths)

    async def ingest(
        self,
        name: str,
        *,
        engine: Engine | None = None,
        bytes_max: int | None = None,
        strict: bool = False,
        final: bool = False,
        on_tick: Callable[[RunProgress], None] | None = None,
    ) -> Summary:
        """Ingest a source up to its present head; the caller gets the progress of each tick.

        ``final`` states that no more data will come, as ``tidelog ingest --final`` does; see
        `ingester` for the other arguments.

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: an argument is invalid.
            LocationError: a store failed several times; commits made before remain.
        """
        ingester = await self.ingester(
            name, engine=engine, bytes_max=bytes_max, strict=strict, final=final
        )
        return await run_ingest(
            ingester,
            follow=False,
            interval_us=0,
            on_tick=on_tick or (lambda _: None),
            stop=lambda: False,
        )

    async def ingest_all(
        self,
        *,
        engine: Engine | None = None,
        bytes_max: int | None = None,
        strict: bool = False,
        final: bool = False,
        on_tick: Callable[[str, RunProgress], None] | None = None,
    ) -> dict[str, Summary]:
        """Ingest all sources up to their present heads; return the results by name.

        The sources tick in turn, so a large one does not delay the others until its end. A failed
        source does not stop the others. ``on_tick`` gets the name of the source first; see `ingest`
        for the other arguments. A source that another process drops may be missing in the result.

        Raises:
            SourcesFailed: sources failed, and the others were ingested; ``failed`` has the errors.
            UsageError: an argument is invalid.
            LocationError: the catalog cannot be read.
        """
        _check_options(engine, bytes_max)
        turns = Turns()

        async def run(name: str, tell: Callable[[RunProgress], None]) -> Summary:
            async with turns.tick():
                ingester = await self.ingester(
                    name, engine=engine, bytes_max=bytes_max, strict=strict, final=final
                )
            return await run_ingest(
                ingester,
                follow=False,
                interval_us=0,
                on_tick=tell,
                stop=lambda: False,
                turns=turns,
            )

        runs = AllSources(
            controller=self.controller,
            clock=self.clock,
            run=run,
            on_tick=on_tick or ignore,
        )
        results = await runs.go()
        results.check()
        return dict(results.summaries)

    async def check(
        self,
        name: str,
        *,
        since: When | None = None,
        until: When | None = None,
        engine: Engine | None = None,
        on_binding: Callable[[SourceCheck], None] | None = None,
    ) -> SourceCheck:
        """Compute a source's rows again from its data, and compare them with the stored ones.

        The check ends at the first binding with other rows; ``SourceCheck.first`` is then their
        first time. It begins with the binding that has the time ``since``, and ends with the one
        that has ``until``. The default is all bindings that can be computed again. Intervals
        whose data are gone are listed, and do not count as differences.

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: no binding at these times can be computed again.
            LocationError: a store failed, or Spark.
        """
        _check_options(engine, None)
        now = self.clock.now_us()
        return await check_source(
            await self._reading(name, engine),
            since=None if since is None else parse_time(since, what="since", now_us=now),
            until=None if until is None else parse_time(until, what="until", now_us=now),
            on_binding=on_binding or (lambda _: None),
        )

    async def status(self, name: str) -> SourceStatus:
        """Return the progress of a source, also of a former rendition. Write nothing.

        Raises:
            NoSuchCollection: no source has the name. LocationError: the location's store failed.
        """
        return await source_status(await self._reading(name))

    async def get_binding(self, name: str, path: str, address: int) -> BoundAddresses:
        """Return the time of a message of a source, before or after its ingestion.

        If no ingester has given the address a time yet, this call does. All ingesters obey it. The
        source must have times from the clock. For files, an address is an offset in bytes of the
        text, decompressed. The call may give times to other new data, too.

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: the rows have times of their own, or the source has no message there.
            AsOfBeforeSince: the source has forgotten the time; see ``keep_bindings``.
            GoneError, SourceRewritten: data that wait for their commit are lost.
            RenditionSucceeded: readers read another rendition.
            LocationError: a store failed.
        """
        check_kind(path, str, "the path of a message must be a str, as in 'source status'")
        check_whole(address, "address")
        return await find_binding(await self.ingester(name), path, address)

    async def ingester(
        self,
        name: str,
        *,
        engine: Engine | None = None,
        bytes_max: int | None = None,
        strict: bool = False,
        final: bool = False,
    ) -> Ingester:
        """Return an ingester of a source, which has read the states of the shards.

        With ``final``, the last record of a text file counts as complete without a line end, and
        rows held back for lateness are ingested. Without it, only a json object may lack the line
        end of the last record.

        Units: ``bytes_max`` is the approximate size of a tick in bytes of the source; the engine
            sets the default.

        Raises:
            NoSuchCollection: no source has the name.
            UsageError: an argument has the wrong type.
        """
        _check_options(engine, bytes_max)
        engine = engine or LocalEngine(store=self.ingest_store, clock=self.clock)
        bytes_max = bytes_max or engine.tick_bytes
        opened = partial(
            self._opened, engine=engine, bytes_max=bytes_max, strict=strict, final=final
        )
        return await self._needed(name, opened, settles=True)

    async def _needed(
        self, name: str, opened: Callable[[str], Awaitable[Ingester]], *, settles: bool
    ) -> Ingester:
        """Return the ingester of the rendition whose rows readers of a source's collection need.

        With ``settles``, do what follows a handover once all times before it are complete.
        """
        while True:
            ingester = await opened(name)
            try:
                await ingester.refresh()
                return ingester
            except RenditionSucceeded:
                of = ingester.rendition.collection
                if settles:
                    await self._settled(of)
                # The catalog may not have the handover yet, or another process has dropped the
                # successor of this rendition.
                successor = await self._successor(ingester)
                if name != of or successor is None:
                    raise
                name = successor

    async def _settled(self, of: str) -> None:
        """Record the handovers of a collection in the catalog, and release their holds."""
        handovers = Handovers(
            clock=self.clock,
            controller=self.controller,
            collections=self.maintenance.collections,
        )
        await handovers.settled(of)

    async def _reading(self, name: str, engine: Engine | None = None) -> Ingester:
        """Return an ingester that only reads; so it may be that of a former rendition."""
        engine = engine or LocalEngine(store=self.ingest_store, clock=self.clock)
        opened = partial(
            self._opened, engine=engine, bytes_max=engine.tick_bytes, strict=False, final=False
        )
        try:
            return await self._needed(name, opened, settles=False)
        except RenditionSucceeded:
            ingester = await opened(name)
            with suppress(RenditionSucceeded):
                await ingester.refresh()
            return ingester

    async def _opened(
        self, name: str, *, engine: Engine, bytes_max: int, strict: bool, final: bool
    ) -> Ingester:
        """Return an ingester that has not read the states of its shards yet."""
        catalog = await self.controller.catalog()
        info = catalog.source(name)
        rendition = catalog.renditions[info.rendition]
        schema = rendition.data_schema
        source = open_any(
            info,
            schema,
            store=self.store,
            clock=self.clock,
            collections=self.maintenance.collections,
            final=final,
        )
        # Skipped files count neither as work left nor as a reason to start Spark.
        source.pass_over(frozenset(info.skipped))
        return Ingester(
            info=info,
            rendition=rendition,
            source=source,
            engine=engine,
            store=self.ingest_store,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            former=self._copied(catalog, info),
            _skipped=frozenset(info.skipped),
            bytes_max=bytes_max,
            strict=strict,
            final=final,
        )

    def _copied(self, catalog: Catalog, info: SourceInfo) -> CopiedShards | None:
        """Return the shards that a source's rendition copies, or has copied, unless dropped."""
        rendition = catalog.renditions[info.rendition]
        former = catalog.copied_by(rendition)
        if former is None:
            return None
        return CopiedShards(
            info=info,
            rendition=former,
            hold=copy_hold(rendition),
            store=self.ingest_store,
            consensus=self.consensus,
            clock=self.clock,
        )

    async def _successor(self, ingester: Ingester) -> str | None:
        """Return the name of the rendition to which an ingester's one was handed over."""
        mark = ingester.outputs[0].state.mark
        found = (await self.controller.catalog()).renditions
        return found[mark.successor].called if mark and mark.successor in found else None


def _check_options(engine: Engine | None, bytes_max: int | None) -> None:
    if isinstance(engine, str):
        raise UsageError(
            "engine must be an object such as SparkEngine(spark, location_url=url), or None to "
            "use this process",
            engine=engine,
        )
    if bytes_max is not None:
        check_whole(bytes_max, "bytes_max")
