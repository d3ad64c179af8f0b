"""Backfills on Spark: the steps of a copy, and the ranges of a source that reads a collection.

Both read parts of the location. The driver plans from the states, so tasks need no consensus.

The parts of a copy do not depend on each other: a task reads some of them, and writes parts for
all shards. The updates of a range must be consolidated before they are decoded. So the tasks that
read send each update to the task of its row's bucket, which consolidates, decodes and writes.
Invariants: the updates are those of the local engine, for each number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.ingest.compute import Job, ShapedRange, shape_messages
from tidelog.collection.ingest.copy_job import CopyJob, StepParts
from tidelog.collection.source.followed import as_data
from tidelog.core.frames import stream_bytes
from tidelog.errors import TidelogError
from tidelog.persist.format.part import with_one_time
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import consolidate
from tidelog.rowhash import bucket_of, hash_rows
from tidelog.spark.plan import TickSettings, pack, target_of_share, tasks_count
from tidelog.spark.scan import Scan, changes_of, contents, narrowed
from tidelog.spark.scan_plan import load_scan
from tidelog.spark.task import TaskResult, WorkerState, result_of, to_all, with_worker


class CopyShare(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one task of a copy, as a plain value."""

    location_url: str
    job: CopyJob


class ReadShare(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one task that reads updates, and sends them to ``partitions``."""

    location_url: str
    scans: tuple[Scan, ...]
    partitions: int


class DecodeShare(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one task that decodes the updates of a bucket. ``scan`` has their columns."""

    location_url: str
    job: Job
    scan: Scan


def plan_copy(
    job: CopyJob, *, location_url: str, cores: int, settings: TickSettings
) -> list[CopyShare]:
    """Divide a step of a copy into tasks, by parts of about equal size together. Pure."""
    parts = [(place, part) for place, lane in enumerate(job.lanes) for part in lane.parts]
    weights = [part.size_bytes + settings.range_bytes for _, part in parts]
    tasks = _tasks_of(sum(weights), cores, settings)
    if tasks == 1:
        return [CopyShare(location_url=location_url, job=job)] if parts else []
    shares = []
    for first, limit in pack(weights, tasks):
        own = parts[first:limit]
        lanes = (
            msgspec.structs.replace(
                lane,
                parts=tuple(part for at, part in own if at == place),
                shards=tuple(map(target_of_share, lane.shards)),
            )
            for place, lane in enumerate(job.lanes)
        )
        job_of_task = msgspec.structs.replace(job, lanes=tuple(lanes))
        shares.append(CopyShare(location_url=location_url, job=job_of_task))
    return shares


def plan_range(
    job: Job, scans: Sequence[Scan], *, location_url: str, cores: int, settings: TickSettings
) -> tuple[list[ReadShare], list[DecodeShare]]:
    """Divide the reads and the decoding of a range of another collection into tasks. Pure."""
    weights = [scan.size_bytes + settings.range_bytes for scan in scans]
    tasks = _tasks_of(sum(weights), cores, settings)
    if tasks > 1:
        targets = tuple(map(target_of_share, job.shards))
        job = msgspec.structs.replace(job, shards=targets, errors=target_of_share(job.errors))
    reads = [
        ReadShare(location_url=location_url, scans=tuple(scans[first:limit]), partitions=tasks)
        for first, limit in pack(weights, tasks)
    ]
    form = msgspec.structs.replace(scans[0], parts=(), former=None)
    decodes = [DecodeShare(location_url=location_url, job=job, scan=form)] * tasks
    return reads, decodes


def _tasks_of(size: int, cores: int, settings: TickSettings) -> int:
    return 1 if size <= settings.small_bytes else tasks_count(size, cores, settings)


def run_copies(shares: Iterable[CopyShare]) -> Iterator[StepParts | TidelogError]:
    """Copy shares of a step."""
    for share in list(shares):
        yield with_worker(share, _copy)


async def _copy(share: CopyShare, bench: WorkerState) -> StepParts:
    before = bench.usage()
    done = await bench.engine.copy(share.job)
    return replace(done, usage=bench.usage() - before)


def read_shares(
    given: Iterable[tuple[ReadShare, Sequence[DecodeShare]]],
) -> Iterator[tuple[int, Any]]:
    """Read updates, and send them on by the buckets of their rows, and the second stage's work."""
    for share, decodes in list(given):
        yield from enumerate(decodes)
        found = with_worker(share, _read)
        if isinstance(found, TidelogError):
            yield from to_all(found, share.partitions)
        else:
            yield from enumerate(found)


async def _read(share: ReadShare, bench: WorkerState) -> list[bytes]:
    """Return the updates of each partition, as Arrow streams."""
    form = narrowed(share.scans[0])
    pieces: list[list[pa.Table]] = [[] for _ in range(share.partitions)]
    for scan in share.scans:
        tables = await load_scan(scan, bench.store)
        for updates in await bench.clock.offload(partial(_updates_of, scan, tables, form)):
            hashes = hash_rows([updates.column(n) for n in form.names], rows=updates.num_rows)
            places = bucket_of(hashes, share.partitions)
            for partition, waiting in enumerate(pieces):
                waiting.append(updates.take(np.flatnonzero(places == partition)))
    nothing = form.updates.empty_table()
    return [stream_bytes(pa.concat_tables([nothing, *waiting])) for waiting in pieces]


def _updates_of(scan: Scan, tables: Sequence[pa.Table], form: ShardSchema) -> list[pa.Table]:
    """Return the updates of a scan; contents are updates at their time."""
    if scan.has_changes:
        return [changes_of(tables, scan)]
    wanted = form.contents
    return [
        with_one_time(rows.select(wanted.names).cast(wanted), scan.as_of, form.updates)
        for rows in contents(tables, scan)
    ]


def decode_shares(handed: Iterable[tuple[int, Any]]) -> Iterator[TaskResult | TidelogError]:
    """Decode the updates that other tasks have sent, and write the parts."""
    given = [item for _, item in handed]
    failed = [item for item in given if isinstance(item, TidelogError)]
    if failed:
        yield failed[0]
        return
    sent = [item for item in given if isinstance(item, bytes)]
    for share in given:
        if isinstance(share, DecodeShare):
            yield with_worker(share, partial(_decode, sent=sent))


async def _decode(share: DecodeShare, bench: WorkerState, *, sent: Sequence[bytes]) -> TaskResult:
    before, job = bench.usage(), share.job
    (found,) = job.ranges

    def decoded() -> ShapedRange:
        tables = [pa.ipc.open_stream(pa.py_buffer(one)).read_all() for one in sent]
        updates = consolidate(tables, narrowed(share.scan))
        return shape_messages(as_data(updates, job.source), found, 0, job)

    computed = await bench.engine.write_shaped([await bench.clock.offload(decoded)], job)
    return result_of(tuple(range(len(job.shards))), computed, bench, before)
