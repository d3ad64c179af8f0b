"""The simulator's schedules of faults ("days") as parameters of tests: one test for each."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sim.canaries.builds import Canary, caught_by
from sim.kernel.rates import DAYS
from tidelog.errors import TidelogError

# The seed that last caught each broken build. If it no longer does, a test tries other seeds, which
# takes up to a minute. `KEEP_CAUGHT=1 python -m pytest -n0 tests/sim -k caught` updates the file.
KEPT: Final = Path(__file__).parents[1] / "sim" / "caught.json"
CAUGHT: Final[dict[str, int]] = json.loads(KEPT.read_text())

Tally = Callable[[Iterable[Any]], Counter[str]]

# The faults of each day. If none of them occurred, the day proves nothing.
KINDS = {
    "as before": (),
    "busy": ("busy",),
    "short": ("short",),
    "denied": ("denied",),
    "gone": ("gone",),
    "cut": ("cut", "died_late", "late", "died"),
    "stops": ("stopped",),
    "cancels": ("cancelled_append", "cancelled_close"),
    "jumps": ("jumped",),
    "all": ("busy", "short", "denied", "gone", "stopped", "jumped"),
}


def days() -> list[str]:
    """Return the names of all days."""
    return list(DAYS)


def has_struck(day: str, total: Mapping[str, int]) -> bool:
    """Return True if at least one of the day's own faults occurred in some run."""
    kinds = KINDS[day]
    return not kinds or any(total.get(f"struck.{kind}", 0) for kind in kinds)


def caught(
    canary: Canary, simulate: Callable[[int], object], seeds: Iterable[int]
) -> BaseException:
    """Return the failure of a broken build; the correct build must pass with the same seed.

    A check or the code must find the fault: an error of the canary itself proves nothing. The
    search begins with the seed that caught the build last.
    """
    name = f"{simulate.__name__} {canary.__name__}"
    likely = [CAUGHT[name]] if name in CAUGHT else []
    found = caught_by(canary, simulate, seeds=[*likely, *seeds])
    assert found is not None, "a broken build passed"
    seed, error = found
    assert isinstance(error, AssertionError | TidelogError), error
    if os.environ.get("KEEP_CAUGHT"):
        CAUGHT[name] = seed
        KEPT.write_text(json.dumps(CAUGHT, indent=2, sort_keys=True) + "\n")
    simulate(seed)
    return error
