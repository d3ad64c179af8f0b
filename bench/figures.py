"""Shared parts of the benchmarks: runs in turn, and tables in the form of the documents."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def seconds_of(work: Callable[[], object]) -> float:
    """Run the work once; return the seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def side_by_side(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run all works in turn in each round, so that a slow minute affects all of them."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(work())
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the ratio of their seconds to ours: the median over the rounds."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)) + " |")
    print(flush=True)
