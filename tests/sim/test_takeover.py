"""Takeovers of a writer that keeps alpha puts under way end, and soon, whatever puts and gets take.

The table of all cases is ``python -m sim.takeover``.
"""

from __future__ import annotations

import pytest

from sim.takeover import WORK, Case, measure

ROUND_TRIPS_MAX = 12


@pytest.mark.parametrize(("put_ms", "get_ms"), [(60, 60), (100, 20), (20, 100)])
@pytest.mark.parametrize("alpha", [1, 8])
def test_a_takeover_of_a_busy_writer_ends(put_ms: int, get_ms: int, alpha: int) -> None:
    """Within 12 round trips, its own first append included, and 4 x alpha + 20 requests."""
    found = measure(Case(put_ms=put_ms, get_ms=get_ms, alpha=alpha), WORK["takeover"])

    assert found is not None, "the takeover never ended"
    seconds, requests = found
    assert requests <= 4 * alpha + 20
    assert seconds <= ROUND_TRIPS_MAX * max(put_ms, get_ms) / 1_000 * 1.2  # Jitter.
