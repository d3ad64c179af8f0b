"""The number of steps that an opener of `sim.models.slot_commit` takes if it runs alone.

All other agents have stopped. The puts under way never land, or land at once, each at a free place;
of two for one place, either may be first. The opener's own puts land at free places.

A step is a request, or a round of fences. A walk asks for one slot after the other. An opener has
ended when it has an epoch of its own, or got an error: the log is sealed, or taken over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from sim.models.slot_bursts import BurstOpener
from sim.models.slot_opener import opener_steps
from sim.models.slot_world import (
    Agent,
    FinishedAgent,
    Scope,
    Slot,
    Slots,
    World,
    WritingAgent,
    by_place,
    is_dead,
)

NEVER: Final = 1_000_000
EPOCHS_MAX: Final = 1_000  # An opener alone never begins so many, and so never gives up.


@dataclass(slots=True)
class LoneOpeners:
    """Counts the steps of openers that run alone, and caches the counts."""

    scope: Scope
    _steps: dict[tuple[int, World], int] = field(default_factory=dict)

    def longest(self, world: World) -> int:
        """Return the most steps that an opener, running alone, takes from a state to its end."""
        running = [me for me, agent in enumerate(world.agents) if not _has_ended(agent)]
        return max((self._longest_of(world, me) for me in running), default=0)

    def _longest_of(self, world: World, me: int) -> int:
        others = (
            FinishedAgent() if each != me else agent for each, agent in enumerate(world.agents)
        )
        still = world._replace(agents=tuple(others), reader=None, roll=None)
        return max(self._steps_of(each, me) for each in (still, *_landed(still, still.puts)))

    def _steps_of(self, world: World, me: int) -> int:
        known = self._steps.get((me, world))
        if known is not None:
            return known
        self._steps[me, world] = NEVER  # The value for a cycle back to this state.
        scope = replace(self.scope, epochs=EPOCHS_MAX)
        most = 0
        for now in _landed(world, _sent(scope, world, me)):
            for _, after in opener_steps(scope, now, me, now.agents[me]):
                ended = _has_ended(after.agents[me])
                most = max(most, 1 if ended else 1 + self._steps_of(after, me))
        self._steps[me, world] = min(most, NEVER)
        return self._steps[me, world]


def _has_ended(agent: Agent) -> bool:
    return isinstance(agent, WritingAgent | FinishedAgent)


def _sent(scope: Scope, world: World, me: int) -> Slots:
    """Return the fences that an opener waits for."""
    agent = world.agents[me]
    if not isinstance(agent, BurstOpener):
        return frozenset()
    mine = scope.opens(me, agent.epoch)
    return world.puts.intersection(Slot(agent.epoch, slot, mine) for slot in agent.waiting)


def _landed(world: World, puts: Slots) -> Iterator[World]:
    """Yield the worlds in which all puts to free places have landed."""
    store = by_place(world.slots)
    places: dict[tuple[int, int], list[Slot]] = {}
    for put in puts:
        if put[:2] not in store and not is_dead(world.manifest, put.epoch, put.slot):
            places.setdefault(put[:2], []).append(put)
    for landing in product(*places.values()):
        yield world._replace(slots=world.slots.union(landing))
