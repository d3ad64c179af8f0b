"""Compaction: loose records become runs, and adjacent runs are merged into one.

A run's objects are written first, and one decision then names them. If the compactor dies in
between, a sweep deletes them. Two processes may write the same window, and one of the runs is
named. Compaction is strictly oldest first, so all records before ``compacted`` are in runs.
Source: rfc-0001, "Append-Only Scan Optimization"; anchors (1.8, trap #482).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import backoff_us, wall_us
from tidelog.errors import ContentionError, CorruptionError, NoSuchLog, ObjectNotFound, require
from tidelog.keyed.format.part import EncodedPart, RunPart
from tidelog.keyed.format.part_file import RunPartWriter
from tidelog.keyed.format.records import SinkMark, in_range, newest_of, sort_records
from tidelog.keyed.maintenance.merge import merged_records
from tidelog.keyed.maintenance.plan import (
    RUN_BYTES_MAX,
    LooseWindow,
    RunMergeJob,
    merges_due,
    seal_due,
    windows_to_compact,
)
from tidelog.keyed.read.sources import LoosePiece
from tidelog.keyed.read.state_handle import KeyedStateHandle
from tidelog.keyed.states.language import prefix_of
from tidelog.keyed.states.run import Run
from tidelog.keyed.states.state import KeyedState
from tidelog.keyed.states.transition import Decided, decide_compact, decide_merge_runs, decide_seal
from tidelog.keyed.values import KEYED_RECORDS

PART_ROWS: Final = 4_000_000
PART_BYTES: Final = 256 * 1024 * 1024
ROUNDS_MAX: Final = 1_000
TRIES: Final = 10


class RunMerger(Protocol):
    """Writes the parts of a merge, in this process or in remote tasks."""

    async def merge(
        self, state_handle: KeyedStateHandle, job: RunMergeJob, run: Run
    ) -> tuple[RunPart, ...]:
        """Write the records of a job's runs as parts of a run; return them, in order."""
        ...


@dataclass(slots=True)
class HereMerger:
    """Merges runs in this process."""

    async def merge(
        self, state_handle: KeyedStateHandle, job: RunMergeJob, run: Run
    ) -> tuple[RunPart, ...]:
        records = merged_records(state_handle.parts, state_handle.clock, job.runs)
        return await write_parts(state_handle, run, records)


HERE: Final = HereMerger()


@dataclass(slots=True, kw_only=True)
class Compactor:
    """Compacts one keyed log in the state of a handle."""

    state_handle: KeyedStateHandle
    merger: RunMerger = field(default_factory=lambda: HERE)
    _refused: bool = field(init=False, default=False)

    async def compact(self, *, full: bool = False) -> int:
        """Do all due work, or all possible work; return the number of runs written.

        Raises:
            NoSuchLog: the log is gone. CorruptionError: an object was changed. LocationError: the
                store failed; all named objects are intact. ContentionError: the runs written were
                too late at every try; the named runs are unchanged.
        """
        written = missed = late = 0
        for _ in range(ROUNDS_MAX):
            await self.state_handle.refresh()
            self._refused = False
            try:
                await self._seal_if_due()
                compacted = await self._compact_loose(full)
                written += compacted
                merged = await self._merge(full)
                written += merged
            except ObjectNotFound as error:
                # Another process has done the same work, and collected its inputs.
                if (missed := missed + 1) == TRIES:
                    raise CorruptionError(
                        "an object that the keyed log names is missing: restore it", why=error
                    ) from error
                await self.state_handle.clock.sleep(backoff_us(missed, self.state_handle.clock))
                continue
            if compacted or merged:
                late = 0
                continue
            if not self._refused:
                break
            # Another process did the same work, which the next refresh shows, or sealed or
            # collected.
            if (late := late + 1) == TRIES:
                raise ContentionError(
                    f"gave up after {TRIES} tries: other processes kept sealing, compacting or "
                    "collecting first; compact again"
                )
            await self.state_handle.clock.sleep(backoff_us(late, self.state_handle.clock))
        return written

    async def _seal_if_due(self) -> None:
        state_handle, state = self.state_handle, self.state_handle.state
        loose = loose_of(state_handle)
        active = [run for run in state.runs if run.lower >= state.active_start]
        first_us = min((run.first_us for run in active if run.first_us is not None), default=0)
        if not first_us and state.sealing.age_us is not None:
            first_us = await self._first_us_loose(state.active_start)
        now_us = wall_us(state_handle.clock)
        if seal_due(
            state,
            loose,
            bytes_compacted=sum(run.bytes for run in active),
            first_us=first_us,
            now_us=now_us,
        ):
            limit = state_handle.tail.next
            await state_handle.machine.commit(lambda state: decide_seal(state, limit, now_us))

    async def _first_us_loose(self, start: int) -> int:
        """Return the least time of the first loose piece with records from ``start``; else 0."""
        tail = self.state_handle.tail
        for piece in list(tail.pieces):
            if piece.limit > start:
                records = in_range(await tail.records(piece), start, None)
                if records.num_rows:
                    first_us: int = pc.min(records.column("timestamp_us")).as_py()
                    return first_us
        return 0

    async def _compact_loose(self, full: bool) -> int:
        state_handle, written = self.state_handle, 0
        windows = windows_to_compact(state_handle.state, loose_of(state_handle), full=full)
        # Keep the pieces of the plan, because the tail may drop some concurrently.
        pieces = list(state_handle.tail.pieces)
        for start, limit in windows:
            if state_handle.state.compacted != start:
                break  # Another process compacts concurrently.
            run = await self._run_of(pieces, start, limit)
            sinks = self._marks(pieces, start, run.upper)
            if not await self._named(run, partial(decide_compact, runs=[run], sinks=sinks)):
                break
            written += 1
        state_handle.tail.forget(state_handle.state.compacted)
        return written

    async def _run_of(self, pieces: Sequence[LoosePiece], start: int, limit: int) -> Run:
        """Write the run of a window of loose records, or of the part that can be sorted at once.

        The decoded size of a fragment is known only after it is read.
        """
        state_handle, within = self.state_handle, []
        reached = start
        for piece in pieces:
            if piece.start < limit and piece.limit > start:
                require(piece.start <= reached, "the records to compact are not contiguous")
                within.append(piece)
                reached = piece.limit
        require(reached >= limit, "the records to compact end before their window")
        tables = [KEYED_RECORDS.empty_table()]
        for piece in within:
            if sum(table.nbytes for table in tables) >= RUN_BYTES_MAX:
                limit = piece.start
                break
            tables.append(in_range(await state_handle.tail.records(piece), start, limit))
        together = pa.concat_tables(tables)
        run = new_run(state_handle, start, limit, wall_us(state_handle.clock))

        async def stream() -> AsyncGenerator[pa.Table, None]:
            if together.num_rows:
                yield await state_handle.clock.offload(partial(sort_records, together))

        return replace(run, parts=await write_parts(state_handle, run, stream()))

    @staticmethod
    def _marks(pieces: Sequence[LoosePiece], start: int, limit: int) -> dict[str, SinkMark]:
        """Return the marks of a window whose pieces were all read."""
        marks: dict[str, SinkMark] = {}
        for piece in pieces:
            if piece.start < limit and piece.limit > start:
                marks = newest_of(marks, piece.marks)
        return marks

    async def _merge(self, full: bool) -> int:
        state_handle, written = self.state_handle, 0
        for job in merges_due(state_handle.state, full=full):
            run = new_run(state_handle, job.runs[0].lower, job.runs[-1].upper, job.runs[-1].at_us)
            run = replace(run, parts=await self.merger.merge(state_handle, job, run))
            written += await self._named(run, partial(decide_merge_runs, ids=job.ids, run=run))
        return written

    async def _named(self, run: Run, decide: Callable[[KeyedState], Decided]) -> bool:
        """Commit a decision that names a written run; delete the run if it can never be named."""
        try:
            if await self.state_handle.machine.commit(decide):
                return True
        except NoSuchLog:
            await self._discard(run)
            raise
        await self._discard(run)
        self._refused = True
        return False

    async def _discard(self, run: Run) -> None:
        if run.parts:
            await self.state_handle.store.delete(list(run.paths))


def new_run(state_handle: KeyedStateHandle, lower: int, upper: int, at_us: int) -> Run:
    """Return the description of a run to be written."""
    return Run(
        id=state_handle.clock.unique(),
        epoch=state_handle.state.write_epoch,
        lower=lower,
        upper=upper,
        at_us=at_us,
    )


def part_path(name: str, run: Run, number: str) -> str:
    """Return the path of a part of a run."""
    return f"{prefix_of(name)}/run/{run.epoch:08x}/{run.id}-{number}.parquet"


async def write_parts(
    state_handle: KeyedStateHandle,
    run: Run,
    records: AsyncGenerator[pa.Table, None],
    *,
    within: str = "",
) -> tuple[RunPart, ...]:
    """Write sorted records as the parts of a run; return them, in order."""
    parts: list[RunPart] = []
    writer: RunPartWriter | None = None
    offload = state_handle.clock.offload
    async with aclosing(records):
        async for table in records:
            if writer is None:
                path = part_path(state_handle.name, run, f"{within}{len(parts):04x}")
                writer = RunPartWriter(path)
            await offload(partial(writer.write, table))
            is_large = writer.rows >= PART_ROWS or writer.num_bytes >= PART_BYTES
            if is_large or writer.is_full:
                parts.append(await _store(state_handle, await offload(writer.finish)))
                writer = None
    if writer is not None:
        parts.append(await _store(state_handle, await offload(writer.finish)))
    return tuple(parts)


async def _store(state_handle: KeyedStateHandle, encoded: EncodedPart) -> RunPart:
    """Store a part; its directory comes last, although no state names either yet."""
    await state_handle.store.put(encoded.part.path, encoded.data)
    await state_handle.store.put(encoded.part.directory, encoded.directory)
    return encoded.part


def loose_of(state_handle: KeyedStateHandle) -> list[LooseWindow]:
    """Return the loose windows, in the form that planning needs."""
    compacted = state_handle.state.compacted
    return [
        LooseWindow(max(piece.start, compacted), piece.limit, piece.nbytes)
        for piece in state_handle.tail.pieces
        if piece.limit > compacted
    ]
