"""Crash points: each request of each story, with each fault that can strike the victim there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from sim.canaries import builds as canaries
from sim.canaries.log import log_opens_without_looking
from sim.crash.points import FAILED, KILLED, VICTIM, Story, kinds_of, visit
from sim.crash.stories import STORIES, CatalogStory, IngestStory, ShardStory, StoryOf
from sim.crash.stories_schemas import EvolveStory
from sim.crash.stories_shard import ExpiryStory, MaintenanceStory
from sim.crash.stories_transactions import TransactionStory
from sim.kernel.faults import Script
from sim.workloads.log import LogStory
from tidelog.errors import TidelogError

ALL: tuple[Story, ...] = (*STORIES, MaintenanceStory(), ExpiryStory(), EvolveStory())
KINDS = {
    "append",
    "merge",
    "collection",
    "sweep",
    "rollup",
    "expiry",
    "tombstone",
    "retention",
    "transaction",
    "evolution",
}
BY_NAME = {story.name: story for story in ALL}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_client_may_die_at_any_request(name: str) -> None:
    """The victim may die at a request; its heir reaches the same end, whatever had happened."""
    found = visit(BY_NAME[name], faults=KILLED, stride=9)

    assert found.visited == found.struck >= found.requests // 3


@pytest.mark.parametrize("name", BY_NAME)
def test_any_request_may_fail(name: str) -> None:
    """The victim continues after a failed request, even if the change lands later."""
    found = visit(BY_NAME[name], faults=FAILED, stride=23)

    assert found.visited == found.struck >= found.requests // 11


@pytest.mark.parametrize("name", BY_NAME)
def test_stories_are_told_again_word_by_word(name: str) -> None:
    """Equal seeds give equal requests, so that a crash point is always the same place."""
    first, second = Script(), Script()
    BY_NAME[name].tell(first, seed=0)
    BY_NAME[name].tell(second, seed=0)

    assert first.seen == second.seen
    assert any(request.client == VICTIM for request in first.seen)


def test_crash_points_lie_in_all_that_a_shard_goes_through() -> None:
    """Each kind of change has requests of its own, and the visits strike some of them."""
    stories = (MaintenanceStory(), ExpiryStory(), EvolveStory(), TransactionStory())
    total: Counter[str] = Counter()
    for story in stories:
        total += kinds_of(story, faults=KILLED, stride=9)
        total += kinds_of(story, faults=FAILED, stride=23)
    print(dict(total))
    assert set(total) >= KINDS


BROKEN: list[tuple[Callable[[], AbstractContextManager[None]], StoryOf]] = [
    (canaries.commit_forgets_tokens, ShardStory(attempts=1)),
    (canaries.truncates_before_it_names, ShardStory()),
    (canaries.rollup_named_before_it_is_there, ShardStory()),
    (canaries.controller_writes_piecemeal, CatalogStory()),
    (canaries.ingester_commits_at_any_upper, IngestStory()),
    (canaries.ingester_feeds_back_too_old, IngestStory()),
    (log_opens_without_looking, LogStory()),
]


@pytest.mark.parametrize(("canary", "story"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_a_broken_build_is_caught_at_some_crash_point(
    canary: Callable[[], AbstractContextManager[None]], story: StoryOf
) -> None:
    """A build that fails only at one crash point must be killed there."""
    with canary(), pytest.raises(Exception) as found:  # noqa: PT011 - its cause is checked below.
        visit(story)
    error = canaries.innermost(found.value.__cause__ or found.value)
    assert isinstance(error, AssertionError | TidelogError), error
