"""Counts the faults that took effect in the runs of a session, and prints them at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sim.workloads.scenario import counts_of

STRUCK = "struck"


@pytest.fixture
def tally(
    record_property: Callable[[str, object], None],
) -> Callable[[Iterable[Any]], Counter[str]]:
    """Return a function that sums the counts of some runs, and records the faults that struck."""

    def add(reports: Iterable[Any]) -> Counter[str]:
        total: Counter[str] = Counter()
        for report in reports:
            total.update(counts_of(report))
        for key, count in total.items():
            if key.startswith("struck.") and count:
                record_property(f"{STRUCK} {key[7:]}", count)
        return total

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, count in getattr(report, "user_properties", ()):
                if name.startswith(f"{STRUCK} "):
                    total[name.removeprefix(f"{STRUCK} ")] += count
    if total:
        told = " ".join(f"{kind}={count}" for kind, count in sorted(total.items()))
        terminalreporter.write_line(f"simulated faults that struck: {told}")
