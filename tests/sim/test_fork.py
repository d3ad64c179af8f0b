"""Logs that share objects, under faults: seeds, crash points, and broken builds of each."""

from __future__ import annotations

import pytest

from kit.sim_days import Tally, caught, days, has_struck
from sim.canaries.builds import Canary
from sim.canaries.fork import FOR_FORKS
from sim.crash.points import FAILED, KILLED, visit
from sim.crash.stories_fork import ForkStory, RebuildStory
from sim.kernel.faults import Script
from sim.kernel.rates import seeds_of
from sim.workloads.fork import simulate_fork
from tidelog.errors import TidelogError


@pytest.mark.parametrize("day", days())
def test_shared_records_stay_readable_while_a_fork_needs_them(day: str, tally: Tally) -> None:
    """Clients collect, pin, fork forks, destroy and die; shared records stay readable."""
    total = tally(simulate_fork(seed) for seed in seeds_of(day, 8))

    # A run without activity proves nothing.
    assert total["forks"] > 0
    assert total["pins"] > 0
    assert total["collections"] > 0
    assert total["destroyed"] > 2
    assert has_struck(day, total)


@pytest.mark.parametrize(("story", "stride"), [(ForkStory(), 40), (RebuildStory(), 20)])
def test_whoever_forks_destroys_or_rebuilds_may_die_at_any_request(
    story: ForkStory | RebuildStory, stride: int
) -> None:
    """A client may die at a request or get an error; the next one completes its work."""
    found = visit(story, faults=(*KILLED, *FAILED), stride=stride)

    assert found.visited == found.struck > found.requests // 10


def test_a_run_is_told_again_word_by_word() -> None:
    """Equal seeds give equal requests, so that a failure can be repeated."""
    for story in (ForkStory(), RebuildStory()):
        first, second = Script(), Script()
        story.tell(first, seed=0)
        story.tell(second, seed=0)
        assert first.seen == second.seen

    assert simulate_fork(1).trace == simulate_fork(1).trace != simulate_fork(2).trace


@pytest.mark.parametrize("canary", FOR_FORKS, ids=lambda c: c.__name__)
def test_a_broken_fork_is_caught(canary: Canary) -> None:
    """The watch or the checker catches each broken build of forks."""
    error = caught(canary, simulate_fork, range(60))

    # A canary that fails by an error of its own proves nothing.
    assert isinstance(error, AssertionError | TidelogError), error
