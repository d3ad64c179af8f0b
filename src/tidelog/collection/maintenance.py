"""Maintenance of a location's shards: merges of batches, and deletion of garbage.

Any number of processes may do it concurrently with readers and writers. The state of a shard
decides each merge and each deletion. If a process dies, the next one does the work again.
Source: design page 4, "Compaction and collection".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidelog.collection.catalog.catalog import COLLECTION, Catalog, SourceInfo, is_gone
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.catalog.lost import is_of_source
from tidelog.collection.catalog.retention import move_history
from tidelog.collection.collections import Collections
from tidelog.collection.hold_all import move_ingest_hold
from tidelog.collection.ingest.expiry import expiries_of
from tidelog.collection.ingest.health import STATUS, health_path
from tidelog.collection.ingest.notes import notes_path
from tidelog.collection.source.kinds import release_source
from tidelog.collection.table.direct import DIRECT
from tidelog.collection.table.registering import drop_shard
from tidelog.collection.unfinished import (
    UnfinishedCommand,
    shards_to_look_at,
    unfinished_commands,
)
from tidelog.collection.upstream import release_upstream
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier, meet
from tidelog.core.ids import (
    CATALOG_SHARD,
    TABLES,
    NamedKind,
    ShardId,
    name_of,
    named_id,
    transactions_id,
)
from tidelog.errors import NoSuchCollection, UsageError
from tidelog.machine.record import rollup_seqno
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.compactor import HERE, CompactionReport, compact
from tidelog.persist.maintenance.merger import Merger
from tidelog.persist.maintenance.merging import Expiry
from tidelog.persist.maintenance.sweeper import usage_of_shard
from tidelog.persist.maintenance.usage import ShardUsage
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.state import Hold, State
from tidelog.persist.transactions.applier import complete_state
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.store.probe import delete_old_probes

if TYPE_CHECKING:
    from tidelog.persist.maintenance.part_checks import PartChecker
    from tidelog.persist.maintenance.scrub import ShardScrubReport

CATALOG_NAME: Final = "(catalog)"
SHARD_ROLE: Final = "shard"
DROPPED_NAME: Final = "(dropped)"
FORGOTTEN_NAME: Final = "(left by dropped sources)"


SHARDS_SHOWN: Final = 20


def no_such(error: NoSuchCollection, name: str, shards: Sequence[str]) -> NoSuchCollection:
    """Return the error for a name that neither a collection nor a shard has."""
    known = f"; existing shards: {', '.join(shards[:SHARDS_SHOWN])}" if shards else ""
    return NoSuchCollection(f"{error.sentence}; no shard named {name!r}{known}")


def transactions_label(name: str) -> str:
    """Return the text by which reports name a transaction shard."""
    return "(tables)" if name == TABLES else f"({name}: transactions)"


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """A group of shards: of a source, of a table, of a user, of the catalog, or the dropped ones.

    Shape: ``roles`` has the purpose of each of ``shards``; ``expiries`` is by the id of a shard.
    Units: ``retain_ms`` is the retention of a table, or None for no limit.
    A table with ``is_direct`` has times of its own; others share those of the transactions.
    """

    name: str
    shards: tuple[Shard, ...]
    roles: tuple[str, ...]
    is_source: bool = False
    retain_ms: int | None = None
    is_direct: bool = False
    expiries: Mapping[str, Expiry] = field(default_factory=dict)

    @property
    def is_dropped(self) -> bool:
        """Return True if these are the dropped shards, which no process may read or write."""
        return self.name == DROPPED_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """The facts about one shard, for users."""

    name: str
    role: str
    shard: str
    since: int | None
    upper: int | None
    seqno: int
    updates: int
    batches: tuple[Batch, ...]
    holds: Mapping[str, Hold]
    usage: ShardUsage


@dataclass(frozen=True, slots=True)
class GroupCompaction:
    """The merges of one `ShardGroup`, and the number of its batches afterwards."""

    name: str
    done: CompactionReport
    batches: int


@dataclass(frozen=True, slots=True)
class GroupCollection:
    """The result of collecting one `ShardGroup`: the numbers of objects deleted and waiting.

    Shape: holds keep ``kept`` of the waiting objects; ``held`` has these holds by name.
    """

    name: str
    deleted: int
    waiting: int
    kept: int = 0
    held: Mapping[str, KeepingHold] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeepingHold:
    """A hold that keeps ``objects`` readable; ``until_us`` is None if only its owner ends it."""

    objects: int
    purpose: str
    until_us: int | None


@dataclass(frozen=True, slots=True)
class UnreleasedSource:
    """A dropped source that may still have holds outside of the location."""

    name: str
    source: SourceInfo


@dataclass(frozen=True, slots=True)
class GroupScrub:
    """The result of a scrub of one shard of one `ShardGroup`."""

    name: str
    role: str
    shard: str
    found: ShardScrubReport


@dataclass(slots=True, kw_only=True)
class Maintenance:
    """The maintenance of the shards of one location."""

    store: Store
    fresh: Store  # The same store without a cache: a scrub must read the stored bytes.
    consensus: Consensus
    clock: Clock
    controller: Controller
    tables: Transactions  # Those of the tables.

    async def groups(self, names: Sequence[str] = (), *, dropped: bool = False) -> list[ShardGroup]:
        """Return the shards of collections and of users, by name; without names, all of them.

        If both a collection and a shard have a name, the result has both. Without names, it also
        has the catalog, and with ``dropped`` the dropped shards.

        Raises:
            NoSuchCollection: neither a collection nor a shard has a name.
            UsageError: a name is that of a transaction shard.
        """
        catalog = await self.controller.catalog()
        if names:
            return [
                one for name in dict.fromkeys(names) for one in await self._named(catalog, name)
            ]
        found = [self._of(catalog, name) for name in sorted(catalog.collections)]
        found += [self._of_user(name) for name in await self._names(NamedKind.SHARD)]
        found.append(ShardGroup(CATALOG_NAME, (self._shard(CATALOG_SHARD),), ("catalog",)))
        gone = tuple(self._shard(one) for one in sorted(catalog.dropped))
        if dropped and gone:
            found.append(ShardGroup(DROPPED_NAME, gone, ("dropped",) * len(gone)))
        return found

    async def compact(
        self, kept: Sequence[ShardGroup], *, full: bool = False, merger: Merger = HERE
    ) -> AsyncIterator[GroupCompaction]:
        """Merge the batches that are due, or with ``full`` all; yield the result of each group.

        ``merger`` does the work; the default is this process. ``full`` first moves the hold of an
        idle source's ingester, so that the merge drops times that retention has passed. It also
        drops expired bad rows and deletions: see `expiries_of`. The hold of a table with a
        retention is moved each time, because its writers do not move it.

        Raises:
            CorruptionError: a part is missing or damaged.
            LocationError: the store failed; the merges made before it remain.
        """
        for one in kept:
            done, batches = CompactionReport(), 0
            if full and one.is_source:
                await move_ingest_hold(one.shards)
            if one.retain_ms is not None:
                await move_history(one.shards, await self._upper_of(one), one.retain_ms)
            for shard in one.shards:
                expiry = one.expiries.get(shard.id)
                done += await compact(shard, full=full, expiry=expiry, merger=merger)
                batches += len(shard.state.batches)
            yield GroupCompaction(one.name, done, batches)

    async def _upper_of(self, table: ShardGroup) -> Frontier:
        if table.is_direct:
            return meet([(await shard.refresh()).upper_frontier for shard in table.shards])
        return (await self.tables.refresh()).upper_frontier

    async def collect(
        self, kept: Sequence[ShardGroup], *, after_us: int | None = None, sweeps: bool = False
    ) -> AsyncIterator[GroupCollection]:
        """Delete objects that left a state at least ``after_us`` ago; yield each group's result.

        With ``sweeps``, also list all objects, and delete those that no state will ever name, and
        the old versions of each state. The shards of a dropped collection are dropped first, so
        that all of their objects leave the state. When none is left, the catalog forgets the shard.

        Raises:
            LocationError: the store failed; no state names the objects deleted before it.
        """
        for one in kept:
            deleted = waiting = kept_count = 0
            held: dict[str, KeepingHold] = {}
            for shard in one.shards:
                if one.is_dropped:
                    await drop_shard(self.tables, shard)
                deleted += await shard.collect(after_us=after_us)
                if sweeps:
                    deleted += (await shard.sweep()).deleted
                left = sum(len(gone.paths) for gone in shard.machine.history.gone)
                if one.is_dropped and not left:
                    deleted += await self._clear(shard)
                    await self.controller.forget([shard.id])
                waiting += left
                kept_count += _add_held(held, shard)
            yield GroupCollection(one.name, deleted, waiting, kept_count, held)

    async def unreleased(self, name: str | None = None) -> list[UnreleasedSource]:
        """Return the dropped sources (all, or those of a name) that may still have holds elsewhere.

        A source is released twice, at the drop and after its shards: see `DroppedSource`.
        """
        catalog = await self.controller.catalog()
        return [
            UnreleasedSource(one.source.name, one.source)
            for one in catalog.releasing.values()
            if name in (None, one.source.name) and (not one.is_released or is_gone(catalog, one))
        ]

    async def release(self, dropped: Sequence[UnreleasedSource]) -> AsyncIterator[UnreleasedSource]:
        """Release the holds of dropped sources elsewhere, such as cursors; yield each source.

        If this process does not have the kind of a source, another process must release it.

        Raises:
            LocationError: a store failed; call again.
        """
        for one in dropped:
            if one.source.kind == COLLECTION:
                await release_upstream(one.source, self.collections)
                await self.controller.released(one.source.id)
                yield one
            elif await release_source(one.source, store=self.store, clock=self.clock):
                await self.controller.released(one.source.id)
                yield one

    @property
    def collections(self) -> Collections:
        """Return the collections of the location, for the sources that read them."""
        return Collections(
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            controller=self.controller,
            transactions=self.tables,
        )

    async def release_all(self, name: str) -> bool:
        """Release all holds of the dropped sources of a name; return True if there were any.

        Raises:
            LocationError: see `release`.
        """
        found = await self.unreleased(name)
        async for _ in self.release(found):
            pass
        return bool(found)

    async def unfinished(self) -> list[UnfinishedCommand]:
        """Return the commands that were begun and not ended. Write nothing.

        Raises:
            LocationError: the store failed.
        """
        catalog = await self.controller.catalog()
        found: dict[str, State] = {}
        for name in shards_to_look_at(catalog):
            shard = self._shard(name)
            await shard.refresh()
            found[name] = shard.state
        return list(unfinished_commands(catalog, found))

    async def inspect(self, kept: Sequence[ShardGroup]) -> AsyncIterator[ShardFacts]:
        """Yield the facts about each shard. Write nothing.

        Raises:
            LocationError: the store failed.
        """
        for one in kept:
            for shard, role in zip(one.shards, one.roles, strict=True):
                usage = await usage_of_shard(shard)
                state = shard.state
                if state.registered.name:
                    state = await complete_state(shard)
                yield ShardFacts(
                    name=one.name,
                    role=role,
                    shard=shard.id,
                    since=state.since,
                    upper=state.upper,
                    seqno=shard.machine.seqno,
                    updates=state.totals.rows,
                    batches=tuple(state.batches),
                    holds=state.holds,
                    usage=usage,
                )

    async def _clear(self, shard: Shard) -> int:
        """Delete the last objects of a dropped shard, except its rollup; return their number.

        The shard is final, so no later state can name any of them.
        """
        if not shard.machine.history.is_settled:
            await shard.machine.settle()
        kept = {rollup.path for rollup in shard.machine.history.rollups}
        newest = max(kept, default="")
        there = [entry.key async for entry in self.store.list(f"shard/{shard.id}/")]
        # Another collector may be about to name a later rollup; its path sorts after the newest.
        left = [
            key for key in there if key not in kept and not ("/rollup/" in key and key > newest)
        ]
        if left:
            await self.store.delete(left)
        return len(left)

    async def _clear_forgotten(self, *, sweeps: bool) -> AsyncIterator[GroupCollection]:
        """Delete objects that ingesters wrote after their source was dropped and collected.

        These are the status of the source, and with ``sweeps`` objects of its shards, which the
        catalog no longer lists. A shard without such objects costs no request.

        Raises:
            LocationError: the store failed; call again.
        """
        status = [entry.key async for entry in self.store.list(STATUS)]
        objects = await self._objects_of_sources() if sweeps else {}
        # Read the catalog after the listings. A source is in the catalog before its first object,
        # so each listed object of a living source is found there.
        catalog = await self.controller.catalog()
        living = {
            path(source.id)
            for source in catalog.sources.values()
            for path in (health_path, notes_path)
        }
        stale = [key for key in status if key not in living]
        if stale:
            await self.store.delete(stale)
        deleted = len(stale)
        listed = {shard for one in catalog.renditions.values() for shard in one.roles}
        for id_ in objects.keys() - listed - catalog.dropped:
            if _is_clear(objects[id_]):
                continue
            shard = self._shard(id_)
            if (await shard.refresh()).is_dropped:
                deleted += await self._clear(shard)
        if deleted:
            yield GroupCollection(FORGOTTEN_NAME, deleted, 0)

    async def _objects_of_sources(self) -> dict[str, list[str]]:
        """Return the keys of all objects in the shards of sources, by shard."""
        found: dict[str, list[str]] = {}
        async for entry in self.store.list("shard/"):
            id_ = entry.key.split("/", 2)[1]
            if is_of_source(id_):
                found.setdefault(id_, []).append(entry.key)
        return found

    async def scrub(
        self, kept: Sequence[ShardGroup], *, checker: PartChecker | None = None
    ) -> AsyncIterator[GroupScrub]:
        """Read and check all data of the shards, and yield the result of each. Write nothing.

        ``checker`` reads the parts; the default is this process.

        Raises:
            LocationError: the store failed.
        """
        from tidelog.persist.maintenance.part_checks import HERE as CHECKER_HERE
        from tidelog.persist.maintenance.scrubber import scrub

        for one in kept:
            for shard, role in zip(one.shards, one.roles, strict=True):
                # Use a new handle without cached state, so that the scrub reads the stored state.
                fresh = self._shard(shard.id, self.fresh)
                found = await scrub(fresh, checker or CHECKER_HERE)
                yield GroupScrub(one.name, role, shard.id, found)

    async def _named(self, catalog: Catalog, name: str) -> list[ShardGroup]:
        found = [self._of(catalog, name)] if name in catalog.collections else []
        if await self.consensus.head(named_id(NamedKind.SHARD, name)) is not None:
            found.append(self._of_user(name))
        if not found and name in await self._names(NamedKind.TRANSACTIONS):
            raise UsageError(
                f"{name!r} is a transaction shard: run the command without names for it"
            )
        if not found:
            try:
                catalog.collection(name)
            except NoSuchCollection as error:
                shards = await self._names(NamedKind.SHARD)
                raise no_such(error, name, shards) from None
        return found

    async def transactions(self) -> list[Transactions]:
        """Return the handles of the transaction shards of the location: the tables', and users'."""
        kind = NamedKind.TRANSACTIONS
        keys = [key async for key in self.consensus.list_keys(kind.prefix)]
        names = sorted(name for key in keys if (name := name_of(kind, key)) is not None)
        found = [
            Transactions(
                name=name,
                kind=NamedKind.SHARD,
                store=self.store,
                consensus=self.consensus,
                clock=self.clock,
            )
            for name in names
        ]
        return [self.tables, *found] if transactions_id(TABLES) in keys else found

    async def tidy(self, *, sweeps: bool = False) -> AsyncIterator[GroupCollection]:
        """Apply committed transactions and forget them; delete the leftovers of dropped sources.

        With ``sweeps``, also delete the old versions of the transactions' states.

        Raises:
            LocationError: the store failed; call again.
        """
        for one in await self.transactions():
            await one.tidy()
            machine = one.machine
            deleted = await (machine.settle() if sweeps else machine.collect())
            yield GroupCollection(transactions_label(one.name), deleted, 0)
        async for found in self._clear_forgotten(sweeps=sweeps):
            yield found

    async def sweep_probes(self) -> GroupCollection:
        """Delete the leftovers of killed checks of this location; see `delete_old_probes`.

        Raises:
            LocationError: the store failed.
        """
        return GroupCollection("(probes)", await delete_old_probes(self.store, clock=self.clock), 0)

    async def _names(self, kind: NamedKind) -> list[str]:
        keys = [key async for key in self.consensus.list_keys(kind.prefix)]
        return sorted(name for key in keys if (name := name_of(kind, key)) is not None)

    def _of_user(self, name: str) -> ShardGroup:
        return ShardGroup(name, (self._shard(named_id(NamedKind.SHARD, name)),), (SHARD_ROLE,))

    def _of(self, catalog: Catalog, name: str) -> ShardGroup:
        info = catalog.collection(name)
        roles = [one for r in info.renditions for one in catalog.renditions[r].roles.items()]
        shards = tuple(self._shard(shard) for shard, _ in roles)
        expiries: dict[str, Expiry] = {}
        for source in catalog.sources.values():
            if source.rendition in info.renditions:
                expiries |= expiries_of(catalog.renditions[source.rendition], source)
        names = tuple(role for _, role in roles)
        table = catalog.tables.get(name)
        return ShardGroup(
            name,
            shards,
            names,
            is_source=table is None,
            retain_ms=None if table is None else table.retain_ms,
            is_direct=table is not None and table.mode == DIRECT,
            expiries=expiries,
        )

    def _shard(self, name: str, store: Store | None = None) -> Shard:
        return Shard(
            id=ShardId(name),
            store=self.store if store is None else store,
            consensus=self.consensus,
            clock=self.clock,
        )


def _is_clear(keys: Sequence[str]) -> bool:
    """Return True if the only object of a dropped shard is a rollup, which must stay."""
    return len(keys) == 1 and rollup_seqno(keys[0]) >= 0


def _add_held(held: dict[str, KeepingHold], shard: Shard) -> int:
    """Add the holds that keep objects after they left a shard's state; return their number."""
    gone, kept = shard.machine.history.gone, 0
    for name, hold in shard.state.holds.items():
        if hold.seqno is None:
            continue
        objects = sum(len(one.paths) for one in gone if one.seqno > hold.seqno)
        kept = max(kept, objects)
        if objects:
            before = held[name].objects if name in held else 0
            held[name] = KeepingHold(before + objects, hold.purpose, hold.until_us)
    return kept
