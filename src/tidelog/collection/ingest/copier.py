"""The steps of a copy: each is one commit to each shard, and the last one ends the copy.

See `tidelog.collection.ingest.copying` for the protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidelog.collection.ingest.copy_job import StepParts
from tidelog.collection.ingest.copying import CopiedShards, CopyStep, holds_of_step
from tidelog.collection.ingest.engine import Engine
from tidelog.collection.ingest.source_shards import SourceShards, same_as_theirs
from tidelog.collection.ingest.tick import Tick, TickCommit
from tidelog.core.frontier import Frontier
from tidelog.errors import SourceDropped
from tidelog.persist.format.part import Part
from tidelog.persist.handle.shard import Shard


@dataclass(frozen=True, slots=True)
class Copier:
    """The copy of the rendition ``former`` into the shards ``to``, by the work of an engine.

    ``check_there`` raises SourceDropped if the copy is no longer in the catalog.
    """

    to: SourceShards
    former: CopiedShards
    engine: Engine
    check_there: Callable[[], Awaitable[None]]

    async def copy(self, bytes_max: int) -> Tick | None:
        """Copy one step of about ``bytes_max``, and commit it; return None if the copy has ended.

        Raises:
            AsOfBeforeSince, PartMissing, PartsSwept: a state is stale: refresh, and call again.
            GoneError: the other rendition was dropped. DataDiffers: another ingester differs.
            SourceDropped, RenditionSucceeded, LocationError: see `Ingester.tick`.
        """
        if not self.to.is_copying or not await self._begin():
            return None
        self.to.check_needed()
        if await self._end():
            return None
        step = self.former.plan(self.to.upper.time, bytes_max)
        found = await self.engine.copy(self.former.job(step, self.to))
        done = await self._commit(step, found).commit()
        await self._end()
        return Tick(
            step.lower,
            step.upper,
            rows=found.rows if done.is_completed else 0,
            bad=found.bad if done.is_completed else 0,
            left_bytes=step.left_bytes,
            won=done.won,
            unchecked=done.unchecked,
            usage=found.usage,
        )

    async def _begin(self) -> bool:
        """Hold the other rendition; return False if the copy has ended meanwhile."""
        await self.former.refresh()
        if not await self.former.keep(self.to.remap):
            return True
        # The copy may have ended, or was dropped, before the holds were placed.
        try:
            await self.check_there()
        except SourceDropped:
            await self.former.release(self.to.remap)
            raise
        await self.to.remap.refresh()
        if not self.to.is_copying:
            await self.former.release(self.to.remap)
        return self.to.is_copying

    def _commit(self, step: CopyStep, found: StepParts) -> TickCommit:
        """Return the commit of a step: that of a tick, with other holds."""
        lower, upper = Frontier.at(step.lower), Frontier.at(step.upper)

        async def is_same(shard: Shard, parts: Sequence[Part]) -> bool:
            return same_as_theirs(shard, parts, lower, upper)

        return TickCommit(
            to=self.to,
            lower=step.lower,
            upper=step.upper,
            parts=found.parts,
            holds=partial(holds_of_step, step=step),
            is_same=is_same,
        )

    async def _end(self) -> bool:
        """End the copy if all times of the other rendition are copied; return True if it did.

        The hold of the ingesters on the bindings records the end, and keeps those that follow.
        """
        upper = self.to.upper
        if upper < self.former.upper:
            return False
        await self.former.refresh()
        if upper < self.former.upper:
            return False
        await self.to.remap.hold(self.to.rendition.ingest_hold, max(upper.time - 1, 0))
        await self.former.release(self.to.remap)
        return True
