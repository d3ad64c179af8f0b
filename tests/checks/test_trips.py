"""A trip through the code passes few files: `python -m kit.trips` lists them."""

from __future__ import annotations

import pytest

from kit.trips import TRIPS, traced

# Files and stays. Lower a limit after a change that makes a trip shorter; do not raise one.
LIMITS = {"append": (16, 48), "keyed-scan": (33, 225), "ingest": (65, 850)}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_passes_few_files(name: str) -> None:
    """Each hop to another file costs readers attention, and the hot path time."""
    # On a busy machine a wait adds a few stays: the shortest trip counts.
    trace = min((traced(TRIPS[name]) for _ in range(3)), key=lambda trace: trace.figures)
    files, stays, calls = trace.figures

    assert 5 < files <= LIMITS[name][0], sorted({path for path, _ in trace.visits})
    assert files < stays <= LIMITS[name][1]
    assert stays < calls
