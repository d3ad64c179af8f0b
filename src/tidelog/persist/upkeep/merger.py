"""Who does a merge: reads the parts that go in, and writes those that take their place.

Nothing of it counts before a state names it: it may come late, twice or never, and be done in this
process or by many others.
Source: persist, "Compaction"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import is_sortable
from tidelog.persist.states.evolution import newest_schema
from tidelog.persist.upkeep.merge_rows import RowMerger
from tidelog.rowhash import RowSum

if TYPE_CHECKING:
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.upkeep.merging import MergeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedParts:
    """What a merge wrote.

    Shape: ``runs`` has how many of ``parts``, which stand in order, each run has; None if none is
        in order. ``restated``, ``expired``: see `RowMerger`.
    """

    parts: tuple[Part, ...]
    runs: tuple[int, ...] | None
    schema_id: int
    restated: RowSum
    expired: int = 0


class Merger(Protocol):
    """Does merges."""

    async def write(self, shard: Shard, request: MergeRequest) -> MergedParts:
        """Write what a merge comes to: the same rows, their times advanced.

        Raises:
            PartMissing: an object is not there. CorruptionError: a part is not what was written.
            LocationError: the store failed, or who was to do the work. Nothing counts.
        """
        ...


class MergerHere:
    """Does merges in this process, in bounded memory; see `RowMerger`."""

    async def write(self, shard: Shard, request: MergeRequest) -> MergedParts:
        merger = merger_of(shard)
        writer = shard.writer(merger.schema)
        parts: list[Part] = []
        async with aclosing(merger.merge(request)) as tables:
            async for table in tables:
                parts += await writer.write(table, inline=shard.may_inline and not parts)
        return merged_parts([parts], merger.schema, merger.restated, merger.expired)


def merger_of(shard: Shard) -> RowMerger:
    """Return what merges rows into the columns of the shard's newest schema, not the handle's."""
    schema = newest_schema(shard.state)
    out_bytes = shard.writer(schema).part_bytes
    return RowMerger(schema=schema, reader=shard.reader, out_bytes=out_bytes)


def merged_parts(
    runs: list[list[Part]], schema: ShardSchema, restated: RowSum, expired: int = 0
) -> MergedParts:
    """Return what was written, each run in order."""
    return MergedParts(
        parts=tuple(part for run in runs for part in run),
        runs=tuple(len(run) for run in runs if run) if is_sortable(schema) else None,
        schema_id=schema.newest_id,
        restated=restated,
        expired=expired,
    )
