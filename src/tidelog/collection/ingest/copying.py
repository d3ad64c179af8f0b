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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import (
    ERRORS_SCHEMA,
    INGEST_HOLD,
    RenditionInfo,
    SourceInfo,
)
from tidelog.collection.ingest.envelope import deletions_schema
from tidelog.collection.ingest.expiry import are_forgotten
from tidelog.collection.table.placement import placed
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier, join, meet
from tidelog.core.ids import ShardId
from tidelog.errors import GoneError
from tidelog.persist.format.part import Part, int64_of
from tidelog.persist.format.schema import TIME, ShardSchema
from tidelog.persist.format.updates import check_updates
from tidelog.persist.handle.shard import Shard
from tidelog.persist.handle.together import refresh_all
from tidelog.persist.read.reader import parts_between
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.persist.write.writer import PartWriter
from tidelog.store.port import Store

COPY_HOLD: Final = "copy-"  # Before the id of the rendition that is copied.
GATHERED_BYTES: Final = 64 * 1024 * 1024  # Of rows in memory; then they are written as parts.


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


class StepParts(NamedTuple):
    """The parts of a step, for the shards that a tick writes, in their order; and its counts."""

    parts: Sequence[Sequence[Part]]
    rows: int
    bad: int


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

    async def step(self, step: CopyStep, to: Filled) -> StepParts:
        """Read the updates of a step, and write their parts for the shards ``to``. Commit nothing.

        Raises:
            PartMissing: a merge has replaced a part: refresh the states, and plan again.
            CorruptionError, LocationError: reading or writing failed.
        """
        rows = Gathering.into(to.outputs, to.schema, step)
        for shard in self.outputs:
            await rows.take(self._updates(shard, to.schema, step, step.start))
        written, counts = await rows.finish(), rows.rows
        column = self.info.time_column
        if self.deletions and column is not None:
            kept = deletions_schema(to.schema, column)
            deleted = Gathering.into(to.deletions, kept, step)
            for shard in self.deletions:
                found = self._updates(shard, kept, step, step.remembered)
                await deleted.take(self._counting(found, step.remembered))
            written += await deleted.finish()
        bad = Gathering.into([to.errors], ERRORS_SCHEMA, step)
        # Full merges drop earlier bad rows: retention has passed them.
        known = step._replace(lower=max(step.lower, step.start))
        await bad.take(self._updates(self.errors, ERRORS_SCHEMA, known, 0))
        written += await bad.finish()
        return StepParts(written, counts, bad.rows)

    async def _updates(
        self, shard: Shard, schema: ShardSchema, step: CopyStep, least: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the updates of a shard in a step; earlier ones get the time ``least``."""
        after = step.lower - 1 if step.lower > least else -1
        for part in parts_between(shard.state, after, step.upper - 1):
            (table,) = await shard.reader.read([part], schema)
            yield await self.clock.offload(partial(within, table, step, least))

    async def _counting(
        self, found: AsyncGenerator[pa.Table, None], remembered: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield deletions without those that every later tick ignores; a merge may drop them."""
        async with aclosing(found) as tables:
            async for table in tables:
                past = int64_of(table, TIME) <= remembered
                gone = past & are_forgotten(table, self.info, before=remembered)
                yield table.filter(pa.array(~gone))


def within(table: pa.Table, step: CopyStep, least: int) -> pa.Table:
    """Return the updates at the times of a step; those before ``least`` count as at that time."""
    times = int64_of(table, TIME)
    moved = np.maximum(times, least)
    wanted = (moved >= step.lower) & (moved < step.upper)
    if wanted.all() and (moved == times).all():
        return table
    place = table.schema.get_field_index(TIME)
    changed = table.set_column(place, table.schema.field(place), pa.array(moved))
    return changed.filter(pa.array(wanted))


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


@dataclass(slots=True)
class Gathering:
    """Updates on their way to some shards, by the hash of their keys; large ones become parts."""

    shards: Sequence[Shard]
    schema: ShardSchema
    step: CopyStep
    waiting: list[list[pa.Table]]
    written: list[list[Part]]
    rows: int = 0
    size_bytes: int = 0

    @classmethod
    def into(cls, shards: Sequence[Shard], schema: ShardSchema, step: CopyStep) -> Gathering:
        return cls(shards, schema, step, [[] for _ in shards], [[] for _ in shards])

    async def take(self, found: AsyncGenerator[pa.Table, None]) -> None:
        """Take all updates of a shard of the other rendition."""
        clock = self.shards[0].clock
        async with aclosing(found) as tables:
            async for table in tables:
                if not table.num_rows:
                    continue
                self.rows += table.num_rows
                pieces = await clock.offload(partial(placed, table, self.schema, len(self.shards)))
                for waiting, piece in zip(self.waiting, pieces, strict=True):
                    waiting.append(piece)
                self.size_bytes += table.nbytes
                if self.size_bytes >= GATHERED_BYTES:
                    await self._write()

    async def finish(self) -> list[list[Part]]:
        """Write the last rows; return the parts of each shard."""
        await self._write()
        return self.written

    async def _write(self) -> None:
        lower, upper = Frontier.at(self.step.lower), Frontier.at(self.step.upper)
        for shard, waiting, parts in zip(self.shards, self.waiting, self.written, strict=True):
            if not waiting:
                continue
            together = pa.concat_tables(waiting)
            waiting.clear()
            checked = partial(check_updates, together, self.schema, lower=lower, upper=upper)
            rows = await shard.clock.offload(checked)
            writer = PartWriter(
                store=shard.store,
                clock=shard.clock,
                shard=shard.id,
                schema=self.schema,
                write_epoch=shard.state.write_epoch,
                is_sorted=False,
            )
            # Many small parts in the state would make each later commit dearer.
            parts.extend(await writer.write(rows, inline=shard.may_inline and not parts))
        self.size_bytes = 0


def holds_of_step(shard: Shard, step: CopyStep) -> Mapping[str, Frontier]:
    """Return the holds that the commit of a step moves: no time before its start is readable."""
    is_read = HISTORY_HOLD in shard.first_holds
    first = step.start if is_read else 0
    holds = {INGEST_HOLD: Frontier.at(max(step.lower - 1, first))}
    if is_read and not step.lower:
        holds[HISTORY_HOLD] = Frontier.at(first)
    return holds
