"""The days of the simulator's weather, as tests take them: one test for each, and known faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pytest

from sim.kernel.weather import DAYS

Tally = Callable[[Iterable[Any]], Counter[str]]

# Known faults, by the line of issue 9 that tells of them; a mark goes when its mend has landed.
CANCEL: Final = "Mend, Liveness: cancelling close() cancels no write"
DEPOSE: Final = "Mend, Safety: a writer that was fenced never deposes its successor"
DESTROY: Final = "found by the simulator: the manifest of a destroyed log is replaced"
REBUILD: Final = "Mend, Safety: rebuild accepts every healthy log"
SHORT: Final = "Mend, Safety, Outcomes: a short read-back is read back again"

# What must have struck on a day, some of it at least, or the day proves nothing.
KINDS = {
    "as before": (),
    "busy": ("busy",),
    "short": ("short",),
    "denied": ("denied",),
    "cut": ("cut", "died_late", "late", "died"),
    "stops": ("stopped",),
    "cancels": ("cancelled_append", "cancelled_close"),
    "jumps": ("jumped",),
    "all": ("busy", "short", "denied", "stopped", "jumped"),
}


def days(known: Mapping[str, str] | None = None) -> list[Any]:
    """Return all days as parameters; on those with a known fault it may fail yet."""
    faults = known or {}
    return [
        pytest.param(day, marks=pytest.mark.xfail(strict=False, reason=faults[day]), id=day)
        if day in faults
        else pytest.param(day, id=day)
        for day in DAYS
    ]


def has_struck(day: str, total: Mapping[str, int]) -> bool:
    """Say whether something of what is a day's own befell some run."""
    kinds = KINDS[day]
    return not kinds or any(total.get(f"struck.{kind}", 0) for kind in kinds)
