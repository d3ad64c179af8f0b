"""New cursors against collection, exhaustively at a small scope, in either commit protocol.

A collector reads the manifest, then the cursors, and decides on a limit below which all may go. It
writes that as its plan, **then** reads the cursors again, then replaces the manifest on condition,
then erases, then removes the plan. Who creates a cursor writes it, **then** reads the plan, then
the manifest, and gives up if either has gone past. There is no clock, and who is never chosen again
has died.

A plan that is there is taken over by the next collector, and goes only when it has been carried
out: nobody can tell whether the one that wrote it is dead, or about to replace the manifest.

Checked at every step: while a cursor is held, which is from its creation's success until it is let
go, all from its position on is kept; and what the manifest keeps is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Explored, explore

BROKEN: Final = {
    "unread": "the collector does not read the cursors again once its plan is written",
    "unlooked": "who creates a cursor does not look after writing it",
    "planless": "who creates a cursor looks at the manifest alone",
    "planful": "who creates a cursor looks at the plan alone",
    "crosswise": "who creates a cursor looks at the manifest first, and at the plan then",
    "withdraws": "a collector removes a plan that a cursor stands against",
    "usurps": "a collector writes its own plan in place of one that is there",
    "careless": "a collector replaces the manifest without the condition",
    "swift": "a collector erases before it replaces the manifest",
}


class Manifest(NamedTuple):
    """What is kept: ``[start, limit)``. Neither ever goes back, so equal means unchanged."""

    start: int
    limit: int


class Collector(NamedTuple):
    """Where a collector stands, the manifest it has read, and below what all may go."""

    stage: str
    seen: Manifest = Manifest(0, 0)
    limit: int = 0


class Creator(NamedTuple):
    """Where somebody who wants a cursor stands, and the position he wants to hold."""

    stage: str
    position: int = 0


RESTING: Final = Collector("resting")
AWAY: Final = Creator("away")


class State(NamedTuple):
    """``plan``: below what all is to go, if one is there. ``erased``: below what all is gone."""

    manifest: Manifest
    plan: int | None
    erased: int
    collectors: tuple[Collector, ...]
    creators: tuple[Creator, ...]

    @property
    def cursors(self) -> list[int]:
        return [each.position for each in self.creators if each.stage != "away"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much there is of everything."""

    records: int = 2
    collectors: int = 2
    cursors: int = 2
    broken: str | None = None

    def initial(self) -> State:
        collectors, creators = (RESTING,) * self.collectors, (AWAY,) * self.cursors
        return State(Manifest(0, 1), None, 0, collectors, creators)


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Explored[State]:
    """Visit all that can happen in a scope."""
    return explore(
        scope.initial(),
        partial(steps, scope),
        check=check,
        check_step=check_step,
        states_max=states_max,
    )


def check_step(before: State, after: State) -> str | None:
    went_back = any(now < was for now, was in zip(after.manifest, before.manifest, strict=True))
    return "the manifest went back" if went_back else None


def check(state: State) -> str | None:
    """Give the sentence of what does not hold, if there is one."""
    held = [each.position for each in state.creators if each.stage == "held"]
    if any(position < state.manifest.start for position in held):
        return "the start has gone past a cursor that is held"
    if state.erased > state.manifest.start:
        return "something was erased that the manifest keeps"
    return None


def steps(scope: Scope, state: State) -> Iterator[tuple[str, State]]:
    start, limit = state.manifest
    if limit < scope.records:
        yield "rolls up", state._replace(manifest=Manifest(start, limit + 1))
    for me, collector in enumerate(state.collectors):
        for label, now, after in _collect(scope, state, collector):
            those = (*state.collectors[:me], now, *state.collectors[me + 1 :])
            yield f"collector {me} {label}", after._replace(collectors=those)
    for me, creator in enumerate(state.creators):
        for label, now_here in _create(scope, state, creator):
            these = (*state.creators[:me], now_here, *state.creators[me + 1 :])
            yield f"creator {me} {label}", state._replace(creators=these)


def _collect(
    scope: Scope, state: State, collector: Collector
) -> Iterator[tuple[str, Collector, State]]:
    stage, seen, limit = collector
    if stage == "resting":
        yield "reads the manifest", Collector("deciding", state.manifest), state
    elif stage == "deciding":
        # Any lower limit is as lawful: a collector may have reasons to keep more.
        for lower in range(seen.start + 1, min([seen.limit, *state.cursors]) + 1):
            yield f"decides on {lower}", Collector("planning", seen, lower), state
        if state.plan is not None:
            yield "takes a plan over", Collector("planned", seen, state.plan), state
    elif stage == "planning":
        if state.plan is None or scope.broken == "usurps":
            yield "plans", Collector("planned", seen, limit), state._replace(plan=limit)
        else:
            yield "finds a plan", RESTING, state
    elif stage == "planned":
        yield _read_cursors(scope, state, collector)
    elif stage == "cleared" and scope.broken == "swift" and state.erased < limit:
        yield "erases", collector, state._replace(erased=limit)
    elif stage == "cleared":
        yield from _replace(scope, state, collector)
    elif stage == "replaced":
        erased = max(state.erased, limit)
        yield "erases", Collector("erased", seen, limit), state._replace(erased=erased)
    elif stage == "erased":
        yield "removes the plan", RESTING, _without(state, limit)


def _read_cursors(scope: Scope, state: State, collector: Collector) -> tuple[str, Collector, State]:
    _, seen, limit = collector
    if limit <= seen.start:
        return "finds the plan carried out", Collector("replaced", seen, limit), state
    if scope.broken == "unread" or min([limit, *state.cursors]) == limit:
        return "reads the cursors", Collector("cleared", seen, limit), state
    after = _without(state, limit) if scope.broken == "withdraws" else state
    return "finds a cursor in the way", RESTING, after


def _replace(
    scope: Scope, state: State, collector: Collector
) -> Iterator[tuple[str, Collector, State]]:
    """Replace the manifest, or lose that race: then try again at once, or rest.

    Cursors need not be read again for another try: the plan has been there all the time, and goes
    only when the start has gone as far.
    """
    _, seen, limit = collector
    if state.manifest == seen or scope.broken == "careless":
        after = state._replace(manifest=Manifest(limit, seen.limit))
        yield "replaces the manifest", Collector("replaced", seen, limit), after
        return
    if limit > state.manifest.start:
        yield "has lost, and tries again", Collector("cleared", state.manifest, limit), state
    yield "has lost", RESTING, state


def _without(state: State, plan: int) -> State:
    return state._replace(plan=None) if state.plan == plan else state


def _create(scope: Scope, state: State, creator: Creator) -> Iterator[tuple[str, Creator]]:
    stage, position = creator
    first, second = _looks(scope, state)
    if stage == "away":
        after = "held" if scope.broken == "unlooked" else "written"
        for wanted in range(state.manifest.limit):
            yield f"writes {wanted}", Creator(after, wanted)
    elif stage == "written":
        seen = "looked" if first <= position else "refused"
        yield f"looks: {seen}", Creator(seen, position)
    elif stage == "looked":
        seen = "held" if second <= position else "refused"
        yield f"looks again: {seen}", Creator(seen, position)
    else:
        yield "removes it", AWAY


def _looks(scope: Scope, state: State) -> tuple[int, int]:
    """Give how far the plan has gone and how far the manifest has, in the order of looking."""
    plan = state.plan if state.plan is not None else 0
    start = state.manifest.start
    match scope.broken:
        case "planless":
            return start, start
        case "planful":
            return plan, plan
        case "crosswise":
            return start, plan
    return plan, start
