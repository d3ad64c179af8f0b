"""Scrubbing: read all stored data of a keyed log, and compare it with its descriptions.

Readers check the checksum of each piece that they read. A scrub also reads the other pieces. It
counts the records of each part against its directory and the state, run by run, and scrubs the wal.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.read.state_handle import KeyedStateHandle
from tidelog.keyed.states.run import Run
from tidelog.keyed.values import SEQUENCE_MAX
from tidelog.wal.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedScrubReport:
    """The result of a scrub: counts, and the problems found.

    Units: ``records`` and ``keys`` as stored in runs, with a key counted once per part;
        ``wal_records`` those of the wal; ``bytes`` of runs and directories.
    """

    runs: int = 0
    parts: int = 0
    records: int = 0
    keys: int = 0
    bytes: int = 0
    wal_records: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def plus(self, part: RunPart, problems: tuple[str, ...]) -> KeyedScrubReport:
        """Return the result with one more part."""
        return replace(
            self,
            parts=self.parts + 1,
            records=self.records + part.rows,
            keys=self.keys + part.keys,
            bytes=self.bytes + part.num_bytes + part.directory_bytes,
            problems=(*self.problems, *problems),
        )


async def scrub_keyed(state_handle: KeyedStateHandle, wal: Log) -> KeyedScrubReport:
    """Read and check all stored data, including checkpoints.

    Raises:
        NoSuchLog: the log is gone. LocationError: the store failed.
    """
    await state_handle.refresh()
    report, state = KeyedScrubReport(), state_handle.state
    kept = [run for checkpoint in state.checkpoints.values() for run in checkpoint.runs]
    runs = {run.id: run for run in (*state.runs, *kept)}
    for run in runs.values():
        report = replace(report, runs=report.runs + 1)
        for part in run.parts:
            report = report.plus(part, await _problems(state_handle, run, part))
    gaps = [
        f"no run has the sequences {before.upper} to {run.lower - 1}"
        for before, run in zip(state.runs, state.runs[1:], strict=False)
        if before.upper != run.lower
    ]
    below = await wal.scrub()
    return replace(
        report,
        wal_records=below.records,
        problems=(*report.problems, *gaps, *(f"its wal: {problem}" for problem in below.problems)),
    )


async def _problems(state_handle: KeyedStateHandle, run: Run, part: RunPart) -> tuple[str, ...]:
    """Return the problems of a part."""
    try:
        listed = await _listed(state_handle, part)
        rows, least, greatest = await _read(state_handle, part)
    except (CorruptionError, ObjectNotFound) as error:
        return (f"{part.path}: {error}",)
    problems = []
    if listed != (part.keys, part.rows):
        problems.append(
            f"{part.directory}: it lists {listed[1]} records of {listed[0]} keys, not {part.rows} "
            f"of {part.keys}"
        )
    if (rows, least, greatest) != (part.rows, part.min_sequence, part.max_sequence):
        problems.append(f"{part.path}: its records differ from the state's description of them")
    if least < run.lower or greatest >= run.upper:
        problems.append(f"{part.path}: it has sequences outside its run")
    return tuple(problems)


async def _listed(state_handle: KeyedStateHandle, part: RunPart) -> tuple[int, int]:
    keys = rows = 0
    pages = state_handle.parts.keys(part, b"", None)
    async with aclosing(pages):
        async for page in pages:
            keys += page.num_rows
            rows += _total(page)
    return keys, rows


def _total(page: pa.Table) -> int:
    total: int = pc.sum(page.column("rows")).as_py() or 0
    return total


async def _read(state_handle: KeyedStateHandle, part: RunPart) -> tuple[int, int, int]:
    rows, least, greatest = 0, SEQUENCE_MAX, 0
    tables = state_handle.parts.scan_keys(part, b"", None, 0, SEQUENCE_MAX)
    async with aclosing(tables):
        async for table in tables:
            if not table.num_rows:
                continue
            sequences = table.column("sequence").to_numpy()
            rows += table.num_rows
            least = min(least, int(sequences.min()))
            greatest = max(greatest, int(sequences.max()))
    return rows, least, greatest
