"""The plan of a tick on Spark: which task decodes what, and where the messages of a key meet. Pure.

A small tick is one task. In a larger one, tasks decode pieces of the ranges. With the envelope
``none`` they write what they decoded; with ``upsert`` they hand each message on, to the task for
the bucket of its key. There are ``shards * k`` buckets: as both are the key's hash modulo their
number, each bucket lies in one shard.

Invariants: each record of a range lies in exactly one piece; a share carries its own pieces, and
its own shards' parts, and nothing of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import msgspec
import numpy as np

from tidelog.collection.binding import SourceRange
from tidelog.collection.compute import Job, Target
from tidelog.collection.dialect import CsvDialect
from tidelog.collection.lines import record_ends


@dataclass(frozen=True, slots=True, kw_only=True)
class TickSettings:
    """How a tick is cut into tasks.

    Units: bytes of the source. A tick up to ``small_bytes`` is one task: to hand its messages on
        would take longer than more cores save. A task gets ``task_bytes_min`` or more where there
        are cores to spare, and ``task_bytes_max`` at the most. To open a range costs as much as
        ``range_bytes`` of it. Each task that has a piece of a range reads all of the range, to
        check it: hence ``pieces_max``.
    """

    small_bytes: int = 16 * 1024 * 1024
    task_bytes_min: int = 8 * 1024 * 1024
    task_bytes_max: int = 64 * 1024 * 1024
    range_bytes: int = 128 * 1024
    pieces_max: int = 8


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a range that start in ``[low, high)``.

    Shape: ``rank`` is the range's place among the tick's; of parquet, a piece is a whole range.
    """

    rank: int
    found: SourceRange
    low: int
    high: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one task does, as a plain value.

    Shape: ``job`` has all ranges, and is done whole; or it has none, and ``pieces`` are decoded; or
        there are none either, and messages come from other tasks. Its shards are those at
        ``places`` among the output's.
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
    """Cut a tick into tasks."""
    size = sum(_weight(r, job, settings) for r in job.ranges)
    tasks = _tasks_count(size, cores, settings)
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
    # Who writes but a share of a shard puts no parts into its state: many would swell it.
    bare = _with_targets(job, [_bare(target) for target in job.shards])
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
    """Share the ranges out, in order, into at most ``tasks`` lists of about equal weight."""
    weights = [_weight(r, job, settings) for r in job.ranges]
    width = max(1, sum(weights) // tasks)
    pieces: list[Piece] = []
    piece_weights: list[float] = []
    for rank, (found, weight) in enumerate(zip(job.ranges, weights, strict=True)):
        whole = job.source.format == "parquet"
        count = 1 if whole else min(settings.pieces_max, max(1, round(weight / width)))
        cuts = np.linspace(found.start, found.limit, count + 1).astype(np.int64).tolist()
        for low, high in pairwise(cuts):
            pieces.append(Piece(rank=rank, found=found, low=low, high=high))
            piece_weights.append(weight / count)
    for first, limit in pack(piece_weights, tasks):
        yield [_join(list(of_range)) for _, of_range in groupby(pieces[first:limit], _rank)]


def pack(weights: Sequence[float], count: int) -> list[tuple[int, int]]:
    """Pack items, in order, into at most ``count`` runs ``[first, limit)`` of like weight."""
    sizes = np.asarray(weights, dtype=np.float64)
    until = np.cumsum(sizes)
    # An item goes where its middle falls, so that a heavy one does not drag its neighbours along.
    places = (until - sizes / 2) * count / max(1.0, float(until[-1]))
    runs = np.minimum(places.astype(np.int64), count - 1)
    return list(pairwise([0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(sizes)]))


def cut_piece(
    piece: Piece, data: bytes, dialect: CsvDialect | None = None
) -> tuple[SourceRange, bytes]:
    """Return a piece of a range whose bytes are ``data`` as a range of its own, with its bytes."""
    found = piece.found
    if piece.low == found.start and piece.high == found.limit:
        return found, data
    ends = record_ends(data, dialect)
    starts = np.unique(np.concatenate([[0], ends, [len(data)]]))
    first, last = np.searchsorted(starts, [piece.low - found.start, piece.high - found.start])
    start, limit = int(starts[first]), int(starts[last])
    cut = msgspec.structs.replace(found, start=found.start + start, limit=found.start + limit)
    return cut, data[start:limit]


def _rank(piece: Piece) -> int:
    return piece.rank


def _join(pieces: Sequence[Piece]) -> Piece:
    """Join pieces of one range that follow each other, so that their task reads it once."""
    return msgspec.structs.replace(pieces[0], high=pieces[-1].high)


def _weight(found: SourceRange, job: Job, settings: TickSettings) -> int:
    # How large a parquet file's row groups are, only its footer says: the file's size will do.
    size = found.size_bytes if job.source.format == "parquet" else found.limit - found.start
    return size + settings.range_bytes


def _tasks_count(size: int, cores: int, settings: TickSettings) -> int:
    wanted = min(size // settings.task_bytes_min, cores)
    tasks = max(1, wanted, -(-size // settings.task_bytes_max))
    # Beyond one round of all cores in whole rounds: in one for a single task, the others wait.
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
    return msgspec.structs.replace(job, ranges=(), shards=tuple(targets), errors=_bare(job.errors))


def _bare(target: Target) -> Target:
    return _changed(target, may_inline=False, parts=())


def _changed(target: Target, **changes: Any) -> Target:
    """Return a target that is otherwise, and what is kept beside it as well."""
    beside = target.deletions and msgspec.structs.replace(target.deletions, **changes)
    return msgspec.structs.replace(target, **changes, deletions=beside)
