"""New cursors and pins against collection, exhaustively at a small scope.

The model omits commits of appends, since collection uses the manifest alone.

A collector reads the manifest, the cursors and the pins, and decides what to drop. It writes that
as its plan, **then** reads the cursors and pins again. It then replaces the manifest conditionally,
erases the objects and removes the plan. A holder that creates a cursor or a pin, or sets a cursor
back, writes it, **then** reads the plan, then the manifest. It gives up if either covers its
position. There is no clock; an agent that takes no further step has died.

The next collector takes over an existing plan. A plan is removed only after it is carried out,
because no process can know whether its writer is dead or about to replace the manifest.

Checks at every step: positions that a holder holds, from its creation's success to its release, are
in the manifest. Positions in the manifest are not erased. Dropped positions stay dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Exploration, explore

BROKEN: Final = {
    "unread": "the collector does not read cursors and pins again once its plan is written",
    "unlooked": "who creates a cursor or a pin does not look after writing it",
    "planless": "who creates a cursor or a pin looks at the manifest alone",
    "planful": "who creates a cursor or a pin looks at the plan alone",
    "crosswise": "who creates a cursor or a pin looks at the manifest first, and at the plan then",
    "backwards": "who sets a cursor back does not look after writing it",
    "withdraws": "a collector removes a plan that a cursor or a pin stands against",
    "usurps": "a collector writes its own plan in place of one that is there",
    "tidies": "a collector removes whatever plan is there when it is done",
    "careless": "a collector replaces the manifest without the condition",
    "swift": "a collector erases before it replaces the manifest",
}

Positions = frozenset[int]
NONE: Final[Positions] = frozenset()


class Manifest(NamedTuple):
    """A manifest: the log has the positions below ``limit``, except the dropped ones.

    Neither field ever shrinks, so equal manifests are the same manifest.
    """

    dropped: Positions
    limit: int


class Collector(NamedTuple):
    """A collector's stage, the manifest it has read, and the positions it wants to drop."""

    stage: str
    seen: Manifest = Manifest(NONE, 0)
    going: Positions = NONE


class Holder(NamedTuple):
    """A holder of a cursor or a pin: its stage, its file's position, and the position relied on."""

    stage: str
    position: int | None = None
    held: int | None = None


RESTING: Final = Collector("resting")
AWAY: Final = Holder("still")


class State(NamedTuple):
    """A state; ``plan``: the positions to drop, if a plan exists. ``erased``: positions erased."""

    manifest: Manifest
    plan: Positions | None
    erased: Positions
    collectors: tuple[Collector, ...]
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The numbers of records and agents. ``broken``: the rule that is dropped."""

    records: int = 2
    collectors: int = 2
    cursors: int = 1
    pins: int = 0
    broken: str | None = None

    def initial(self) -> State:
        collectors = (RESTING,) * self.collectors
        holders = (AWAY,) * (self.cursors + self.pins)
        return State(Manifest(NONE, 1), None, NONE, collectors, holders)

    def protected(self, me: int, position: int | None) -> Positions:
        """Return what a holder protects: a cursor all from its position on, a pin one position."""
        if position is None:
            return NONE
        limit = self.records if me < self.cursors else position + 1
        return frozenset(range(position, limit))


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Exploration[State]:
    """Visit every run of a scope."""
    return explore(
        scope.initial(),
        partial(steps, scope),
        check=partial(check, scope),
        check_step=check_step,
        states_max=states_max,
    )


def check_step(before: State, after: State) -> str | None:
    was, now = before.manifest, after.manifest
    went_back = now.limit < was.limit or not now.dropped >= was.dropped
    return "the manifest went back" if went_back else None


def check(scope: Scope, state: State) -> str | None:
    """Return a sentence for a violated check, or None."""
    dropped = state.manifest.dropped
    if any(scope.protected(me, each.held) & dropped for me, each in enumerate(state.holders)):
        return "something that is held was dropped"
    return None if dropped >= state.erased else "something was erased that the manifest keeps"


def steps(scope: Scope, state: State) -> Iterator[tuple[str, State]]:
    dropped, limit = state.manifest
    if limit < scope.records:
        yield "rolls up", state._replace(manifest=Manifest(dropped, limit + 1))
    for me, collector in enumerate(state.collectors):
        for label, now, after in _collect(scope, state, collector):
            those = (*state.collectors[:me], now, *state.collectors[me + 1 :])
            yield f"collector {me} {label}", after._replace(collectors=those)
    for me, holder in enumerate(state.holders):
        for label, then in _hold(scope, state, me, holder):
            these = (*state.holders[:me], then, *state.holders[me + 1 :])
            yield f"holder {me} {label}", state._replace(holders=these)


def _protected(scope: Scope, state: State) -> Positions:
    """Return the positions that cursors and pins protect.

    The model reads them in one step, although each is a request: the check of each file is
    independent.
    """
    files = [scope.protected(me, each.position) for me, each in enumerate(state.holders)]
    return NONE.union(*files)


def _collect(
    scope: Scope, state: State, collector: Collector
) -> Iterator[tuple[str, Collector, State]]:
    stage, seen, going = collector
    if stage == "resting":
        yield "reads the manifest", Collector("deciding", state.manifest), state
    elif stage == "deciding" and state.plan is not None:
        yield "takes a plan over", Collector("planned", seen, state.plan), state
    elif stage == "deciding":
        yield from _decide(scope, state, seen)
    elif stage == "planning" and (state.plan is None or scope.broken == "usurps"):
        yield "plans", Collector("planned", seen, going), state._replace(plan=going)
    elif stage == "planning":
        yield "finds a plan", RESTING, state
    elif stage == "planned":
        yield _read_again(scope, state, collector)
    elif stage == "cleared" and scope.broken == "swift" and not state.erased >= going:
        yield "erases", collector, state._replace(erased=state.erased | going)
    elif stage == "cleared":
        yield from _replace(scope, state, collector)
    elif stage == "replaced":
        yield (
            "erases",
            collector._replace(stage="erased"),
            state._replace(erased=state.erased | going),
        )
    elif stage == "erased":
        tidies = scope.broken == "tidies"
        after = state._replace(plan=None) if tidies else _without(state, going)
        yield "removes the plan", RESTING, after


def _decide(scope: Scope, state: State, seen: Manifest) -> Iterator[tuple[str, Collector, State]]:
    """Plan to drop unprotected positions below any limit; a collector may keep more."""
    kept = _protected(scope, state) | seen.dropped
    wishes = {frozenset(range(limit)) - kept for limit in range(1, seen.limit + 1)}
    for going in sorted(wishes - {NONE}, key=sorted):
        yield f"decides on {sorted(going)}", Collector("planning", seen, going), state


def _read_again(scope: Scope, state: State, collector: Collector) -> tuple[str, Collector, State]:
    _, seen, going = collector
    if seen.dropped >= going:
        return "finds the plan carried out", Collector("replaced", seen, going), state
    if scope.broken == "unread" or not going & _protected(scope, state):
        return "reads the cursors", Collector("cleared", seen, going), state
    after = _without(state, going) if scope.broken == "withdraws" else state
    return "finds a cursor in the way", RESTING, after


def _replace(
    scope: Scope, state: State, collector: Collector
) -> Iterator[tuple[str, Collector, State]]:
    """Replace the manifest, or lose that race: then try again at once, or rest.

    Another try needs no second read of the cursors. The plan existed all the time, and it is
    removed only after the manifest drops all that it names.
    """
    _, seen, going = collector
    if state.manifest == seen or scope.broken == "careless":
        after = state._replace(manifest=Manifest(seen.dropped | going, seen.limit))
        yield "replaces the manifest", Collector("replaced", seen, going), after
        return
    if not state.manifest.dropped >= going:
        yield "has lost, and tries again", Collector("cleared", state.manifest, going), state
    yield "has lost", RESTING, state


def _without(state: State, plan: Positions) -> State:
    """Remove a plan if it is unchanged. A later plan never names what an earlier one named."""
    return state._replace(plan=None) if state.plan == plan else state


def _hold(scope: Scope, state: State, me: int, holder: Holder) -> Iterator[tuple[str, Holder]]:
    stage, position, held = holder
    is_past = [bool(gone & scope.protected(me, position)) for gone in _looks(scope, state, holder)]
    if stage == "refused":
        # A cursor that could not be set back is still held at its old position.
        yield "gives up", Holder("still", held, held)
    elif stage in ("written", "looked"):
        now = holder._replace(stage="looked") if stage == "written" else _holding(position)
        has_passed = is_past[stage == "looked"]
        yield f"looks, {has_passed=}", holder._replace(stage="refused") if has_passed else now
    elif position is None:
        for wanted in range(state.manifest.limit):
            yield f"writes {wanted}", Holder("written", wanted)
    else:
        yield "lets go", AWAY
        if me < scope.cursors:
            for lower in range(position):
                yield f"sets its cursor back to {lower}", Holder("written", lower, held)
            if position + 1 < state.manifest.limit:
                yield "moves its cursor on", _holding(position + 1)


def _holding(position: int | None) -> Holder:
    return Holder("still", position, position)


def _looks(scope: Scope, state: State, holder: Holder) -> tuple[Positions, Positions]:
    """Return the positions gone or planned, as a holder sees them at its first and second look."""
    plan, dropped = state.plan or NONE, state.manifest.dropped
    if scope.broken == "backwards" and holder.held is not None:
        return NONE, NONE
    match scope.broken:
        case "unlooked":
            return NONE, NONE
        case "planless":
            return dropped, dropped
        case "planful":
            return plan, plan
        case "crosswise":
            return dropped, plan
    return plan, dropped
