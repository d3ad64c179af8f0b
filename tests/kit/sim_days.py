"""The days of the simulator's weather, as tests take them: one test for each."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sim.canaries.builds import Canary, caught_by
from sim.kernel.weather import DAYS

# Which seed caught a broken build last. Where it does no longer, the others are tried, which takes
# up to a minute: `KEEP_CAUGHT=1 python -m pytest -n0 tests/sim -k caught` writes down which do now.
KEPT: Final = Path(__file__).parents[1] / "sim" / "caught.json"
CAUGHT: Final[dict[str, int]] = json.loads(KEPT.read_text())

Tally = Callable[[Iterable[Any]], Counter[str]]

# What must have struck on a day, some of it at least, or the day proves nothing.
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
    """Return all days, as parameters of a test."""
    return list(DAYS)


def has_struck(day: str, total: Mapping[str, int]) -> bool:
    """Say whether something of what is a day's own befell some run."""
    kinds = KINDS[day]
    return not kinds or any(total.get(f"struck.{kind}", 0) for kind in kinds)


def caught(
    canary: Canary, simulate: Callable[[int], object], seeds: Iterable[int]
) -> BaseException:
    """Return how a broken build failed: some seed catches it, and there the whole build passes.

    First of all the seed that caught it last is tried.
    """
    name = f"{simulate.__name__} {canary.__name__}"
    likely = [CAUGHT[name]] if name in CAUGHT else []
    found = caught_by(canary, simulate, seeds=[*likely, *seeds])
    assert found is not None, "a broken build passed"
    seed, error = found
    if os.environ.get("KEEP_CAUGHT"):
        CAUGHT[name] = seed
        KEPT.write_text(json.dumps(CAUGHT, indent=2, sort_keys=True) + "\n")
    simulate(seed)
    return error
