"""The tasks of a tick in executors: they read, compute, write parts, and return results.

Each function takes and yields plain values, like Spark's RDDs. `tidelog.collection.ingest.compute`
computes, as in every engine. No task uses consensus. A task that runs twice writes its parts twice,
under unique names; parts that no commit names are garbage.

Invariants: an error, foreseen or not, is a value among the results, so it reaches the driver
unchanged. Spark retries a task whose process died or had no memory left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.ingest.compute import Job, ShapedRange, error_updates, part_writer
from tidelog.collection.ingest.engine import (
    LocalEngine,
    OutputParts,
    TickParts,
    read_and_shape,
    summarize,
    survey_here,
)
from tidelog.collection.ingest.envelope import (
    DELETE,
    OWN,
    hash_keys,
    last_of_each,
    messages_schema,
    restamp_rows,
)
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.kinds import open_source, register_kind
from tidelog.collection.source.port import RawSource
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.core.clock import Clock, SystemClock, run_all
from tidelog.core.frames import stream_bytes
from tidelog.errors import LocationError, TidelogError, unforeseen
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import TIME
from tidelog.rowhash import bucket_of
from tidelog.spark.job import portable
from tidelog.spark.plan import Piece, Share
from tidelog.spark.spilled import rows_on_disk
from tidelog.spark.worker import use_one_core
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore, Usage, usage_of
from tidelog.store.wrapping import open_wrapped

CACHE_BYTES = 256 * 1024 * 1024
READS_MAX = 4

T = TypeVar("T")
S = TypeVar("S", bound="AnyShare")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of a task; its parts belong to the shards at ``places`` in the output."""

    places: tuple[int, ...]
    computed: TickParts


class AnyShare(Protocol):
    """The work of a task, for the location at a URL."""

    @property
    def location_url(self) -> str: ...


class SurveyShare(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one task of a survey, as a plain value.

    ``keeps_rows``: the tasks that compute the bound ranges run on the same machine.
    """

    location_url: str
    job: SurveyJob
    keeps_rows: bool = False


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages for the shard at ``place``, as an Arrow stream; see `_packed`.

    A task that decodes messages sends them to the tasks of their keys' buckets. The receiving task
    computes the times again from the row, its binding and its source, so the times are not sent. If
    several messages of a key have one time, each task sends only the last.
    """

    place: int
    data: bytes


Outcome = TaskResult | TidelogError
SurveyOutcome = tuple[bytes, Usage] | TidelogError
StageInput = tuple[
    int, Share | Messages | Outcome
]  # A partition of the second stage, and its input.


@dataclass(slots=True, kw_only=True)
class WorkerState:
    """The state that a worker keeps between tasks: open stores, and the parts read last."""

    clock: Clock
    location_url: str
    store: Store = field(init=False)
    engine: LocalEngine = field(init=False)
    _sources: dict[str, MeteringStore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = open_wrapped(self.location_url, clock=self.clock).whole
        self.engine = LocalEngine(store=self.store, clock=self.clock, cache_bytes=CACHE_BYTES)
        use_one_core()

    def source(self, job: Job | SurveyJob) -> RawSource:
        """Open a job's source, on stores that stay open."""
        if job.kind is not None:
            register_kind(job.kind)
        source = open_source(
            job.source,
            job.data_schema,
            store=self.store,
            clock=self.clock,
            opened=self._sources,
        )
        if isinstance(source, FilesSource):
            source.rows = rows_on_disk(job, clock=self.clock)
        return source

    def usage(self) -> Usage:
        """Return the requests of all stores since they were opened."""
        return sum((store.usage() for store in self._sources.values()), usage_of(self.store))


# One for each process and location, since opening a store connects again. The key includes the
# process id, since Spark forks its workers.
_benches: dict[tuple[int, str], WorkerState] = {}


def run_shares(shares: Iterable[Share]) -> Iterator[Outcome]:
    """Do shares completely, from ranges or pieces to parts."""
    # Spark discards a worker that leaves input unread, so the task reads all of it first.
    for share in list(shares):
        yield with_worker(share, run_share)


def shape_shares(given: Iterable[tuple[Share, Sequence[Share]]]) -> Iterator[StageInput]:
    """Decode shares; send on their messages by key, and the second stage's shares."""
    for share, finishes in list(given):
        yield from enumerate(finishes)
        shaped = with_worker(share, shape_share)
        if isinstance(shaped, TidelogError):
            yield from to_all(shaped, share.partitions)
        else:
            output, messages = shaped
            yield 0, output
            try:
                yield from hand_on(messages, share)
            except Exception as error:  # noqa: BLE001 - see `with_worker`
                failed = portable(unforeseen(error, "a task of Spark"))
                yield from to_all(failed, share.partitions)


def to_all(error: TidelogError, partitions: int) -> Iterator[tuple[int, TidelogError]]:
    """Send an error to all partitions, so that none writes parts in vain."""
    yield from ((partition, error) for partition in range(partitions))


def finish_shares(handed: Iterable[StageInput]) -> Iterator[Outcome]:
    """Do shares with messages from other tasks, and pass on the results of these tasks."""
    given = [item for _, item in handed]
    failed = [item for item in given if isinstance(item, TidelogError)]
    if failed:
        yield failed[0]
        return
    yield from (item for item in given if isinstance(item, TaskResult))
    messages = [item for item in given if isinstance(item, Messages)]
    for share in given:
        if isinstance(share, Share):
            yield with_worker(share, lambda s, bench: finish_share(s, messages, bench))


def run_surveys(shares: Iterable[SurveyShare]) -> Iterator[SurveyOutcome]:
    """Survey pieces of files."""
    for share in list(shares):
        outcome = with_worker(share, run_survey)
        yield outcome


async def run_survey(share: SurveyShare, bench: WorkerState) -> tuple[bytes, Usage]:
    """Survey a share of the pieces; see `Engine.survey`.

    Raises:
        SourceRewritten, GoneError: an object of the source changed or disappeared.
        LocationError: a store failed.
    """
    before = bench.usage()
    job = share.job
    source = bench.source(job)
    if isinstance(source, FilesSource):
        source.kept_bytes_max = 0
        source.rows = source.rows if share.keeps_rows else None
    done = await survey_here(job, source, at_once=READS_MAX)
    # As one bytes value: pickling many small values would take longer than making them.
    return msgspec.msgpack.encode(done.found), bench.usage() - before


async def run_share(share: Share, bench: WorkerState) -> TaskResult:
    """Do a share completely.

    Raises:
        SourceRewritten, GoneError: an object of the source changed or disappeared.
        LocationError: a store failed.
    """
    before = bench.usage()
    if share.job.ranges:
        computed = await bench.engine.compute(share.job, bench.source(share.job))
    else:
        computed = await bench.engine.write_shaped(await _shape(share, bench), share.job)
    return result_of(share.places, computed, bench, before)


async def shape_share(share: Share, bench: WorkerState) -> tuple[TaskResult, pa.Table]:
    """Decode a share's pieces, write its bad records, and return its messages.

    Raises:
        SourceRewritten, GoneError: an object of the source changed or disappeared.
        LocationError: a store failed.
    """
    before = bench.usage()
    shaped = await _shape(share, bench)
    nothing = [OutputParts() for _ in share.places]
    computed = summarize(shaped, nothing, await _write_errors(shaped, share, bench))
    messages = pa.concat_tables([s.messages for s in shaped])
    return result_of(share.places, computed, bench, before), messages


async def finish_share(share: Share, given: Sequence[Messages], bench: WorkerState) -> TaskResult:
    """Write the output's parts from messages of other tasks.

    Raises:
        LocationError: the store failed.
    """
    before = bench.usage()
    nothing = messages_schema(share.job.data_schema).empty_table()
    buckets = [
        pa.concat_tables([nothing, *(received(m, share.job) for m in given if m.place == place)])
        for place in share.places
    ]
    written = await _write(buckets, share, bench)
    return result_of(share.places, summarize([], written, []), bench, before)


async def _shape(share: Share, bench: WorkerState) -> list[ShapedRange]:
    source = bench.source(share.job)

    async def shape_piece(piece: Piece) -> ShapedRange:
        return await read_and_shape(
            source,
            piece.found,
            piece.rank,
            share.job,
            clock=bench.clock,
            low=piece.low,
            high=piece.high,
        )

    return await run_all([partial(shape_piece, piece) for piece in share.pieces], at_once=READS_MAX)


async def _write(
    buckets: Sequence[pa.Table], share: Share, bench: WorkerState
) -> list[OutputParts]:
    pairs = zip(buckets, share.job.shards, strict=True)
    return [await bench.engine.write(bucket, target, share.job) for bucket, target in pairs]


async def _write_errors(
    shaped: Sequence[ShapedRange], share: Share, bench: WorkerState
) -> list[Part]:
    """Write a share's bad records. If all records are bad, they are too many for the driver."""
    errors = pa.concat_tables([s.errors for s in shaped])
    target = share.job.errors
    writer = part_writer(bench.store, bench.clock, target, ERRORS_SCHEMA)
    return await writer.write(error_updates(errors, share.job), inline=target.may_inline)


def with_worker(share: S, work: Callable[[S, WorkerState], Awaitable[T]]) -> T | TidelogError:
    """Do work with this process's `WorkerState`; return a TidelogError instead of raising it."""
    place = os.getpid(), share.location_url
    bench = _benches.get(place)
    try:
        if bench is not None:
            try:
                return asyncio.run(_awaited(work(share, bench)))
            except LocationError:
                # The open connections may be the cause: a new location, or an expired login.
                del _benches[place]
        bench = _benches[place] = WorkerState(clock=SystemClock(), location_url=share.location_url)
        return asyncio.run(_awaited(work(share, bench)))
    except TidelogError as error:
        return portable(error)
    except MemoryError:
        raise  # Spark retries the task, maybe on an executor with more memory.
    except Exception as error:  # noqa: BLE001 - a retry would fail in the same way
        return portable(unforeseen(error, "a task of Spark"))


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def result_of(
    places: tuple[int, ...], computed: TickParts, bench: WorkerState, before: Usage
) -> TaskResult:
    """Return the result of a task, with its requests since ``before``."""
    usage = bench.usage() - before
    return TaskResult(places=places, computed=replace(computed, usage=usage))


def hand_on(messages: pa.Table, share: Share) -> Iterator[tuple[int, Messages]]:
    """Yield messages, each with the partition of its keys."""
    job = share.job
    named = hash_keys(messages, job.data_schema)
    buckets = bucket_of(named, share.buckets)
    if job.source.time_column is None:
        # All messages have one time. With event times, most keys occur once per time.
        there = np.zeros(messages.num_rows, dtype=np.bool_)
        there[last_of_each(messages, named)] = True
        buckets[~there] = -1
    for bucket in range(share.buckets):
        rows = messages.filter(pa.array(buckets == bucket))
        if rows.num_rows:
            yield bucket % share.partitions, Messages(bucket % len(share.places), _packed(rows))


def received(messages: Messages, job: Job) -> pa.Table:
    """Return the messages in their original order, with their times computed again."""
    schema = job.data_schema
    with pa.ipc.open_stream(pa.py_buffer(messages.data)) as stream:
        rows = stream.read_all()
    rows = restamp_rows(rows, job.source, lower=job.lower, upper=job.upper)
    if DELETE not in rows.column_names:
        rows = rows.append_column(DELETE, pa.array(np.zeros(rows.num_rows, dtype=np.bool_)))
    wanted = messages_schema(schema)
    return rows.select(wanted.names).cast(wanted)


def _packed(messages: pa.Table) -> bytes:
    """Return messages as an Arrow stream: their rows, ranks and offsets.

    Shape: the column of deletes is present only if there are any.
    """
    names = [n for n in messages.column_names if n not in (TIME, OWN)]
    if not messages.column(DELETE).to_numpy().any():
        names.remove(DELETE)
    return stream_bytes(messages.select(names))
