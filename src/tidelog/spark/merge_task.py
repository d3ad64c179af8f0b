"""The tasks of a merge: what runs in executors.

They read, merge and write as `tidelog.persist.upkeep` does in one process. A task that is tried
twice writes parts twice, under names of their own; those that no result names lie there until a
sweep takes them.
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

from tidelog.clock import Clock, SystemClock
from tidelog.errors import LocationError, TidelogError
from tidelog.ids import ShardId
from tidelog.persist.format.duck import bounded_duck
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema, decode_schema
from tidelog.persist.read.reader import PartReader
from tidelog.persist.upkeep.merge_rows import BATCH_ROWS, RowMerger, summed
from tidelog.persist.write.writer import PartWriter
from tidelog.rowhash import RowSum
from tidelog.spark.job import portable
from tidelog.spark.kept_store import open_fresh
from tidelog.spark.merge_plan import MergeJob, pieces_of
from tidelog.spark.worker import use_one_core
from tidelog.store.port import Store

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class PlaceMerged:
    """What a task wrote, and how much its reading changed V: see `RowMerger`."""

    place: int
    parts: tuple[Part, ...]
    restated: bytes


Told = PlaceMerged | TidelogError
Handed = bytes | RowSum | TidelogError  # From the first stage to the second; rows are bytes.


def join_parts(items: Iterable[tuple[int, Sequence[Part]]], *, job: MergeJob) -> Iterator[Told]:
    """Write parts of which none takes back another as larger ones, in their order."""
    with _Work(job) as work:
        for place, parts in items:
            yield _told(partial(work.join, place, parts))


def cut_parts(items: Iterable[Sequence[Part]], *, job: MergeJob) -> Iterator[tuple[int, Handed]]:
    """Read parts, and hand the rows of each place on to it, as Arrow's own bytes."""
    with _Work(job) as work:
        for parts in items:
            for part in parts:
                try:
                    table = asyncio.run(work.merger.load(part))
                except LocationError:
                    raise  # Spark tries the task again, elsewhere.
                except TidelogError as error:
                    yield 0, portable(error)
                    return
                for place, piece in pieces_of(table, job, work.schema):
                    yield place, _bytes_of(piece)
        yield 0, work.merger.restated


def merge_places(items: Iterable[tuple[int, Handed]], *, job: MergeJob) -> Iterator[Told]:
    """Merge what was handed to a place, and write it."""
    with _Work(job) as work:
        yield _told(partial(work.merge, iter(items)))


class _Work:
    """A merge, as a task knows it; ``folder`` goes when it is over."""

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

    async def join(self, place: int, parts: Sequence[Part]) -> PlaceMerged:
        async with aclosing(self.merger.joined(parts, self.job.advanced_to)) as tables:
            written = await self._write(tables)
        return PlaceMerged(place, written, self.merger.restated.to_bytes())

    async def merge(self, handed: Iterator[tuple[int, Handed]]) -> PlaceMerged:
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
        return PlaceMerged(place, written, restated.to_bytes())

    def _gather(self, handed: Iterator[tuple[int, Handed]], path: Path) -> tuple[int, RowSum]:
        """Put the rows of a place into a file, as they come."""
        at, restated = 0, RowSum.zero()
        with pa.ipc.new_file(str(path), self.schema.updates, options=_OPTIONS) as sink:
            for place, one in handed:
                at = place
                if isinstance(one, TidelogError):
                    raise one
                if isinstance(one, RowSum):
                    restated = restated + one
                    continue
                with pa.ipc.open_stream(pa.py_buffer(one)) as stream:
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


def _told(work: Callable[[], Coroutine[Any, Any, PlaceMerged]]) -> Told:
    try:
        return asyncio.run(work())
    except LocationError:
        raise  # Spark tries the task again, elsewhere.
    except TidelogError as error:
        return portable(error)


def _bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as stream:
        stream.write_table(table, max_chunksize=BATCH_ROWS)
    return sink.getvalue().to_pybytes()
