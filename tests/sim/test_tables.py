"""Tables under faults: a creation, inserts, merges and a drop, with faults at their requests."""

from __future__ import annotations

from typing import Final

import pytest

from sim.crash.points import FAILED, KILLED, visit
from sim.crash.stories_alter import AlterStory
from sim.crash.stories_tables import TableStory


def test_a_client_may_die_at_any_request() -> None:
    """The victim may die at a request; its heir reaches the same end, whatever had happened."""
    found = visit(TableStory(), faults=KILLED, stride=149)

    assert found.visited == found.struck > 0


def test_any_request_may_fail() -> None:
    """The victim continues after a failed request, even if the change lands later."""
    found = visit(TableStory(), faults=FAILED, stride=211)

    assert found.visited == found.struck > 0


STORIES: Final = AlterStory(), AlterStory(key=())
of_both = pytest.mark.parametrize("story", STORIES, ids=["keyed", "loose"])


@of_both
def test_a_client_may_die_in_an_alteration(story: AlterStory) -> None:
    """The heir finishes the alteration; no row, and no value of a column that stays, is lost."""
    found = visit(story, faults=KILLED, stride=191)

    assert found.visited == found.struck > 0


@of_both
def test_any_request_of_an_alteration_may_fail(story: AlterStory) -> None:
    """The victim repeats the alteration, even if the change lands later."""
    found = visit(story, faults=FAILED, stride=191)

    assert found.visited == found.struck > 0
