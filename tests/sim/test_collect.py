"""Collection under faults: seeds, orders of requests, crash points, and broken builds of each."""

from __future__ import annotations

import pytest

from kit.sim_days import Tally, caught, days, has_struck
from sim.canaries.builds import Canary, caught_by
from sim.canaries.collect import (
    FOR_COLLECTION,
    FOR_PIN_RACES,
    FOR_RACES,
    FOR_SLOT_COLLECTION,
    collector_signs_no_plan,
)
from sim.checkers.demands import Violated
from sim.crash.points import FAILED, KILLED, visit
from sim.kernel.faults import Script
from sim.kernel.rates import seeds_of
from sim.workloads.collect import CollectStory, simulate_collect, simulate_collect_slots
from sim.workloads.race import simulate_pin_race, simulate_race
from sim.workloads.slot import SlotScenario
from tidelog.errors import TidelogError


@pytest.mark.parametrize("day", days())
def test_what_is_held_is_read_and_the_rest_is_collected(day: str, tally: Tally) -> None:
    """A reader gets all held records under every fault, and the log stays linearizable."""
    total = tally(simulate_collect(seed) for seed in seeds_of(day, 4))

    # A run without activity proves nothing.
    assert total["fragments"] > 8
    assert total["holds"] > 0
    assert has_struck(day, total)


@pytest.mark.parametrize("day", days())
def test_so_with_slots_and_pins(day: str, tally: Tally) -> None:
    """Pins hold their records, fences stay, void slots go; a log without manifest is rebuilt."""
    total = tally(simulate_collect_slots(seed) for seed in seeds_of(day, 5))

    assert total["fragments"] > 10
    assert total["holds"] > 0
    assert total["rebuilt"] > 10
    assert has_struck(day, total)


def test_no_order_of_requests_breaks_a_hold() -> None:
    """A held cursor keeps its records, in any order of requests of collectors and writers."""
    reports = [simulate_race(seed) for seed in range(120)]

    assert sum(r.held for r in reports) > 240
    assert sum(r.refused for r in reports) > 70
    assert sum(r.collections for r in reports) > 70
    assert sum(r.discarded for r in reports) > 10


def test_no_order_of_requests_breaks_a_pin() -> None:
    """A pin keeps its records, in any order of requests of collectors and other pins' owners."""
    reports = [simulate_pin_race(seed) for seed in range(60)]

    assert sum(r.held for r in reports) > 60
    assert sum(r.refused for r in reports) > 20
    assert sum(r.collections for r in reports) > 20


def test_a_collector_may_die_at_any_request() -> None:
    """A collector may die at a request or get an error; the next one completes its work."""
    found = visit(CollectStory(), faults=(*KILLED, *FAILED), stride=20)

    assert found.visited == found.struck > found.requests // 3


def test_a_collector_of_slots_may_die_at_any_request() -> None:
    """A collector of a slot log may die at a request; a pin is made and released in the story."""
    story = CollectStory(name="collect slots", scenario_of=SlotScenario)
    found = visit(story, faults=(*KILLED, *FAILED), stride=60)

    assert found.visited == found.struck > found.requests // 10


def test_the_story_is_told_again_word_by_word() -> None:
    """Equal seeds give equal requests, so that a crash point is always the same place."""
    first, second = Script(), Script()
    CollectStory().tell(first, seed=0)
    CollectStory().tell(second, seed=0)

    assert first.seen == second.seen
    for simulate in (simulate_collect, simulate_race):
        assert simulate(1).trace == simulate(1).trace != simulate(2).trace


@pytest.mark.parametrize("canary", FOR_COLLECTION, ids=lambda c: c.__name__)
def test_a_broken_collection_is_caught(canary: Canary) -> None:
    """The watch or the checker catches each broken build of collection."""
    error = caught(canary, simulate_collect, range(40))

    # A canary that fails by an error of its own proves nothing.
    assert isinstance(error, AssertionError | TidelogError), error


@pytest.mark.parametrize("canary", FOR_SLOT_COLLECTION, ids=lambda c: c.__name__)
def test_a_broken_collection_of_slots_is_caught(canary: Canary) -> None:
    """The watch or the checker catches each broken build of collection of slot logs."""
    error = caught(canary, simulate_collect_slots, range(60))

    assert isinstance(error, AssertionError | TidelogError), error


@pytest.mark.parametrize("canary", FOR_RACES, ids=lambda c: c.__name__)
def test_a_broken_order_is_caught(canary: Canary) -> None:
    """Each broken order of reads and writes loses a record in some order of requests."""
    error = caught(canary, simulate_race, range(1_000))

    assert isinstance(error, Violated), error


@pytest.mark.slow
def test_a_plan_without_an_id_is_caught_in_the_long_run() -> None:
    """Equal plans need hashed e-tags and three clients at exact moments to do harm."""
    found = caught_by(collector_signs_no_plan, simulate_race, seeds=range(30_000))

    assert found is not None, "a broken build passed"
    assert isinstance(found[1], Violated), found


@pytest.mark.parametrize("canary", FOR_PIN_RACES, ids=lambda c: c.__name__)
def test_a_broken_order_of_pins_is_caught(canary: Canary) -> None:
    """The pin's owner must look after its write, and the collector must read pins late."""
    error = caught(canary, simulate_pin_race, range(600))

    assert isinstance(error, AssertionError | TidelogError), error
