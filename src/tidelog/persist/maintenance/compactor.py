"""Compaction: due merges are planned, read and written, and then replace their inputs.

Any number of processes may compact. The one that commits second finds that its inputs are gone, and
deletes the parts that it wrote. A compactor deletes nothing else, and these only after a read has
proven that no state names them. `Machine.collect` deletes the inputs of merges later.
Source: persist, "Compaction".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import Final

import msgspec

from tidelog.core.clock import wall_us
from tidelog.core.ids import new_writer_id
from tidelog.errors import LocationError, PartMissing, PartsSwept
from tidelog.persist.format.part import Part
from tidelog.persist.handle.listening import caught_up
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.maintenance.merger import MergedParts, Merger, MergerHere
from tidelog.persist.maintenance.merging import (
    Expiry,
    MergeRequest,
    MergeVerdict,
    decide_claim,
    decide_merge,
    plan_merge,
    plan_next,
)
from tidelog.persist.states.batch import Batch, make_batch
from tidelog.persist.states.claim import CLAIMED_BYTES

MERGES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The number of merges, and their rows and bytes before and after.

    ``overtaken`` counts merges whose inputs another process merged concurrently.
    """

    merges: int = 0
    overtaken: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: CompactionReport) -> CompactionReport:
        names = self.__dataclass_fields__
        return CompactionReport(
            **{name: getattr(self, name) + getattr(other, name) for name in names}
        )


HERE: Final = MergerHere()


async def compact(
    shard: ShardHandle,
    *,
    full: bool = False,
    expiry: Expiry | None = None,
    merges_max: int = MERGES_MAX,
    merger: Merger = HERE,
    is_read: bool = False,
    rides: bool = False,
) -> CompactionReport:
    """Merge until nothing is due, or with ``full`` into one batch; ``merger`` does the work.

    A ``full`` merge drops the updates that ``expiry`` names. With ``is_read``, merges are planned
    on the state that the handle knows. A merge whose inputs are gone by then is overtaken. A merge
    that ``rides`` is committed with another commit of the shard; see `Machine.commit`.

    Raises:
        CorruptionError: a part is missing, or was changed; that merge changed nothing.
        LocationError: the store failed.
    """
    done = CompactionReport()
    state = shard.state if is_read else await shard.refresh()
    if state.registered.name:
        # Merge the parts of committed transactions, too.
        state = await caught_up(shard)
    while done.merges + done.overtaken < merges_max:
        now_us = wall_us(shard.clock)
        request = plan_next(state, full=full, expiry=expiry, now_us=now_us)
        if request is None:
            break
        is_ours = request.size_bytes < CLAIMED_BYTES or await _claim(shard, request)
        # A full merge ignores the claims of other processes, but still makes its own.
        if is_ours or full:
            done += await merge(shard, request, merger, rides=rides)
        else:
            done += CompactionReport(overtaken=1)
        state = shard.state
    return done


def is_due(shard: ShardHandle) -> bool:
    """Return True if a merge is due in the state that this handle knows: no request."""
    return plan_merge(shard.state, now_us=wall_us(shard.clock)) is not None


async def _claim(shard: ShardHandle, request: MergeRequest) -> bool:
    """Claim a large merge, so that other processes skip it; False if another process has it."""
    who = new_writer_id(shard.clock)
    now_us = wall_us(shard.clock)
    return await shard.machine.commit(
        lambda state: decide_claim(state, request, who=who, now_us=now_us)
    )


async def merge(
    shard: ShardHandle, request: MergeRequest, merger: Merger = HERE, *, rides: bool = False
) -> CompactionReport:
    """Merge several batches into one; see `compact`."""
    try:
        written = await merger.write(shard, request)
    except PartMissing as error:
        await shard.check_replaced(error)
        return CompactionReport(overtaken=1)
    merged = _batch_of(request, written)
    try:
        verdict = await shard.machine.commit(
            lambda state: decide_merge(state, request, merged, written.restated, written.expired),
            rides=rides,
        )
    except PartsSwept:
        return CompactionReport(overtaken=1)
    if verdict is MergeVerdict.OVERTAKEN and merged is not None:
        # The decision used a state that was read after the parts were written, and it names none of
        # them. Inputs that the merge kept belong to the other merge.
        await _drop(shard, request.written(merged))
    return CompactionReport(
        merges=int(verdict is MergeVerdict.APPLIED),
        overtaken=int(verdict is not MergeVerdict.APPLIED),
        rows_read=request.rows,
        rows_written=0 if merged is None else merged.rows,
        bytes_read=request.size_bytes,
        bytes_written=0 if merged is None else merged.size_bytes,
    )


def _batch_of(request: MergeRequest, written: MergedParts) -> Batch | None:
    if not written.parts:
        return None
    bucket = common_bucket([part.bucket for part in request.parts])
    id_ = written.schema_id
    return make_batch(
        [msgspec.structs.replace(part, bucket=bucket, schema_id=id_) for part in written.parts],
        lower=request.lower,
        upper=request.upper,
        # A merge with an expiry records since itself, even if that is past the batch's times. A
        # full merge is then due again only after since has advanced.
        since=request.advanced_to if request.is_expired is None else request.since,
        runs=written.runs,
    )


async def _drop(shard: ShardHandle, parts: Sequence[Part]) -> None:
    try:
        await shard.store.delete([part.path for part in parts if part.path is not None])
    except LocationError:
        return  # The objects leak until a sweep, because no state names them.


def common_bucket(buckets: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the smallest bucket that contains all of some buckets; see `Part`."""
    return reduce(_joined, buckets)


def _joined(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    count = gcd(one[0], other[0], one[1] - other[1])
    return count, one[1] % count
