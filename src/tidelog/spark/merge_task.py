"""The tasks of a merge, which run in executors.

They read, merge and write as `tidelog.persist.maintenance` does in one process. A task that runs
twice writes its parts twice, under unique names. Parts that no result names remain until a sweep
deletes them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.dataset as pads

from tidelog.core.clock import Clock, SystemClock
from tidelog.core.frames import stream_bytes
from tidelog.core.ids import ShardId
from tidelog.errors import LocationError, TidelogError
from tidelog.persist.format.duck import bounded_duck
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema, decode_schema
from tidelog.persist.maintenance.merge_rows import BATCH_ROWS, RowMerger, summed
from tidelog.persist.read.reader import PartReader
from tidelog.persist.write.writer import PartWriter
from tidelog.rowhash import RowSum
from tidelog.spark.job import portable
from tidelog.spark.kept_store import open_fresh
from tidelog.spark.merge_plan import MergeJob, pieces_of
from tidelog.spark.worker import use_one_core
from tidelog.store.port import Store

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """The parts that a task wrote, and the change of V by its reads: see `RowMerger`."""

    place: int
    parts: tuple[Part, ...]
    restated: bytes


PlaceOutcome = PlaceResult | TidelogError
# Passed from the first stage to the second; rows as bytes.
StageOutput = bytes | RowSum | TidelogError


def join_parts(
    items: Iterable[tuple[int, Sequence[Part]]], *, job: MergeJob
) -> Iterator[PlaceOutcome]:
    """Join parts into larger ones, in their order, if no update retracts another."""
    with _Work(job) as work:
        for place, parts in items:
            yield _outcome_of(partial(work.join, place, parts))


def cut_parts(
    items: Iterable[Sequence[Part]], *, job: MergeJob
) -> Iterator[tuple[int, StageOutput]]:
    """Read parts, and send the rows of each place to it, as Arrow IPC bytes."""
    with _Work(job) as work:
        for parts in items:
            for part in parts:
                try:
                    table = asyncio.run(work.merger.load(part))
                except LocationError:
                    raise  # Spark retries the task, maybe on another executor.
                except TidelogError as error:
                    yield 0, portable(error)
                    return
                for place, piece in pieces_of(table, job, work.schema):
                    yield place, stream_bytes(piece, "lz4", rows=BATCH_ROWS)
        yield 0, work.merger.restated


def merge_places(
    items: Iterable[tuple[int, StageOutput]], *, job: MergeJob
) -> Iterator[PlaceOutcome]:
    """Merge the rows of a place, and write the result."""
    with _Work(job) as work:
        yield _outcome_of(partial(work.merge, iter(items)))


class _Work:
    """The context of a merge in a task; its folder is deleted at the end."""

    def __init__(self, job: MergeJob) -> None:
        use_one_core()
        self.job = job
        self.clock: Clock = SystemClock()
        self.schema: ShardSchema = decode_schema(job.schema)
        self.store: Store = open_fresh(job.location_url)
        reader = PartReader(store=self.store, clock=self.clock)
        self.merger = RowMerger(schema=self.schema, reader=reader, out_bytes=job.part_bytes)
        self._folder = tempfile.TemporaryDirectory(prefix="tidelog-merge-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    async def join(self, place: int, parts: Sequence[Part]) -> PlaceResult:
        async with aclosing(self.merger.joined(parts, self.job.advanced_to)) as tables:
            written = await self._write(tables)
        return PlaceResult(place, written, self.merger.restated.to_bytes())

    async def merge(self, handed: Iterator[tuple[int, StageOutput]]) -> PlaceResult:
        folder = Path(self._folder.name)
        path = folder / "rows"
        place, restated = self._gather(handed, path)
        made = summed(
            pads.dataset([str(path)], schema=self.schema.updates, format="ipc"),
            schema=self.schema,
            advanced_to=self.job.advanced_to,
            clock=self.clock,
            out_bytes=self.job.part_bytes,
            database=partial(bounded_duck, self.job.memory_bytes, str(folder / "spill")),
        )
        async with aclosing(made) as tables:
            written = await self._write(tables)
        return PlaceResult(place, written, restated.to_bytes())

    def _gather(self, handed: Iterator[tuple[int, StageOutput]], path: Path) -> tuple[int, RowSum]:
        """Write the rows of a place to a file, in the order of their arrival."""
        at, restated = 0, RowSum.zero()
        with pa.ipc.new_file(str(path), self.schema.updates, options=_OPTIONS) as sink:
            for place, output in handed:
                at = place
                if isinstance(output, TidelogError):
                    raise output
                if isinstance(output, RowSum):
                    restated = restated + output
                    continue
                with pa.ipc.open_stream(pa.py_buffer(output)) as stream:
                    sink.write_table(stream.read_all(), max_chunksize=BATCH_ROWS)
        return at, restated

    async def _write(self, tables: AsyncIterator[pa.Table]) -> tuple[Part, ...]:
        writer = PartWriter(
            store=self.store,
            clock=self.clock,
            shard=ShardId(self.job.shard),
            schema=self.schema,
            write_epoch=self.job.write_epoch,
            part_bytes=self.job.part_bytes,
        )
        parts: list[Part] = []
        async for table in tables:
            parts += await writer.write(table, inline=False)
        return tuple(parts)


def _outcome_of(work: Callable[[], Coroutine[Any, Any, PlaceResult]]) -> PlaceOutcome:
    try:
        return asyncio.run(work())
    except LocationError:
        raise  # Spark retries the task, maybe on another executor.
    except TidelogError as error:
        return portable(error)
