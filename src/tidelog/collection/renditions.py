"""The renditions of a location's collections: create, list, compare, hand over and drop them.

A rendition is one complete version of a collection. A new one is computed next to the one that
readers read. A handover then changes the readers over, at one time and for all of them.

Each command is a sequence of steps, and each step is one atomic write. If a process dies in
between, the same command, called again, does the rest.
Source: storage, "Renditions"; design page 6, "Collection, rendition, handover".
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

import pyarrow as pa
from msgspec import UNSET

from tidelog.collection.catalog.catalog import (
    INGEST_HOLD,
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
from tidelog.collection.formats.times import When, format_time, parse_time
from tidelog.collection.hold_all import carry_over, drop_hold, place_hold
from tidelog.collection.ingest.copying import CopiedShards, copy_hold, is_of_copy
from tidelog.collection.maintenance import Maintenance
from tidelog.collection.rendition_spec import RenditionSpec, resolve_rendition
from tidelog.collection.unfinished import HANDOVER_HOLD
from tidelog.collection.upstream import open_any
from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.errors import AsOfNotComplete, DeadlineExceeded, HandoverRefused, UsageError
from tidelog.persist.format.part import negated, with_one_time
from tidelog.persist.format.schema import TIME
from tidelog.persist.format.updates import consolidate
from tidelog.persist.handle.listening import NotYet, Patience, poll
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.persist.states.handover import (
    check_retirable,
    decide_bar,
    decide_mark,
    decide_retire,
)
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.persist.states.state import HoldKind, Mark
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes

_TO_ANOTHER: Final = "hand over to another rendition"
_OWN_HOLDS: Final = (HISTORY_HOLD, INGEST_HOLD)


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
        active = await self._active(of)
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
        eras = (await self._active(of)).eras
        catalog = await self.controller.catalog()
        listed = catalog.collection(of).renditions
        return [await self._facts(catalog, catalog.renditions[one], eras) for one in listed]

    async def describe(self, name: str) -> RenditionFacts:
        """Return the facts about a rendition.

        Raises:
            NoSuchCollection: no rendition has the name. LocationError: the store failed.
        """
        of = (await self.controller.catalog()).rendition(name).collection
        eras = (await self._active(of)).eras
        catalog = await self.controller.catalog()
        return await self._facts(catalog, catalog.rendition(name), eras)

    async def history(self, of: str) -> tuple[builtins.list[RenditionChange], int | None]:
        """Return the changes of a collection from rendition to rendition, and their upper.

        Before the upper (None: for all times), no other change will come.

        Raises:
            NoSuchCollection: no collection has the name. LocationError: the store failed.
        """
        active = await self._active(of)
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
        begun_us = self.clock.monotonic_us()
        while True:
            active = await self._settled(of)
            catalog = await self.controller.catalog()
            target = catalog.rendition(to)
            done = active.begins if active.rendition.id == target.id else None
            if done and asked in (None, done):
                return done
            check_target(active, target)
            latter = self.collections.of_rendition(catalog, target)
            if timeout_us is not None:
                left_us = timeout_us - (self.clock.monotonic_us() - begun_us)
                patience = replace(patience, timeout_us=max(0, left_us))
            time = await self._time_of(active, latter, asked, patience)
            try:
                await self._mark(active, latter, time)
            except HandoverRefused:
                state = active.first_shard.state
                if asked is not None or state.mark or state.upper_frontier <= Frontier.at(time):
                    raise
                continue  # The upper has passed the time that this call chose.
            await self._settled(of)
            return time

    async def _time_of(
        self, active: Collection, latter: Collection, asked: int | None, patience: Patience
    ) -> int:
        """Return the time of a handover whose conditions hold, by the newest states.

        Raises:
            HandoverRefused, DeadlineExceeded: they do not hold.
        """
        first, name, behind = active.first_shard, latter.rendition.called, ""

        async def look() -> int | NotYet:
            nonlocal behind
            await active.refresh()
            await latter.refresh()
            upper, reached = first.state.upper_frontier, latter.upper
            if upper.is_empty:
                raise HandoverRefused("all times of the collection are complete: none is left")
            time = upper.time if asked is None else asked
            if active.begins and time <= active.begins:
                raise HandoverRefused(
                    f"the last handover is at {format_time(active.begins)}, and no reader has read "
                    "its rendition yet: ingest it first"
                )
            if not upper <= Frontier.at(time):
                raise HandoverRefused(
                    "readers may have read the collection at that time, because it is complete: "
                    f"pass at least {format_time(upper.time)}, or leave out the time",
                    asked=format_time(time),
                )
            if latter.since.is_empty:
                raise HandoverRefused(f"{name!r} was dropped meanwhile: {_TO_ANOTHER}")
            if not latter.since <= Frontier.at(time):
                since = format_time(latter.since.time)
                behind = f"{name!r} is readable since {since} only: pass that time or a later one"
                if asked is None and patience.waits:
                    return NotYet(upper)  # The rendition that readers read is behind the other.
                raise HandoverRefused(behind if asked else f"{behind}, or wait")
            if Frontier.at(time) <= reached:
                return time
            behind = _behind(name, reached, time)
            if patience.waits:
                return NotYet(reached)
            raise HandoverRefused(f"{behind}, or wait")

        try:
            return await poll(self.clock, look, 0 if asked is None else asked, patience)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{behind}, or wait longer") from error

    async def _mark(self, active: Collection, latter: Collection, time: int) -> None:
        """Make the mark, while a hold keeps its time readable in the other rendition.

        Raises:
            HandoverRefused: a reader may have read that time, another handover was first, or the
                time is no longer readable in the other rendition.
        """
        hold = f"{HANDOVER_HOLD}{time}"
        try:
            await place_hold(latter.all_shards, hold, Frontier.at(time))
        except UsageError as error:  # A merge or a drop was faster.
            await drop_hold(latter.all_shards, hold)
            raise HandoverRefused(
                f"{latter.rendition.called!r} is no longer readable at {format_time(time)}: begin "
                "again, with a later time",
                found=str(error),
            ) from error
        mark = Mark(time, latter.rendition.id)
        try:
            await active.first_shard.machine.commit(partial(decide_mark, mark=mark))
        except HandoverRefused:
            await drop_hold(latter.all_shards, hold)
            raise

    async def _settled(self, of: str) -> Collection:
        """Do what follows each mark, and return the newest handle of the collection.

        The holds of readers go to the other rendition. A hold that is placed later is on both,
        because its owner meets the mark. Then the catalog gets a copy of the mark, once the former
        rendition is complete.
        """
        active = await self._active(of)
        recorded = {era.rendition for era in (await self.controller.catalog()).collection(of).eras}
        for era in active.eras:
            former = era.former
            if former is None or era.rendition.id in recorded:
                continue
            for name in await _holds_of_readers(former):
                await carry_over(former.first_shard, era.all_shards, name, era.begins)
            held = {name for shard in era.all_shards for name in shard.state.holds}
            for name in sorted(held):
                if name.startswith(HANDOVER_HOLD):
                    await drop_hold(era.all_shards, name)
            if not former.is_complete:
                break
            info = era.rendition
            await self.controller.record_handover(of, Era(info.id, era.begins, info.called))
        return active

    async def drop(self, name: str) -> None:
        """Drop a rendition that readers do not read yet, or no longer; finish a drop that began.

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
        active = await self._settled(of)
        handle = self.collections.of_rendition(catalog, catalog.rendition(name))
        await handle.refresh()
        await self._release_copies(handle.rendition)
        await handle.refresh()
        check_retirable(handle.first_shard.state, _is_own)
        _check_oldest(active, name)
        rendition = await self.controller.set_dropping(name, dropping=True)
        if not await self._is_droppable(of, rendition):
            await self.controller.set_dropping(name, dropping=False)
            raise UsageError(
                f"a handover to {name!r} was first: readers of {of!r} read it, so it stays"
            )
        try:
            await handle.first_shard.machine.commit(partial(decide_retire, is_own=_is_own))
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
            active = await self._active(of)
            if active.rendition.id == rendition.id:
                return False
            decide = partial(decide_bar, successor=rendition.id)
            if await active.first_shard.machine.commit(decide) is None:
                return True

    async def _active(self, of: str) -> Collection:
        """Return the newest handle of a collection.

        Raises:
            NoSuchCollection: no collection has the name.
            UsageError: it is a table, or the bad rows of a source.
        """
        catalog = await self.controller.catalog()
        catalog.collection(of)
        found = self.collections.opened(catalog, of)
        if found.table is not None:
            raise UsageError(
                f"{of!r} is a table: only a collection that a source feeds can have several "
                "renditions"
            )
        await found.refresh()
        return found

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


def _behind(name: str, reached: Frontier, time: int) -> str:
    """Return the reason against a handover to an incomplete rendition."""
    remedy = f"run 'tidelog ingest {name}'"
    if reached == Frontier.at(0):
        return f"the rendition {name!r} has no complete time yet: {remedy}"
    return (
        f"the rendition {name!r} is complete up to {format_time(reached.time - 1)}, and the "
        f"handover would be at {format_time(time)}: {remedy}"
    )


def check_target(active: Collection, target: RenditionInfo) -> None:
    """Check that readers of a collection can change to a rendition.

    Raises:
    HandoverRefused: it is of another collection, was read before, or is being dropped.
    """
    if target.collection != active.rendition.collection:
        raise HandoverRefused(
            f"{target.called!r} is a rendition of {target.collection!r}, not of "
            f"{active.rendition.collection!r}: name a rendition of that collection"
        )
    if any(target.id == era.rendition.id for era in active.eras):
        raise HandoverRefused(
            f"readers read the rendition {target.called!r} now, or did before an earlier handover: "
            "create a new rendition"
        )
    former = active.former
    if former is not None and not former.upper.passed(active.begins - 1):
        name = active.rendition.collection
        raise HandoverRefused(
            f"the last handover of {name!r}, at {format_time(active.begins)}, waits for the times "
            f"before it: complete them with 'tidelog ingest {name}', and begin again"
        )
    if target.dropping is True:
        raise HandoverRefused(f"the drop of {target.called!r} has begun: {_TO_ANOTHER}")


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


def _is_own(hold: str) -> bool:
    """Return True if a hold of a rendition is not one of its readers."""
    return hold in _OWN_HOLDS or hold.startswith(HANDOVER_HOLD)


async def _holds_of_readers(former: Collection) -> list[str]:
    """Return the names of the holds on a former rendition that only their owners end."""
    found: dict[str, None] = {}
    for shard in former.all_shards:
        state = await shard.refresh()
        found |= dict.fromkeys(
            name
            for name, hold in state.holds.items()
            if hold.kind is HoldKind.CRITICAL and not _is_own(name) and not is_of_copy(name)
        )
    return list(found)


def _eras_of(listed: tuple[Era, ...], active: Collection) -> list[Era]:
    """Return the eras that the catalog lists, and those that only marks record."""
    known = {era.rendition for era in listed}
    found = [Era(one.rendition.id, one.begins, one.rendition.called) for one in active.eras]
    return [*listed, *(era for era in found if era.rendition not in known)]
