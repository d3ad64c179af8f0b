"""The renditions of a location's collections: create, list, compare, hand over and drop them.

A rendition is one complete version of a collection. A new one is computed next to the one that
readers read. A handover then changes the readers over, at one time and for all of them.

Each command is a sequence of steps, and each step is one atomic write. If a process dies in
between, the same command, called again, does the rest.
Source: storage, "Renditions"; design page 6, "Collection, rendition, handover".
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pyarrow as pa
from msgspec import UNSET

from tidelog.collection.catalog.catalog import (
    Catalog,
    Era,
    RenditionInfo,
    SourceInfo,
)
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.collection import Collection
from tidelog.collection.collections import Collections
from tidelog.collection.crossing import check_comparable
from tidelog.collection.following import checked_patience
from tidelog.collection.formats.times import When, parse_time
from tidelog.collection.handover import Handovers, is_own
from tidelog.collection.hold_all import drop_hold
from tidelog.collection.ingest.copying import CopiedShards, copy_hold, is_of_copy
from tidelog.collection.maintenance import Maintenance
from tidelog.collection.rendition_spec import RenditionSpec, resolve_rendition
from tidelog.collection.upstream import open_any
from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock
from tidelog.core.ids import ShardId
from tidelog.errors import AsOfNotComplete, HandoverRefused, UsageError
from tidelog.persist.format.part import negated, with_one_time
from tidelog.persist.format.schema import TIME
from tidelog.persist.format.updates import consolidate
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.persist.states.handover import (
    check_retirable,
    decide_bar,
    decide_retire,
)
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes


@dataclass(frozen=True, slots=True, kw_only=True)
class RenditionFacts:
    """A rendition: the times at which readers read it, and its own times.

    Units: milliseconds since 1970. Readers read it from ``begins`` on, before ``ends``. ``begins``
        is None if they do not read it yet, and ``ends`` if it has no successor. ``upper`` is None
        after the last time. ``copied_from`` names the rendition whose rows it has copied, or does
        copy; it is None if that one was dropped. ``is_copy`` is True then, too.
    """

    name: str
    collection: str
    id: str
    shards: int
    active: bool
    begins: int | None
    ends: int | None
    since: int | None
    upper: int | None
    shares_bindings: bool
    dropping: bool
    copied_from: str | None = None
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class RenditionChange:
    """One row of the history: from a time on, readers read a rendition (+1), or no longer (-1)."""

    rendition: str
    time: int
    diff: int


@refuses_writes()
@dataclass(frozen=True, slots=True, kw_only=True)
class Renditions:
    """All renditions of a location."""

    store: Store
    consensus: Consensus
    clock: Clock
    controller: Controller
    collections: Collections
    maintenance: Maintenance

    @property
    def _handovers(self) -> Handovers:
        return Handovers(clock=self.clock, controller=self.controller, collections=self.collections)

    async def create(self, spec: RenditionSpec, *, of: str) -> RenditionFacts:
        """Create a rendition of a collection, next to the one that readers read.

        It is empty: an ingester fills it from the source, by the name of the rendition. With
        ``copy``, the ingester first copies the rows of the active rendition, so these need not be
        in the source.

        Raises:
            NoSuchCollection: no source feeds a collection of this name. NOT_APPLIED.
            NameTaken: a collection or a rendition has the name. NOT_APPLIED.
            UsageError: an option is wrong. NOT_APPLIED.
            SchemaEvolved: another process has altered the collection; call again. NOT_APPLIED.
        """
        check_kind(spec, RenditionSpec, "the spec of a rendition must be a tidelog.RenditionSpec")
        spec.check()
        active = await self._handovers.active(of)
        base = (await self.controller.catalog()).feeder(active.rendition.id)
        if spec.copy:
            await self._check_whole(active.rendition)
        rendition, info = resolve_rendition(spec, base, active.rendition, clock=self.clock)
        await self.controller.add_rendition(rendition, info, of=active.rendition)
        if spec.copy:
            # A call that dies before this leaves it to the first ingester.
            copied = self._copied(info, rendition, active.rendition)
            await copied.refresh()
            await copied.keep(self._shard(rendition.remap))
        source = open_any(
            info,
            rendition.data_schema,
            store=self.store,
            clock=self.clock,
            collections=self.collections,
        )
        await source.hold({}, make=True)
        return await self.describe(spec.name)

    def _copied(
        self, info: SourceInfo, rendition: RenditionInfo, former: RenditionInfo
    ) -> CopiedShards:
        return CopiedShards(
            info=info,
            rendition=former,
            hold=copy_hold(rendition),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )

    def _shard(self, shard_id: str | None) -> Shard:
        return Shard(
            id=ShardId(shard_id or ""),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )

    async def _is_whole(self, rendition: RenditionInfo) -> bool:
        """Return True unless a rendition still copies rows of another one."""
        if rendition.copies is UNSET:
            return True
        return rendition.ingest_hold in (await self._shard(rendition.remap).refresh()).holds

    async def _check_whole(self, rendition: RenditionInfo) -> None:
        if not await self._is_whole(rendition):
            name = rendition.called
            raise UsageError(
                f"the rendition {name!r} is a copy that is not complete, so it cannot be copied: "
                f"run 'tidelog ingest {name}' first"
            )

    async def _release_copies(self, former: RenditionInfo) -> None:
        """Release the holds that complete and dropped copies have left on the rendition to drop.

        Raises:
            HandoverRefused: a copy is not complete.
        """
        shards = [self._shard(one) for one in former.roles]
        held = {name for one in shards for name in (await one.refresh()).holds if is_of_copy(name)}
        # A copy is in the catalog before its holds.
        copies = (await self.controller.catalog()).copies_of(former)
        for one in copies:
            if not await self._is_whole(one):
                raise HandoverRefused(
                    f"the rendition {one.called!r} still copies the rows of {former.called!r}: "
                    f"ingest it with 'tidelog ingest {one.called}', or drop it first"
                )
        for name in sorted(held):
            await drop_hold(shards, name)

    async def _let_go(self, catalog: Catalog, rendition: RenditionInfo) -> None:
        """Release the holds of a rendition to drop on the shards of others."""
        former = catalog.copied_by(rendition)
        if former is not None:
            info = catalog.feeder(rendition.id)
            await self._copied(info, rendition, former).release(self._shard(rendition.remap))
        if catalog.sharing(rendition):
            await self._shard(rendition.remap).drop_hold(rendition.ingest_hold)

    async def list(self, of: str) -> builtins.list[RenditionFacts]:
        """Return the renditions of a collection, oldest first.

        Raises:
            NoSuchCollection: no collection has the name. LocationError: the store failed.
        """
        eras = (await self._handovers.active(of)).eras
        catalog = await self.controller.catalog()
        listed = catalog.collection(of).renditions
        return [await self._facts(catalog, catalog.renditions[one], eras) for one in listed]

    async def describe(self, name: str) -> RenditionFacts:
        """Return the facts about a rendition.

        Raises:
            NoSuchCollection: no rendition has the name. LocationError: the store failed.
        """
        of = (await self.controller.catalog()).rendition(name).collection
        eras = (await self._handovers.active(of)).eras
        catalog = await self.controller.catalog()
        return await self._facts(catalog, catalog.rendition(name), eras)

    async def history(self, of: str) -> tuple[builtins.list[RenditionChange], int | None]:
        """Return the changes of a collection from rendition to rendition, and their upper.

        Before the upper (None: for all times), no other change will come.

        Raises:
            NoSuchCollection: no collection has the name. LocationError: the store failed.
        """
        active = await self._handovers.active(of)
        eras = _eras_of((await self.controller.catalog()).collection(of).eras, active)
        found = [RenditionChange(eras[0].name, eras[0].begins, +1)]
        for before, after in pairwise(eras):
            found.append(RenditionChange(before.name, after.begins, -1))
            found.append(RenditionChange(after.name, after.begins, +1))
        return found, active.first_shard.state.upper

    async def diff(self, one: str, other: str, *, as_of: When | None = None) -> pa.Table:
        """Return the updates in which two renditions differ up to a time, in time order.

        An update of only the second rendition has its own diff, and one of only the first has the
        negated one. The default time is the newest that is complete in both. Times before the
        greatest since of both count as that time.

        Raises:
            NoSuchCollection: no rendition has the name. LocationError: the store failed.
            UsageError: the columns of the renditions differ.
            AsOfBeforeSince, AsOfNotComplete: the time is not readable in both.
        """
        catalog = await self.controller.catalog()
        pair = [self.collections.of_rendition(catalog, catalog.rendition(n)) for n in (one, other)]
        check_comparable((one, pair[0].schema), (other, pair[1].schema))
        until = min([await each.resolve_as_of(as_of) for each in pair])
        since = max(each.since.time for each in pair)
        if since > until:
            raise AsOfNotComplete(
                "the renditions have no common readable time: ingest the one that is behind"
            )
        tables: builtins.list[pa.Table] = []
        schema = pair[0].schema  # That of the second may have another order, by its key.
        names = [name for name in schema.updates.names if name != TIME]
        for each in pair:
            tables = [negated(table) for table in tables]  # Those of the first rendition.
            async for piece in each.contents(each.reading(ALL_ROWS), since):
                tables.append(with_one_time(piece.select(names), since, schema.updates))
            async for piece in each.changes_of(each.reading(ALL_ROWS), since, until):
                tables.append(piece.select(schema.updates.names).cast(schema.updates))
        return await self.clock.offload(partial(consolidate, tables, schema))

    async def handover(
        self,
        of: str,
        *,
        to: str,
        at: When | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> int:
        """Let all readers of a collection read another rendition from one time on; return the time.

        Two conditions hold at that time (default: the upper of the rendition that readers read):
        no reader can have read it yet, and the other rendition is complete before it and readable
        at it. With ``wait``, the call waits until they hold; ``timeout_us`` ends the wait, and
        alone implies ``wait``.

        Raises:
            HandoverRefused: a condition does not hold, or another handover was first. NOT_APPLIED.
            NoSuchCollection: no collection or rendition has the name. NOT_APPLIED.
            DeadlineExceeded: the conditions did not hold in time. NOT_APPLIED.
            LocationError: the store failed; call again.
        """
        patience = checked_patience(wait, timeout_us)
        asked = None if at is None else parse_time(at, what="at", now_us=self.clock.now_us())
        return await self._handovers.make(of, to=to, asked=asked, patience=patience)

    async def drop(self, name: str) -> None:
        """Drop a rendition that is not the active one; finish a drop that began.

        The drop of a former rendition gives up the times at which readers read it. It is refused
        while a hold keeps such a time.

        Raises:
            NoSuchCollection: no rendition has the name.
            UsageError: readers read it. HandoverRefused: a hold keeps its times. NOT_APPLIED.
            LocationError: the store failed; call again.
        """
        catalog = await self.controller.catalog()
        is_ended = all(name != one.called for one in catalog.renditions.values())
        if is_ended and await self.maintenance.release_all(name):
            return
        of = catalog.rendition(name).collection
        active = await self._handovers.settled(of)
        handle = self.collections.of_rendition(catalog, catalog.rendition(name))
        await handle.refresh()
        await self._release_copies(handle.rendition)
        await handle.refresh()
        holder = of if any(one.rendition.called == name for one in active.eras) else name
        check_retirable(handle.first_shard.state, is_own, holder)
        _check_oldest(active, name)
        rendition = await self.controller.set_dropping(name, dropping=True)
        if not await self._is_droppable(of, rendition):
            await self.controller.set_dropping(name, dropping=False)
            raise UsageError(
                f"a handover to {name!r} was first: readers of {of!r} read it, so it stays"
            )
        try:
            decide = partial(decide_retire, is_own=is_own, name=holder)
            await handle.first_shard.machine.commit(decide)
        except HandoverRefused:
            await self.controller.set_dropping(name, dropping=False)
            raise
        catalog = await self.controller.catalog()
        await self._let_go(catalog, rendition)
        await self.controller.drop_rendition(name)
        await self._let_go(catalog, rendition)  # Its ingester may have placed them again.
        await self.maintenance.release_all(name)

    async def _is_droppable(self, of: str, rendition: RenditionInfo) -> bool:
        """Bar a rendition from handovers; return False if readers read it already.

        The active rendition may change meanwhile, so the bar is on the one that is active then.
        """
        while True:
            active = await self._handovers.active(of)
            if active.rendition.id == rendition.id:
                return False
            decide = partial(decide_bar, successor=rendition.id)
            if await active.first_shard.machine.commit(decide) is None:
                return True

    async def _facts(
        self,
        catalog: Catalog,
        rendition: RenditionInfo,
        eras: builtins.list[Collection],
    ) -> RenditionFacts:
        handle = self.collections.of_rendition(catalog, rendition)
        await handle.refresh()
        era = next((one for one in eras if one.rendition.id == rendition.id), None)
        since, upper, former = handle.since, handle.upper, catalog.copied_by(rendition)
        return RenditionFacts(
            name=rendition.called,
            collection=rendition.collection,
            id=rendition.id,
            shards=len(rendition.shards),
            active=era is eras[-1],
            begins=None if era is None else era.begins,
            ends=None if era is None else era.ends,
            since=None if since.is_empty else since.time,
            upper=None if upper.is_empty else upper.time,
            shares_bindings=bool(catalog.sharing(rendition)),
            dropping=rendition.dropping is True,
            copied_from=None if former is None else former.called,
            is_copy=rendition.copies is not UNSET,
        )


def _check_oldest(active: Collection, name: str) -> None:
    """Check that no rendition is read before the one of a name, if readers read that one.

    Raises:
        UsageError: one is. Its times would become unreadable, too.
    """
    read = [one.rendition.called for one in active.eras]
    if name in read[1:]:
        raise UsageError(
            f"readers read {read[0]!r} before {name!r}, and its times would become unreadable, "
            f"too: drop {read[0]!r} first"
        )


def _eras_of(listed: tuple[Era, ...], active: Collection) -> list[Era]:
    """Return the eras that the catalog lists, and those that only marks record."""
    known = {era.rendition for era in listed}
    found = [Era(one.rendition.id, one.begins, one.rendition.called) for one in active.eras]
    return [*listed, *(era for era in found if era.rendition not in known)]
