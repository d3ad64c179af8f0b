"""Runs of cases in a worker, and their counts; a worker that dies fails its case."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

TESTS: Final = Path(__file__).resolve().parents[1]
SILENT_SECONDS: Final = 150.0  # Far longer than a case may take, so the worker is stuck.
# So that the memory limit of the worker is for the cases, not for reserves of allocators.
SPARING: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(slots=True)
class Report:
    """The results of many cases: the failed ones as text, and counts of each event."""

    cases: int = 0
    failed: list[str] = field(default_factory=list)
    unseen: Counter[str] = field(default_factory=Counter)
    specimens: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # CPU time of all processes, including the making of specimens.

    def __str__(self) -> str:
        took = f"{self.seconds:.0f} s, {self.cpu_seconds:.0f} s of them computing"
        lines = [f"{self.cases} cases in {took}, {len(self.failed)} failed"]
        lines += [f"  cannot be seen: {n} x {name}" for name, n in self.unseen.most_common()]
        return "\n".join([*lines, *self.failed])


def run(seed: int, first: int, limit: int) -> Report:
    """Run the cases ``[first, limit)`` of a seed."""
    report, began, spent = Report(), time.monotonic(), _spent()
    while first < limit:
        first = _run_until_it_ends(report, seed, first, limit)
    report.seconds, report.cpu_seconds = time.monotonic() - began, _spent() - spent
    return report


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run_until_it_ends(report: Report, seed: int, first: int, limit: int) -> int:
    """Run cases in one worker. Return the number of the first remaining case."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, sys.path)])
    worker = subprocess.Popen(
        [sys.executable, "-m", "fuzz.worker", str(seed), str(first), str(limit)],
        env={**os.environ, **SPARING, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    begun = first
    assert worker.stdout is not None
    with worker:
        for line in _lines(worker.stdout):
            told: dict[str, Any] = json.loads(line)
            if "begun" in told:
                begun = told["begun"]
                continue
            begun = told["number"] + 1
            _count(report, told)
        if worker.poll() is None and begun < limit:
            worker.kill()
        assert worker.stderr is not None
        why = worker.stderr.read().decode(errors="replace").strip()[-600:]
    if begun >= limit:
        return limit
    _count(report, {"failed": f"seed {seed}, case {begun}: the process ended: {why}"})
    return begun + 1


def _count(report: Report, told: dict[str, Any]) -> None:
    report.cases += 1
    report.unseen.update(told.get("unseen", ()))
    report.specimens.update([told.get("specimen", "?")])
    if told["failed"]:
        report.failed.append(told["failed"])


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines until the other end closes or is silent for too long."""
    kept = b""
    while select.select([stream], [], [], SILENT_SECONDS)[0]:
        chunk = os.read(stream.fileno(), 65_536)
        if not chunk:
            return
        *lines, kept = (kept + chunk).split(b"\n")
        yield from lines
