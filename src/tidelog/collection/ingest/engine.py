"""Engines: they do the work of a tick. The local engine does it in this process.

An engine reads ranges, computes updates and writes parts. It never uses consensus: the ingester
commits the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA, SourceInfo
from tidelog.collection.formats.records import Misfit
from tidelog.collection.ingest.compute import (
    Feedback,
    Job,
    ShapedRange,
    Target,
    error_updates,
    feedback_parts,
    part_writer,
    shape_messages,
    updates_of,
)
from tidelog.collection.ingest.copy_job import CopyJob, StepParts, copy_here
from tidelog.collection.source.binding import AddressRange
from tidelog.collection.source.decode import TextsNotKept, errors_table
from tidelog.collection.source.port import RawSource, SurveyResult
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.collection.table.placement import buckets_of
from tidelog.core.clock import Clock, run_all
from tidelog.errors import InvariantError, SourceRowsRefused, TidelogError, unforeseen
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.read.reader import PartReader
from tidelog.rowhash import Hashes
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import Usage

TICK_BYTES: Final = 64 * 1024 * 1024
SPARK_TICK_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OutputParts:
    """The new parts of one output shard, and of its deletions shard."""

    rows: Sequence[Part] = ()
    deleted: Sequence[Part] = ()

    def __add__(self, other: OutputParts) -> OutputParts:
        return OutputParts([*self.rows, *other.rows], [*self.deleted, *other.deleted])


@dataclass(frozen=True, slots=True)
class TickParts:
    """A tick's parts, written but not committed, and its counts.

    Shape: ``written`` has one item for each output shard.
    Units: ``rows`` and ``bad`` count rows; ``dropped`` counts values of fields that the schema
        lacks, by field. ``usage`` counts the requests of executors, not those of the driver.
    """

    written: Sequence[OutputParts]
    error_parts: Sequence[Part]
    rows: int
    bad: int
    dropped: Mapping[str, int]
    first_error: str | None = None
    usage: Usage = field(default_factory=Usage)


class Engine(Protocol):
    """A way to do a tick's work."""

    @property
    def name(self) -> str: ...

    @property
    def tick_bytes(self) -> int:
        """Return about how many bytes of the source make a tick worth its fixed costs."""
        ...

    async def survey(self, job: SurveyJob, source: RawSource) -> SurveyResult:
        """Read the pieces of files that a survey names, to learn what the next tick can ingest.

        Raises:
            SourceRewritten, GoneError: a file was changed, or no longer exists.
            LocationError: the source's store failed.
        """
        ...

    async def prepare(self, source: SourceInfo, ranges: Sequence[AddressRange]) -> None:
        """Check that this engine can compute ranges, before the ingester binds them.

        Raises:
            UsageError: a worker of the engine cannot; the message has the reason.
            LocationError: a store failed.
        """
        ...

    async def compute(self, job: Job, source: RawSource) -> TickParts:
        """Read the job's ranges, compute the updates and write their parts. Commit nothing.

        Raises:
            SourceRewritten, GoneError: a file was changed, or no longer exists.
            LocationError: a store failed.
        """
        ...

    async def copy(self, job: CopyJob) -> StepParts:
        """Do a step of a copy: read the updates of its parts, and write theirs. Commit nothing.

        Raises:
            UsageError: a worker of the engine cannot; the message has the reason.
            PartMissing: a merge has replaced a part: refresh the states, and plan again.
            CorruptionError, LocationError: reading or writing failed.
        """
        ...


async def compute_carefully(engine: Engine, job: Job, source: RawSource) -> TickParts:
    """Compute a job. After an unforeseen error, compute it again and find the rows that cause it.

    Those rows become bad rows, so one odd row does not stop the source.

    Raises:
        InvariantError: the second try failed too, so no single row is the cause.
        TidelogError: see `Engine`.
    """
    try:
        return await engine.compute(job, source)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, TidelogError) and not isinstance(error, InvariantError):
            raise
    careful = msgspec.structs.replace(job, is_careful=True)
    first, last = job.ranges[0], job.ranges[-1]
    try:
        return await engine.compute(careful, source)
    except (TidelogError, MemoryError):
        raise
    except Exception as error:
        what = f"the files from {first.path!r}, offset {first.start}, to {last.path!r}"
        raise unforeseen(error, what) from error


def nothing_computed(shards: int) -> TickParts:
    """Return the result for a binding without ranges."""
    return TickParts([OutputParts()] * shards, [], rows=0, bad=0, dropped={})


def rows_refused(computed: TickParts) -> SourceRowsRefused:
    """Return the error of a strict ingester for rows or fields that do not fit the schema."""
    if computed.first_error is not None:
        return SourceRowsRefused(
            f"{computed.bad} rows do not fit the schema, the first in {computed.first_error}: "
            "correct the data, or ingest without strict=True to store them in the errors "
            "collection"
        )
    names = ", ".join(f"{name} ({count})" for name, count in computed.dropped.items())
    return SourceRowsRefused(
        f"the data has fields outside the schema: {names}; 'tidelog source alter' can add them; or "
        "ingest without strict=True to drop them"
    )


@dataclass(slots=True, kw_only=True)
class LocalEngine:
    """An engine in this process, on Arrow and DuckDB. It caches parts that it read for feedback."""

    store: Store
    clock: Clock
    cache_bytes: int = 256 * 1024 * 1024
    reads: int = 4
    _reader: PartReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = PartReader(store=self.store, clock=self.clock, cache_bytes=self.cache_bytes)

    @property
    def name(self) -> str:
        return "local"

    @property
    def tick_bytes(self) -> int:
        return TICK_BYTES

    async def survey(self, job: SurveyJob, source: RawSource) -> SurveyResult:
        return await survey_here(job, source, at_once=self.reads)

    async def prepare(self, source: SourceInfo, ranges: Sequence[AddressRange]) -> None:
        """Do nothing: the process that binds the ranges also computes them."""

    async def compute(self, job: Job, source: RawSource) -> TickParts:
        return await self.write_shaped(await self._shape(job, source), job)

    async def write_shaped(self, shaped: Sequence[ShapedRange], job: Job) -> TickParts:
        """Compute the updates of decoded messages, and write their parts and the bad rows.

        Raises:
            LocationError: the store failed.
        """
        messages = pa.concat_tables([s.messages for s in shaped])
        errors = pa.concat_tables([s.errors for s in shaped])
        buckets = await self.clock.offload(lambda: split_by_bucket(messages, job))
        written = [
            await self.write(bucket, target, job)
            for bucket, target in zip(buckets, job.shards, strict=True)
        ]
        error_rows = await self.clock.offload(lambda: error_updates(errors, job))
        error_writer = part_writer(self.store, self.clock, job.errors, ERRORS_SCHEMA)
        error_parts = await error_writer.write(error_rows, inline=job.errors.may_inline)
        return summarize(shaped, written, error_parts)

    async def copy(self, job: CopyJob) -> StepParts:
        return await copy_here(job, store=self.store, clock=self.clock, reader=self._reader)

    async def _shape(self, job: Job, source: RawSource) -> list[ShapedRange]:
        work = [
            partial(read_and_shape, source, found, rank, job, clock=self.clock)
            for rank, found in enumerate(job.ranges)
        ]
        return await run_all(work, at_once=self.reads)

    async def write(self, messages: pa.Table, target: Target, job: Job) -> OutputParts:
        """Compute one shard's updates from its messages, and write their parts."""
        schema, deletions, kept = job.data_schema, target.deletions, job.deletions_schema
        feedback = Feedback(
            rows=await self._fed_back(messages, target, schema, job),
            deleted=await self._fed_back(messages, deletions, kept, job),
        )
        updates = await self.clock.offload(lambda: updates_of(messages, target, feedback, job))
        return OutputParts(
            rows=await self._write(updates.rows, target, schema, updates.hashes),
            deleted=await self._write(updates.deleted, deletions, kept),
        )

    async def _fed_back(
        self, messages: pa.Table, target: Target | None, schema: ShardSchema | None, job: Job
    ) -> list[pa.Table]:
        if target is None or schema is None:
            return []
        needed = await self.clock.offload(lambda: feedback_parts(messages, target, job))
        return await self._reader.read(needed, schema)

    async def _write(
        self,
        updates: pa.Table | None,
        target: Target | None,
        schema: ShardSchema | None,
        hashes: Hashes | None = None,
    ) -> list[Part]:
        if updates is None or target is None or schema is None:
            return []
        writer = part_writer(self.store, self.clock, target, schema)
        return await writer.write(updates, inline=target.may_inline, hashes=hashes)


async def read_and_shape(
    source: RawSource,
    found: AddressRange,
    rank: int,
    job: Job,
    *,
    clock: Clock,
    low: int | None = None,
    high: int | None = None,
) -> ShapedRange:
    """Return the messages of a range, or of its records that start in ``[low, high)``.

    Raises:
        SourceRewritten, GoneError: a file was changed, or no longer exists.
        LocationError: the source's store failed.
    """
    share, data = await source.read(found, low, high)
    try:
        return await clock.offload(partial(shape_messages, data, share, rank, job))
    except TextsNotKept:
        share, data = await source.read(found, low, high, anew=True)
        return await clock.offload(partial(shape_messages, data, share, rank, job))


async def survey_here(job: SurveyJob, source: RawSource, *, at_once: int) -> SurveyResult:
    """Read the pieces of a survey in this process, at most ``at_once`` concurrently."""
    work = [partial(source.survey, piece, job) for piece in job.pieces]
    return SurveyResult(await run_all(work, at_once=at_once))


def split_by_bucket(messages: pa.Table, job: Job) -> list[pa.Table]:
    """Return the messages of each shard, in the order of the job's shards."""
    if len(job.shards) == 1:
        return [messages]
    buckets = buckets_of(messages, job.data_schema, len(job.shards))
    return [messages.take(np.flatnonzero(buckets == index)) for index in range(len(job.shards))]


def summarize(
    shaped: Sequence[ShapedRange], written: Sequence[OutputParts], error_parts: Sequence[Part]
) -> TickParts:
    """Return a tick's parts, with the sums of the counts of its ranges."""
    dropped: Counter[str] = Counter()
    for share in shaped:
        dropped.update(share.dropped)
    first = next((s.errors for s in shaped if s.errors.num_rows), None)
    return TickParts(
        written,
        error_parts,
        rows=sum(s.rows for s in shaped),
        bad=sum(s.errors.num_rows for s in shaped),
        dropped=dict(dropped),
        first_error=None if first is None else describe_error(first),
    )


def describe_error(errors: pa.Table) -> str:
    """Return the file, the offset and the reason of the first bad record."""
    row = errors.slice(0, 1).to_pylist()[0]
    return f"{row['file']} at {row['offset']}: {row['reason']}"


async def write_skipped(
    computed: TickParts, ranges: Sequence[AddressRange], job: Job, *, store: Store, clock: Clock
) -> TickParts:
    """Write a bad row for each skipped range; return the result of the tick with these rows.

    Raises:
        LocationError: the store failed.
    """
    errors = [
        errors_table(found.path, [Misfit(found.first, _reason(found), "")]) for found in ranges
    ]
    rows = error_updates(pa.concat_tables(errors), job)
    writer = part_writer(store, clock, job.errors, ERRORS_SCHEMA)
    parts = await writer.write(rows, inline=job.errors.may_inline)
    return replace(
        computed,
        error_parts=[*computed.error_parts, *parts],
        bad=computed.bad + len(ranges),
    )


def _reason(found: AddressRange) -> str:
    return f"'tidelog source skip' skipped the rows up to {found.limit}"
