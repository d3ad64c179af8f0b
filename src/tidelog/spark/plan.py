"""The plan of a tick on Spark: the tasks that decode, and the tasks where messages of a key meet.

A small tick is one task. In a larger one, tasks decode pieces of the ranges. With the envelope
``none``, they write the rows that they decoded. With ``upsert``, they send each message to the task
for the bucket of its key. The number of buckets is ``shards * k``. Bucket and shard are the key's
hash modulo their number, so each bucket belongs to one shard. Pure.

Invariants: each record of a range is in exactly one piece; a share holds its own pieces and the
parts of its own shards, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import msgspec
import numpy as np

from tidelog.collection.ingest.compute import Job, Target
from tidelog.collection.source.binding import AddressRange
from tidelog.collection.source.fetch import can_be_shared
from tidelog.collection.source.survey_result import SMALL_SURVEY_BYTES, SurveyJob


@dataclass(frozen=True, slots=True, kw_only=True)
class TickSettings:
    """The sizes that determine the tasks of a tick.

    Units: bytes of the source. A tick up to ``small_bytes`` is one task: sending its messages would
        take longer than more cores save. A task gets at least ``task_bytes_min`` while cores are
        free, and at most ``task_bytes_max``. Opening a range costs as much as reading
        ``range_bytes``. The driver does a survey of at most ``driver_bytes`` itself: reading that
        takes less time than starting a job.
    """

    small_bytes: int = 16 * 1024 * 1024
    task_bytes_min: int = 8 * 1024 * 1024
    task_bytes_max: int = 64 * 1024 * 1024
    range_bytes: int = 128 * 1024
    driver_bytes: int = SMALL_SURVEY_BYTES


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a range that start in ``[low, high)``.

    Shape: ``rank`` is the index of the range in the tick.
    """

    rank: int
    found: AddressRange
    low: int
    high: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one task, as a plain value.

    Shape: ``job`` has all ranges, and the task does the whole tick; or it has no ranges, and the
        task decodes ``pieces``; or it has neither, and messages come from other tasks. The job's
        shards are those at ``places`` in the output.
    """

    location_url: str
    job: Job
    places: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    buckets: int = 1
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The shares of the first stage and, if there is one, of the second, by partition."""

    shares: tuple[Share, ...]
    finishes: tuple[Share, ...] = ()


def plan_tick(job: Job, *, location_url: str, cores: int, settings: TickSettings) -> TickPlan:
    """Divide a tick into tasks."""
    size = sum(_weight(r, settings) for r in job.ranges)
    tasks = tasks_count(size, cores, settings)
    places = tuple(range(len(job.shards)))
    if size <= settings.small_bytes or tasks == 1:
        return TickPlan((Share(location_url=location_url, job=job, places=places),))
    finishes: tuple[Share, ...] = ()
    buckets = partitions = 1
    if job.source.envelope == "upsert":
        buckets, partitions = _buckets_count(len(job.shards), tasks)
        finishes = tuple(
            _finish(job, location_url, partition, buckets, partitions)
            for partition in range(partitions)
        )
    # A task with only a share of a shard inlines no parts: many of them would bloat the state.
    bare = _with_targets(job, [target_of_share(target) for target in job.shards])
    shares = tuple(
        Share(
            location_url=location_url,
            job=bare,
            places=places,
            pieces=tuple(pieces),
            buckets=buckets,
            partitions=partitions,
        )
        for pieces in share_out(job, tasks, settings)
    )
    return TickPlan(shares, finishes)


def share_out(job: Job, tasks: int, settings: TickSettings) -> Iterator[list[Piece]]:
    """Yield at most ``tasks`` lists of pieces, in order, of about equal weight."""
    weights = [_weight(r, settings) for r in job.ranges]
    width = max(1, sum(weights) // tasks)
    pieces: list[Piece] = []
    piece_weights: list[float] = []
    for rank, (address_range, weight) in enumerate(zip(job.ranges, weights, strict=True)):
        count = (
            max(1, round(weight / width)) if can_be_shared(job.source, address_range.path) else 1
        )
        cuts = cut_range(address_range, count)
        for low, high in pairwise(cuts):
            pieces.append(Piece(rank=rank, found=address_range, low=low, high=high))
            piece_weights.append(weight / (len(cuts) - 1))
    for first, limit in pack(piece_weights, tasks):
        yield [_join(list(of_range)) for _, of_range in groupby(pieces[first:limit], _rank)]


def pack(weights: Sequence[float], count: int) -> list[tuple[int, int]]:
    """Return at most ``count`` runs ``[first, limit)`` of items, in order, of similar weight."""
    sizes = np.asarray(weights, dtype=np.float64)
    until = np.cumsum(sizes)
    # The middle of an item decides its run, so a heavy item does not pull its neighbours along.
    places = (until - sizes / 2) * count / max(1.0, float(until[-1]))
    runs = np.minimum(places.astype(np.int64), count - 1)
    return list(pairwise([0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(sizes)]))


def cut_range(found: AddressRange, count: int) -> list[int]:
    """Return the offsets that cut a range into about ``count`` pieces, start and limit included.

    The range decides which offsets are possible: see `AddressRange.cut_at`.
    """
    cuts = found.cut_at(np.linspace(found.start, found.limit, count + 1).astype(np.int64)[1:-1])
    inner = {cut for cut in cuts.tolist() if found.start < cut < found.limit}
    return [found.start, *sorted(inner), found.limit]


def share_survey(job: SurveyJob, cores: int, settings: TickSettings) -> list[SurveyJob]:
    """Divide the pieces of a survey into jobs of about equal weight, in order."""
    weights = [piece.weight_bytes + settings.range_bytes for piece in job.pieces]
    tasks = tasks_count(sum(weights), cores, settings)
    return [
        msgspec.structs.replace(job, pieces=job.pieces[first:limit])
        for first, limit in pack(weights, tasks)
    ]


def _rank(piece: Piece) -> int:
    return piece.rank


def _join(pieces: Sequence[Piece]) -> Piece:
    """Join adjacent pieces of one range, so that their task reads it once."""
    return msgspec.structs.replace(pieces[0], high=pieces[-1].high)


def _weight(address_range: AddressRange, settings: TickSettings) -> int:
    return address_range.weight_bytes + settings.range_bytes


def tasks_count(size: int, cores: int, settings: TickSettings) -> int:
    """Return the number of tasks for ``size`` bytes on a number of cores."""
    wanted = min(size // settings.task_bytes_min, cores)
    tasks = max(1, wanted, -(-size // settings.task_bytes_max))
    # Beyond one task per core, use whole rounds: a round of one task would leave cores idle.
    return tasks if tasks <= cores else cores * -(-tasks // cores)


def _buckets_count(shards: int, tasks: int) -> tuple[int, int]:
    """Return the number of buckets, a multiple of ``shards``, and of the second stage's tasks."""
    if tasks <= shards:
        return shards, tasks
    buckets = shards * -(-tasks // shards)
    return buckets, buckets


def _finish(job: Job, location_url: str, partition: int, buckets: int, partitions: int) -> Share:
    count = len(job.shards)
    places = tuple(sorted({b % count for b in range(partition, buckets, partitions)}))
    targets = [job.shards[place] for place in places]
    if buckets > count:
        targets = [_changed(t, may_inline=False, bucket=(buckets, partition)) for t in targets]
    return Share(
        location_url=location_url,
        job=_with_targets(job, targets),
        places=places,
        buckets=buckets,
        partitions=partitions,
    )


def _with_targets(job: Job, targets: Sequence[Target]) -> Job:
    return msgspec.structs.replace(
        job, ranges=(), shards=tuple(targets), errors=target_of_share(job.errors)
    )


def target_of_share(target: Target) -> Target:
    """Return a target for one of several tasks: without earlier parts, and without inline ones."""
    return _changed(target, may_inline=False, parts=())


def _changed(target: Target, **changes: Any) -> Target:
    """Return a target with changes, which also apply to its deletions."""
    beside = target.deletions and msgspec.structs.replace(target.deletions, **changes)
    return msgspec.structs.replace(target, **changes, deletions=beside)
