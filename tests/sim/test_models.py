"""Models: every interleaving keeps the rules, and breaking any rule does harm.

`python -m sim.models` takes larger scopes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from sim.models import collection, handover, recipe, slot_commit, takeover
from sim.models.__main__ import main
from sim.models.explore import Exploration, explore
from sim.models.handover import Handover
from sim.models.scopes import CANARIES, HOLDING, RULES, Scope, command_of, name_of, visit
from sim.models.slot_world import DATA, SEAL, FinishedAgent, ReadProgress, World, WritingAgent, sees
from sim.models.slot_world import Scope as SlotScope

Jugs = tuple[int, int]


def pour(jugs: Jugs) -> Iterator[tuple[str, Jugs]]:
    """The riddle of two jugs, of three litres and of five, at a well."""
    three, five = jugs
    yield "fill three", (3, five)
    yield "fill five", (three, 5)
    yield "empty three", (0, five)
    yield "empty five", (three, 0)
    to_five, to_three = min(three, 5 - five), min(five, 3 - three)
    yield "three into five", (three - to_five, five + to_five)
    yield "five into three", (three + to_three, five - to_three)


def explore_jugs(*, never: int, states_max: int = 100) -> Exploration[Jugs]:
    return explore(
        (0, 0),
        pour,
        check=lambda jugs: "there it is" if jugs[1] == never else None,
        check_step=lambda _before, _after: None,
        states_max=states_max,
    )


def test_the_explorer_finds_the_shortest_way_to_what_must_not_be() -> None:
    """The explorer finds a shortest trail, so that a person reads no more than needed."""
    found = explore_jugs(never=4)

    assert found.violation == "there it is"
    assert not found.is_whole
    assert [label for label, _ in found.trail] == [
        "fill five",
        "five into three",
        "empty three",
        "five into three",
        "fill five",
        "five into three",
    ]
    assert found.trail[-1] == ("five into three", (3, 4))
    assert found.render().splitlines()[-1] == "  6. five into three"


def test_the_explorer_visits_all_there_is() -> None:
    """The explorer visits exactly the reachable states: one of the two jugs is empty or full."""
    found = explore_jugs(never=6)

    reached = sum(three in (0, 3) or five in (0, 5) for three in range(4) for five in range(6))
    assert (found.states, found.steps) == (reached, reached * 6)
    assert found.is_whole
    assert found.violation is None
    assert found.render() == "holds: states=16 steps=96"


def test_the_explorer_says_that_it_stopped_at_its_bound() -> None:
    """The explorer reports a partial search as partial."""
    found = explore_jugs(never=6, states_max=15)

    assert found.states == 15
    assert not found.is_whole
    assert found.render().startswith("held so far")


def test_the_explorer_checks_steps_to_states_that_it_knows() -> None:
    """The explorer checks a step to a known state: the step itself may be wrong."""
    found = explore(
        0,
        lambda number: [("up", (number + 1) % 3)],
        check=lambda _: None,
        check_step=lambda before, after: "went back" if after < before else None,
    )

    assert found.violation == "went back"
    assert [number for _, number in found.trail] == [1, 2, 0]


@pytest.mark.parametrize("scope", HOLDING, ids=command_of)
def test_all_holds_in_every_interleaving(scope: Scope) -> None:
    """No interleaving of this scope violates a check."""
    found = visit(scope, states_max=200_000)

    assert found.violation is None, found.render()
    assert found.is_whole
    # A model with hardly any steps proves nothing.
    assert found.states > 2_000
    assert found.steps > 2 * found.states


@pytest.mark.parametrize("scope", CANARIES, ids=command_of)
def test_a_rule_that_is_dropped_does_harm(scope: Scope) -> None:
    """Each broken rule has a counterexample in its scope."""
    found = visit(scope, states_max=40_000)

    assert found.violation is not None
    assert found.trail


def test_each_rule_has_a_canary() -> None:
    """Each named rule has a canary that breaks it."""
    for name, rules in RULES.items():
        assert {c.broken for c in CANARIES if name_of(c) == name} == set(rules), name


def reached(scope: SlotScope) -> Iterator[World]:
    """Yield the worlds that can be reached in a scope, each once."""
    seen, waiting = {scope.initial()}, [scope.initial()]
    while waiting:
        world = waiting.pop()
        yield world
        for _, after in slot_commit.steps(scope, world):
            if after not in seen:
                seen.add(after)
                waiting.append(after)


def test_the_model_comes_to_what_it_is_about() -> None:
    """The scope includes takeovers with acknowledgements, strays in collected places, refusals."""
    scope = SlotScope(records=2, openers=1)
    worlds = list(reached(scope))
    writers = [[each for each in w.agents if isinstance(each, WritingAgent)] for w in worlds]

    assert any(len(both) == 2 and all(one.acknowledged for one in both) for both in writers)
    assert any(one.acknowledged and one.denied for both in writers for one in both)
    assert any(
        sees(scope, world, put.epoch, put.slot) == {None, DATA, put.holds}
        for world in worlds
        for put in world.puts
        if put.holds != DATA
    )


@pytest.mark.parametrize(
    "scope",
    [
        SlotScope(records=2, openers=1, alpha=1),
        SlotScope(records=1, openers=1, ghosts=1),
        SlotScope(records=1, openers=0, sealer=True, reader=True),
    ],
    ids=command_of,
)
def test_dead_places_need_no_state_of_their_own(scope: SlotScope) -> None:
    """Without a state for dead places, agents reach exactly the same states."""
    short, plain = (
        {(world.agents, world.manifest, world.reader) for world in reached(each)}
        for each in (scope, replace(scope, plain=True))
    )

    assert short == plain


def test_a_writer_that_lost_an_answer_opens_again_over_itself_alone() -> None:
    """The writer takes over from itself, or learns of another's takeover and its puts' outcome."""
    worlds = list(reached(SlotScope(records=1, openers=1, resolving=True)))
    first = [world.agents[0] for world in worlds]
    again = [each for each in first if isinstance(each, WritingAgent) and each.before is not None]
    fenced = [
        each.held for each in first if isinstance(each, FinishedAgent) and each.held is not None
    ]

    assert any(each.before is not None and each.before.acknowledged for each in again)
    assert any(each.before is not None and each.before.denied for each in again)
    assert any(each.acknowledged for each in fenced)
    assert any(each.denied for each in fenced)
    assert all(each.over is not None for each in fenced)


def test_the_model_comes_to_seals_and_whole_reads() -> None:
    """The scope includes a sealed log with records, and a reader that has read them."""
    worlds = list(reached(SlotScope(records=1, openers=0, sealer=True, reader=True)))
    sealed = [world for world in worlds if FinishedAgent(told_sealed=True) in world.agents]
    reads = [world.reader for world in worlds if isinstance(world.reader, ReadProgress)]

    assert any(world.manifest.epoch == SEAL and world.manifest.tail == 1 for world in sealed)
    assert any(world.manifest.epoch != SEAL for world in sealed)
    assert any(read.ended and read.must and read.records == (0,) for read in reads)


def test_an_opener_that_runs_alone_needs_no_fewer_steps_than_is_stated() -> None:
    """The stated limit is exact; a wide one would hide detours of openers."""
    stated = SlotScope(records=2, openers=1, signs=1, alpha=1, alone=13)

    assert visit(stated, states_max=10_000).violation is None
    assert visit(replace(stated, alone=12), states_max=10_000).violation is not None


def test_a_takeover_is_within_its_bounds_where_a_get_is_not_slow() -> None:
    """Three signs suffice if a get is faster than two puts; seven suffice up to five puts."""
    below = [ratio for ratio in takeover.RATIOS if ratio < 2]

    assert all(
        takeover.worst(placing, ratio=ratio, alpha=alpha).is_within
        for placing, ratios in ((takeover.DECIDED, below), (takeover.PROPOSED, takeover.RATIOS))
        for ratio in ratios
        for alpha in takeover.ALPHAS
    )


def test_three_signs_are_too_few_where_a_get_is_slow() -> None:
    """The writer may outrun the first round, and the second sends as many fences again."""
    slow = takeover.worst(takeover.DECIDED, ratio=Fraction(5), alpha=32)

    assert slow.rounds == 2
    assert slow.requests > 4 * 32 + 20


@pytest.mark.parametrize("rule", ["withdraws", "usurps", "tidies"])
def test_one_collector_alone_may_treat_its_plan_as_it_likes(rule: str) -> None:
    """The rules of plans protect other collectors, so one collector alone may break them."""
    found = visit(collection.Scope(collectors=1, pins=1, broken=rule), states_max=20_000)

    assert found.is_whole
    assert found.violation is None


def test_the_long_form_visits_one_scope_and_says_what_it_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The long run prints the number of states, and the violation that it found."""
    assert main(["slot", "--records", "1", "--openers", "1"]) == 0
    assert " holds: states=" in capsys.readouterr().out

    assert main(["slot", "--openers", "1", "--broken", "unfence"]) == 0
    assert "an acknowledged record is lost" in capsys.readouterr().out

    assert main(["slot", "--openers", "1", "--broken", "blind"]) == 1
    assert main(["collection", "--states", "100"]) == 0
    assert "held so far: states=100 " in capsys.readouterr().out


def test_a_handover_keeps_its_rules_in_each_interleaving() -> None:
    """The decisions are those of the code, so a change of them is explored here."""
    found = Handover().explored()

    assert found.violation is None, found.render()
    assert found.is_whole
    assert found.states > 50_000


@pytest.mark.parametrize("rule", handover.RULES)
def test_a_handover_without_one_of_its_rules_does_harm(rule: str) -> None:
    """Otherwise the model would not see what the rule is for."""
    assert Handover(rule).explored().violation is not None


@pytest.mark.parametrize("name", recipe.HOLDING)
def test_the_recipe_keeps_its_rules_in_each_interleaving(name: str) -> None:
    """Two ingesters, also of two renditions or with two programs, give the rows of the bindings."""
    found = recipe.HOLDING[name].explored()

    assert found.violation is None, found.render()
    assert found.is_whole
    assert found.states > 5_000


@pytest.mark.parametrize("rule", recipe.RULES)
def test_the_recipe_without_one_of_its_rules_does_harm(rule: str) -> None:
    """Otherwise the model would not see what the rule is for."""
    assert recipe.without(rule).explored().violation is not None


def test_the_model_of_the_recipe_comes_to_what_it_is_about() -> None:
    """A late binding lands, a commit is another ingester's, and another program stops."""
    labels = set[str]()
    for name in ("replicas", "other program", "unseen program"):
        scope = recipe.HOLDING[name]
        seen, waiting = {scope.initial()}, [scope.initial()]
        while waiting:
            for label, after in scope.steps(waiting.pop()):
                labels.add(label.partition(": ")[2] or label)
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)

    assert {"a late binding lands", "finds 0 done", "dies"} <= labels
    assert {"has another program", "stops at 1"} <= labels
