"""Logs that share their objects, under fire: seeds, crash points, and broken builds of each."""

from __future__ import annotations

import pytest

from kit.sim_days import Tally, caught, days, has_struck
from sim.canaries.builds import Canary
from sim.canaries.fork import FOR_FORKS
from sim.crash.points import FAILED, KILLED, visit
from sim.crash.stories_fork import ForkStory, RebuildStory
from sim.kernel.fates import Script
from sim.kernel.weather import seeds_of
from sim.workloads.fork import simulate_fork
from tidelog.errors import TidelogError


@pytest.mark.parametrize("day", days())
def test_what_is_shared_is_read_and_goes_when_nobody_needs_it(day: str, tally: Tally) -> None:
    """Whoever collects, pins, forks a fork, destroys, or dies over it."""
    total = tally(simulate_fork(seed) for seed in seeds_of(day, 8))

    # Runs in which nothing happens would prove nothing.
    assert total["forks"] > 0
    assert total["pins"] > 0
    assert total["collections"] > 0
    assert total["destroyed"] > 2
    assert has_struck(day, total)


@pytest.mark.parametrize(("story", "stride"), [(ForkStory(), 40), (RebuildStory(), 20)])
def test_whoever_forks_destroys_or_rebuilds_may_die_at_any_request(
    story: ForkStory | RebuildStory, stride: int
) -> None:
    """Or go on with what it was told: the next one finds all that it needs, and leaves nothing."""
    found = visit(story, fates=(*KILLED, *FAILED), stride=stride)

    assert found.visited == found.struck > found.requests // 10


def test_a_run_is_told_again_word_by_word() -> None:
    """A failure can be looked at twice; a crash point is always the same place."""
    for story in (ForkStory(), RebuildStory()):
        first, second = Script(), Script()
        story.tell(first, seed=0)
        story.tell(second, seed=0)
        assert first.seen == second.seen

    assert simulate_fork(1).trace == simulate_fork(1).trace != simulate_fork(2).trace


@pytest.mark.parametrize("canary", FOR_FORKS, ids=lambda c: c.__name__)
def test_a_broken_fork_is_caught(canary: Canary) -> None:
    """The watch would see it, had we such a bug."""
    error = caught(canary, simulate_fork, range(60))

    # A canary that fails by its own clumsiness would prove nothing.
    assert isinstance(error, AssertionError | TidelogError), error
