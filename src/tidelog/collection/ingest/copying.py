"""The copy of a rendition: its rows are taken from another rendition, not from the source.

A rendition that is copied has the bindings of the other one, and reads its updates in place of the
messages of the source. A step copies the times ``[lower, upper)`` and is one commit to each shard,
as a tick is. When all complete times are copied, the copy ends, and the ingester continues from the
source. Until then, holds keep the other rendition readable.

The hold of the rendition's ingesters on the shard of the bindings records the end. So all ingesters
of a rendition agree on it, and each may die at any point.
Invariants: the updates of a step depend only on the times and on the holds, not on merges.
Source: storage, "Renditions"; decision 35.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

import msgspec

from tidelog.collection.catalog.catalog import (
    ERRORS_SCHEMA,
    INGEST_HOLD,
    RenditionInfo,
    SourceInfo,
)
from tidelog.collection.ingest.compute import bare_target
from tidelog.collection.ingest.copy_job import CopyJob, Lane
from tidelog.collection.ingest.envelope import deletions_schema
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier, join, meet
from tidelog.core.ids import ShardId
from tidelog.errors import GoneError
from tidelog.persist.format.schema import ShardSchema, encode_with_known
from tidelog.persist.handle.shard import Shard
from tidelog.persist.handle.together import refresh_all
from tidelog.persist.read.reader import parts_between
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.store.port import Store

COPY_HOLD: Final = "copy-"  # Before the id of the rendition that is copied.


def copy_hold(rendition: RenditionInfo) -> str:
    """Return the name of the hold by which a rendition keeps the one that it copies."""
    return f"{COPY_HOLD}{rendition.id}"


def is_of_copy(hold: str) -> bool:
    """Return True if a hold keeps a rendition for its copy; see `copy_hold`."""
    return hold.startswith(COPY_HOLD)


class CopyStep(NamedTuple):
    """A step of a copy: the times ``[lower, upper)``.

    Units: ``start`` and ``remembered`` are times. Rows up to ``start`` get that time, and so do
        deletions up to ``remembered``. ``left_bytes`` are the bytes of parts that later steps copy.
    """

    lower: int
    upper: int
    start: int
    remembered: int
    left_bytes: int


class Filled(Protocol):
    """The shards of the copy."""

    schema: ShardSchema
    outputs: list[Shard]
    deletions: list[Shard]
    errors: Shard


@dataclass(slots=True, kw_only=True)
class CopiedShards:
    """The handles of the shards of a rendition that another one copies, under the hold ``hold``."""

    info: SourceInfo
    rendition: RenditionInfo
    hold: str
    store: Store
    consensus: Consensus
    clock: Clock
    outputs: list[Shard] = field(init=False)
    deletions: list[Shard] = field(init=False)
    errors: Shard = field(init=False)

    def __post_init__(self) -> None:
        schema, column = self.rendition.data_schema, self.info.time_column
        self.outputs = [self._shard(one, schema) for one in self.rendition.shards]
        kept = None if column is None else deletions_schema(schema, column)
        self.deletions = [self._shard(one, kept) for one in self.rendition.deletions]
        self.errors = self._shard(self.rendition.errors or "", ERRORS_SCHEMA)

    def _shard(self, shard_id: str, schema: ShardSchema | None) -> Shard:
        return Shard(
            id=ShardId(shard_id),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=schema,
        )

    @property
    def shards(self) -> list[Shard]:
        """Return all shards, those of rows first."""
        return [*self.outputs, *self.deletions, self.errors]

    @property
    def upper(self) -> Frontier:
        """Return the upper of the rendition, as of the last refresh."""
        return meet([shard.state.upper_frontier for shard in self.shards])

    async def refresh(self) -> None:
        """Read the newest state of each shard.

        Raises:
            LocationError: the store failed.
        """
        await refresh_all(self.shards)

    async def keep(self, remap: Shard) -> bool:
        """Place the holds that are missing; return True if any was.

        The times of each shard stay as distinct as they are now, and so do the bindings.

        Raises:
            GoneError: the rendition was dropped. LocationError: the store failed.
        """
        is_new = False
        for shard in (*self.shards, remap):
            if self.hold in shard.state.holds:
                continue
            if shard.state.upper is None:
                raise self.lost("was dropped")
            await shard.hold(self.hold)
            is_new = True
        return is_new

    async def release(self, remap: Shard) -> None:
        """Release the holds; the call is idempotent.

        Raises:
            LocationError: the store failed; call again.
        """
        for shard in (*self.shards, remap):
            await shard.drop_hold(self.hold)

    def lost(self, why: str) -> GoneError:
        """Return the error for a copy that cannot be completed."""
        return GoneError(
            f"the rendition {self.rendition.called!r} {why} before all of its rows were copied: "
            "drop the copy, and create another one"
        )

    def plan(self, lower: int, bytes_max: int) -> CopyStep:
        """Return the step from ``lower`` on. It ends where a batch of the rendition ends.

        It has about ``bytes_max`` of stored bytes, or one batch if that has more.

        Raises:
            GoneError: the hold was dropped meanwhile, and the times were merged.
        """
        start = self._held([*self.outputs, self.errors])
        remembered = self._held(self.deletions) if self.deletions else 0
        if 0 < lower <= start:
            raise self.lost("has given up times")
        batches = [one for shard in self.shards for one in shard.state.batches.after(lower - 1)]
        upper, left = plan_upper(batches, max(lower, start), self.upper.time, bytes_max)
        return CopyStep(lower, upper, start, remembered, left)

    def left_bytes(self, lower: int) -> int:
        """Return the bytes of the parts at the time ``lower`` or later."""
        states = [shard.state for shard in self.shards]
        return sum(one.size_bytes for state in states for one in state.batches.after(lower - 1))

    def _held(self, shards: Sequence[Shard]) -> int:
        """Return the least time from which all of some shards keep their times distinct.

        The holds never move, so all ingesters get the same time.

        Raises:
            GoneError: the rendition was dropped, or a hold was.
        """
        holds = [shard.state.holds.get(self.hold) for shard in shards]
        found = join([Frontier.empty() if one is None else one.frontier for one in holds])
        if found.is_empty:
            raise self.lost("was dropped")
        return found.time

    def job(self, step: CopyStep, to: Filled) -> CopyJob:
        """Return the work of a step into the shards ``to``."""
        lanes = [self._lane(step, self.outputs, to.schema, to.outputs, least=step.start)]
        column = self.info.time_column
        if self.deletions and column is not None:
            kept, past = deletions_schema(to.schema, column), step.remembered
            lane = self._lane(step, self.deletions, kept, to.deletions, least=past)
            lanes.append(msgspec.structs.replace(lane, remembered=past))
        # Full merges drop earlier bad rows: retention has passed them.
        known = step._replace(lower=max(step.lower, step.start))
        lanes.append(self._lane(known, [self.errors], ERRORS_SCHEMA, [to.errors], least=0))
        return CopyJob(source=self.info, lanes=tuple(lanes))

    def _lane(
        self,
        step: CopyStep,
        shards: Sequence[Shard],
        schema: ShardSchema,
        to: Sequence[Shard],
        *,
        least: int,
    ) -> Lane:
        after, last = step.lower - 1 if step.lower > least else -1, step.upper - 1
        return Lane(
            schema=encode_with_known(schema),
            parts=tuple(p for one in shards for p in parts_between(one.state, after, last)),
            shards=tuple(map(bare_target, to)),
            lower=step.lower,
            upper=step.upper,
            least=least,
        )


def plan_upper(batches: Sequence[Batch], after: int, last: int, bytes_max: int) -> tuple[int, int]:
    """Return the upper of a step, and the bytes of the batches that begin at it or later.

    The upper is past ``after``, and at most ``last``.
    """
    in_order = sorted(batches, key=lambda one: one.lower)
    lowers = [one.lower for one in in_order]
    sizes = [0, *accumulate(one.size_bytes for one in in_order)]
    ends = sorted({last, *(end for one in batches if after < (end := one.upper or 0) < last)})

    def size_until(end: int) -> int:
        return sizes[bisect_left(lowers, end)]

    fitting = [end for end in ends if size_until(end) <= bytes_max]
    upper = fitting[-1] if fitting else ends[0]
    return upper, size_until(last) - size_until(upper)


def holds_of_step(shard: Shard, step: CopyStep) -> Mapping[str, Frontier]:
    """Return the holds that the commit of a step moves: no time before its start is readable."""
    is_read = HISTORY_HOLD in shard.first_holds
    first = step.start if is_read else 0
    holds = {INGEST_HOLD: Frontier.at(max(step.lower - 1, first))}
    if is_read and not step.lower:
        holds[HISTORY_HOLD] = Frontier.at(first)
    return holds
