"""The work of a step of a copy, as a plain value, and how one process does it.

A job has a lane for the rows, one for the deletions, and one for the bad rows. A lane leads from
parts of the copied rendition to shards of the copy. Parts do not depend on each other, so engines
may divide a job by parts.
Source: decision 35.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.ingest.compute import Target, part_writer
from tidelog.collection.ingest.expiry import are_forgotten
from tidelog.collection.table.placement import placed
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier
from tidelog.persist.format.part import Part, int64_of
from tidelog.persist.format.schema import TIME, ShardSchema, decode_schema
from tidelog.persist.format.updates import check_updates
from tidelog.persist.read.reader import PartReader
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import Usage

GATHERED_BYTES: Final = 64 * 1024 * 1024  # Of rows in memory; then they are written as parts.


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """The updates of ``parts`` at the times ``[lower, upper)``, on their way to ``shards``.

    Units: updates before ``least`` count as at that time. Updates up to ``remembered`` are left
        out if every later tick ignores them.
    """

    schema: bytes
    parts: tuple[Part, ...]
    shards: tuple[Target, ...]
    lower: int
    upper: int
    least: int
    remembered: int | None = None


class CopyJob(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a copy, or a share of one: the lanes of rows, of deletions, and of bad rows.

    Shape: without deletions there are two lanes. All shares of a step have the same lanes.
    """

    source: SourceInfo
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The parts of a step, for the shards that a tick writes, in their order; and its counts.

    Units: ``usage`` counts the requests of executors, not those of the driver.
    """

    parts: Sequence[Sequence[Part]]
    rows: int
    bad: int
    usage: Usage = field(default_factory=Usage)

    def __add__(self, other: StepParts) -> StepParts:
        parts = [[*own, *more] for own, more in zip(self.parts, other.parts, strict=True)]
        usage = self.usage + other.usage
        return StepParts(
            parts=parts, rows=self.rows + other.rows, bad=self.bad + other.bad, usage=usage
        )


async def copy_here(job: CopyJob, *, store: Store, clock: Clock, reader: PartReader) -> StepParts:
    """Read the updates of a job part by part, and write their parts. Commit nothing.

    Raises:
        PartMissing: a merge has replaced a part: refresh the states, and plan again.
        CorruptionError, LocationError: reading or writing failed.
    """
    gathered = []
    for lane in job.lanes:
        found = Gathering(lane, decode_schema(lane.schema), store, clock)
        for part in lane.parts:
            (table,) = await reader.read([part], found.schema)
            wanted = await clock.offload(partial(within, table, lane, job.source))
            await found.take(wanted)
        await found.write()
        gathered.append(found)
    written = [parts for found in gathered for parts in found.written]
    return StepParts(parts=written, rows=gathered[0].rows, bad=gathered[-1].rows)


def within(table: pa.Table, lane: Lane, source: SourceInfo) -> pa.Table:
    """Return the updates of a lane; those before `Lane.least` count as at that time."""
    times = int64_of(table, TIME)
    moved = np.maximum(times, lane.least)
    wanted = (moved >= lane.lower) & (moved < lane.upper)
    if lane.remembered is not None:
        past = moved <= lane.remembered
        wanted &= ~(past & are_forgotten(table, source, before=lane.remembered))
    if wanted.all() and (moved == times).all():
        return table
    place = table.schema.get_field_index(TIME)
    changed = table.set_column(place, table.schema.field(place), pa.array(moved))
    return changed.filter(pa.array(wanted))


@dataclass(slots=True)
class Gathering:
    """Updates on their way to shards, by the hash of their keys; many of them become parts."""

    lane: Lane
    schema: ShardSchema
    store: Store
    clock: Clock
    rows: int = 0
    size_bytes: int = 0
    waiting: list[list[pa.Table]] = field(init=False)
    written: list[list[Part]] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = [[] for _ in self.lane.shards]
        self.written = [[] for _ in self.lane.shards]

    async def take(self, table: pa.Table) -> None:
        """Take updates; write all that wait if they are many."""
        if not table.num_rows:
            return
        self.rows += table.num_rows
        pieces = await self.clock.offload(partial(placed, table, self.schema, len(self.waiting)))
        for waiting, piece in zip(self.waiting, pieces, strict=True):
            waiting.append(piece)
        self.size_bytes += table.nbytes
        if self.size_bytes >= GATHERED_BYTES:
            await self.write()

    async def write(self) -> None:
        """Write the updates that wait."""
        lower, upper = Frontier.at(self.lane.lower), Frontier.at(self.lane.upper)
        for target, waiting, parts in zip(
            self.lane.shards, self.waiting, self.written, strict=True
        ):
            if not waiting:
                continue
            together = pa.concat_tables(waiting)
            waiting.clear()
            checked = partial(check_updates, together, self.schema, lower=lower, upper=upper)
            rows = await self.clock.offload(checked)
            writer = part_writer(self.store, self.clock, target, self.schema)
            # Many small parts in the state would make each later commit dearer.
            parts.extend(await writer.write(rows, inline=target.may_inline and not parts))
        self.size_bytes = 0
