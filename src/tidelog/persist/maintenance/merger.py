"""Mergers: they read the parts of a merge and write the parts that replace them.

The written parts have no effect before a state names them. A merge may therefore be late, repeated
or abandoned, and run in this process or in many others.
Source: persist, "Compaction"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import is_sortable
from tidelog.persist.maintenance.merge_rows import RowMerger
from tidelog.persist.maintenance.merging import merge_shares
from tidelog.persist.states.evolution import newest_schema
from tidelog.rowhash import RowSum

if TYPE_CHECKING:
    from tidelog.persist.handle.port import ShardHandle
    from tidelog.persist.maintenance.merging import MergeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedParts:
    """The parts that a merge wrote.

    Shape: ``runs`` is the number of parts in each run, in the order of ``parts``; None if the parts
        are unsorted. ``restated``, ``expired``: see `RowMerger`.
    """

    parts: tuple[Part, ...]
    runs: tuple[int, ...] | None
    schema_id: int
    restated: RowSum
    expired: int = 0


class Merger(Protocol):
    """Executes merges."""

    async def write(self, shard: ShardHandle, request: MergeRequest) -> MergedParts:
        """Write the result of a merge: the same rows with times advanced.

        Raises:
            PartMissing: an object is missing. CorruptionError: a part was changed.
            LocationError: the store or a remote worker failed. No state names the parts written.
        """
        ...


class MergerHere:
    """Executes merges in this process, in bounded memory; see `RowMerger`."""

    async def write(self, shard: ShardHandle, request: MergeRequest) -> MergedParts:
        merger = merger_of(shard)
        writer = shard.writer(merger.schema)
        parts: list[Part] = []
        for share in merge_shares(request, merger.schema):
            if share.is_kept:
                parts += share.parts
                continue
            async with aclosing(merger.merge(request, share.parts)) as tables:
                async for table in tables:
                    parts += await writer.write(table, inline=shard.may_inline and not parts)
        return merged_parts([parts], merger.schema, merger.restated, merger.expired)


def merger_of(shard: ShardHandle) -> RowMerger:
    """Return a merger into the columns of the shard's newest schema, not the handle's."""
    schema = newest_schema(shard.state)
    out_bytes = shard.writer(schema).part_bytes
    return RowMerger(schema=schema, reader=shard.reader, out_bytes=out_bytes)


def merged_parts(
    runs: list[list[Part]], schema: ShardSchema, restated: RowSum, expired: int = 0
) -> MergedParts:
    """Describe the parts written, grouped into sorted runs."""
    return MergedParts(
        parts=tuple(part for run in runs for part in run),
        runs=tuple(len(run) for run in runs if run) if is_sortable(schema) else None,
        schema_id=schema.newest_id,
        restated=restated,
        expired=expired,
    )
