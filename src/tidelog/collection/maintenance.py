"""Maintenance of a location's shards: merging what is due, and deleting what nothing names.

Any number of processes may do it at once, beside all others: each merge, and each deletion, is
decided by a shard's state, and done again by the next one where a process dies over it.
Source: design page 4, "Compaction and collection".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.clock import Clock
from tidelog.collection.catalog.catalog import CATALOG_SHARD, Catalog, RenditionInfo
from tidelog.collection.catalog.controller import Controller
from tidelog.consensus.port import Consensus
from tidelog.errors import NoSuchCollection
from tidelog.ids import ShardId
from tidelog.persist.compactor import Compacted, compact
from tidelog.persist.shard import Shard
from tidelog.store.port import Store

CATALOG_NAME: Final = "(catalog)"
DROPPED_NAME: Final = "(dropped)"


@dataclass(frozen=True, slots=True)
class Kept:
    """Shards that belong together: those of one source, or the catalog's, or what was dropped."""

    name: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class CompactedOne:
    """What merges did to one of `Kept`, and how many batches it has now."""

    name: str
    done: Compacted
    batches: int


@dataclass(frozen=True, slots=True)
class CollectedOne:
    """How many objects of one of `Kept` were deleted, and how many wait for their time to come."""

    name: str
    deleted: int
    waiting: int


@dataclass(slots=True, kw_only=True)
class Maintenance:
    """Keeps the shards of one location in order."""

    store: Store
    consensus: Consensus
    clock: Clock
    controller: Controller

    async def kept(self, names: Sequence[str] = (), *, dropped: bool = False) -> list[Kept]:
        """Find the shards of collections; of all, and the catalog's, where none is named.

        Raises:
            NoSuchCollection: there is none of a name.
        """
        catalog = await self.controller.catalog()
        for name in names:
            if name not in catalog.collections:
                known = ", ".join(sorted(catalog.collections)) or "none yet"
                raise NoSuchCollection(f"there is no collection {name!r}: there are {known}")
        found = [self._of(catalog, name) for name in names or sorted(catalog.collections)]
        if not names:
            found.append(Kept(CATALOG_NAME, (self._shard(CATALOG_SHARD),)))
            gone = tuple(self._shard(one) for one in sorted(catalog.dropped))
            if dropped and gone:
                found.append(Kept(DROPPED_NAME, gone))
        return found

    async def compact(
        self, kept: Sequence[Kept], *, full: bool = False
    ) -> AsyncIterator[CompactedOne]:
        """Merge what is due, or ``full`` all; yield what was done as it is done.

        Raises:
            CorruptionError: a part is missing, or not what was written. LocationError: the store
                failed; what was merged stays so.
        """
        for one in kept:
            done, batches = Compacted(), 0
            for shard in one.shards:
                done += await compact(shard, full=full)
                batches += len(shard.state.batches)
            yield CompactedOne(one.name, done, batches)

    async def collect(
        self, kept: Sequence[Kept], *, after_us: int | None = None
    ) -> AsyncIterator[CollectedOne]:
        """Delete what vanished ``after_us`` ago, or earlier; yield what was done as it is done.

        Shards of what was dropped are buried first, so that all that they hold vanishes.

        Raises:
            LocationError: the store failed; what was deleted is named by nothing.
        """
        for one in kept:
            deleted = waiting = 0
            for shard in one.shards:
                if one.name == DROPPED_NAME:
                    await shard.bury()
                deleted += await shard.collect(after_us=after_us)
                left = sum(len(gone.paths) for gone in shard.machine.history.gone)
                if one.name == DROPPED_NAME and not left:
                    deleted += await self._clear(shard)
                waiting += left
            yield CollectedOne(one.name, deleted, waiting)

    async def _clear(self, shard: Shard) -> int:
        """Delete what is left of a buried shard; return how many objects that were.

        No state will ever name any of it again.
        """
        kept = {rollup.path for rollup in shard.machine.history.rollups}
        there = [entry.key async for entry in self.store.list(f"shard/{shard.id}/")]
        left = [key for key in there if key not in kept]
        if left:
            await self.store.delete(left)
        await self.controller.forget([shard.id])
        return len(left)

    def _of(self, catalog: Catalog, name: str) -> Kept:
        info = catalog.collection(name)
        ids = [i for r in info.renditions for i in shards_of(catalog.renditions[r])]
        return Kept(name, tuple(self._shard(one) for one in ids))

    def _shard(self, name: str) -> Shard:
        return Shard(id=ShardId(name), store=self.store, consensus=self.consensus, clock=self.clock)


def shards_of(rendition: RenditionInfo) -> list[str]:
    """Return the names of all shards that belong to a rendition."""
    named = (*rendition.shards, *rendition.deletions, rendition.errors, rendition.remap)
    return [one for one in named if one is not None]
