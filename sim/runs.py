"""Runs of many seeds of a scenario, in several processes, which can be resumed.

A file keeps one line for each finished seed, so that a long run can be interrupted. The file
belongs to one state of the code and is refused by any other.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from sim.canaries.builds import innermost
from sim.workloads.scenario import counts_of

Simulate = Callable[[int], Any]
BLOCK: Final = 8  # Seeds handed to a process at once.
ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed; ``error`` is empty if all checks passed.

    Units: ``seconds``: seconds of processor time.
    """

    scenario: str
    seed: int
    seconds: float
    counts: dict[str, int]
    error: str = ""
    trace: str = ""


@dataclass(slots=True)
class OutcomeFile:
    """The outcomes in a file, by scenario and seed; without a path, outcomes are not stored."""

    path: Path | None = None
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path | None) -> OutcomeFile:
        """Read the file, or create it.

        Raises:
            ValueError: the file belongs to another state of the code.
        """
        kept, code = cls(path), code_hash()
        if path is None:
            return kept
        if not path.exists():
            path.write_text(json.dumps({"code": code}) + "\n")
            return kept
        head, *lines = path.read_text().splitlines()
        if json.loads(head)["code"] != code:
            raise ValueError(f"{path} is of another state of the code: begin another file")
        for line in lines:
            outcome = Outcome(**json.loads(line))
            kept.outcomes[outcome.scenario, outcome.seed] = outcome
        return kept

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.scenario, outcome.seed] = outcome
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")


@dataclass(slots=True)
class Summary:
    """The totals of a scenario's seeds. Units: ``seconds`` of processor."""

    seeds: int = 0
    failed: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.failed += bool(outcome.error)
        self.seconds += outcome.seconds
        self.counts.update(outcome.counts)

    def render(self, name: str) -> str:
        """Return the totals as a line, with a second line for the faults that struck."""
        struck = {key[7:]: n for key, n in self.counts.items() if key.startswith("struck.") and n}
        other = {key: n for key, n in self.counts.items() if not key.startswith("struck.")}
        each = self.seconds / self.seeds if self.seeds else 0.0
        line = f"{name}: seeds={self.seeds} failed={self.failed} seconds_each={each:.2f}"
        told = " ".join([line, *(f"{key}={count}" for key, count in other.items())])
        told_struck = " ".join(f"{kind}={count}" for kind, count in sorted(struck.items()))
        return f"{told}\n  struck: {told_struck}" if struck else told


def run_one(scenario: str, simulate: Simulate, seed: int) -> Outcome:
    """Run a seed; an exception becomes its outcome."""
    begin = time.process_time()
    try:
        counts = dict(counts_of(simulate(seed)))
        return Outcome(scenario, seed, time.process_time() - begin, counts)
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        first = innermost(error)
        lines = traceback.format_exception(first, limit=-4)
        seconds = time.process_time() - begin
        return Outcome(scenario, seed, seconds, {}, repr(first)[:2_000], "".join(lines)[:10_000])


def run_many(
    scenario: str,
    simulate: Simulate,
    seeds: Iterable[int],
    *,
    kept: OutcomeFile,
    processes: int = 1,
    until: float = float("inf"),
) -> Iterator[Outcome]:
    """Yield the outcome of each seed as it finishes; stored outcomes come first.

    Units: ``until``: no block of seeds begins after it, by the clock of `time.monotonic`.
    """
    left: list[int] = []
    for seed in seeds:
        if (known := kept.outcomes.get((scenario, seed))) is not None:
            yield known
        else:
            left.append(seed)
    work = partial(run_one, scenario, simulate)
    for outcome in _all(work, left, processes, until):
        kept.add(outcome)
        yield outcome


def _all(
    work: Callable[[int], Outcome], seeds: Sequence[int], processes: int, until: float
) -> Iterator[Outcome]:
    if processes == 1:
        for seed in seeds:
            if time.monotonic() > until:
                return
            yield work(seed)
        return
    # A spawned process inherits no loops and no library threads of this process.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for begin in range(0, len(seeds), BLOCK * processes):
            if time.monotonic() > until:
                return
            yield from pool.imap_unordered(work, seeds[begin : begin + BLOCK * processes])


def code_hash() -> str:
    """Return a hash that identifies the state of the code."""
    found = hashlib.blake2b(digest_size=12)
    for folder in ("src", "sim"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(f"{path.relative_to(ROOT)} {path.stat().st_size} ".encode())
            found.update(path.read_bytes())
    return found.hexdigest()
