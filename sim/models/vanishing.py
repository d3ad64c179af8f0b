"""A shard's merges and collections against readers with and without leases, at a small scope.

Each merge replaces the part before it, which vanishes by that record. A collector reads the state,
and deletes the parts whose vanishing record no hold is below. A reader places its lease at the
seqno of an earlier state, **then** plans by a state that has the lease. If it moves on, it gives up
its plan. A lease may end at any time, because another process has waited long enough. A reader that
finds a part gone reads the newest state, and plans by it.

Checks at every step: the part that the newest state names exists; a part planned under a valid
lease exists; and no reader reports a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Exploration, explore

BROKEN: Final = {
    "blind": "the collector does not mind holds",
    "piecemeal": "the collector reads the holds, and what has vanished later on",
    "eager": "the collector deletes what vanished two records after a hold",
    "early": "a reader plans, and places its lease then, by the newest state",
    "keeps": "a reader that moves on keeps its plan",
    "stubborn": "a reader that finds a part gone does not read the newest state",
}


class Reader(NamedTuple):
    """A reader; ``planned`` is the part that it will read."""

    stage: str
    planned: int | None = None
    moves: int = 0


class Collector(NamedTuple):
    """A collector; ``floor`` is the least seqno held in the state it read; ``due`` are parts."""

    stage: str
    floor: int | None = None
    due: tuple[int, ...] = ()


class State(NamedTuple):
    """A state; record ``born[n]`` created part n, and record ``born[n + 1]`` made it vanish."""

    seqno: int
    born: tuple[int, ...]
    there: frozenset[int]
    holds: tuple[int | None, ...]
    readers: tuple[Reader, ...]
    collectors: tuple[Collector, ...]


RESTING: Final = Collector("resting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The numbers of agents and steps. ``broken``: the rule that is dropped."""

    merges: int = 2
    readers: int = 1
    collectors: int = 1
    moves: int = 1
    broken: str | None = None

    def initial(self) -> State:
        return State(
            0,
            (0,),
            frozenset({0}),
            (None,) * self.readers,
            (Reader("begins"),) * self.readers,
            (RESTING,) * self.collectors,
        )


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Exploration[State]:
    """Visit every run of a scope."""
    return explore(
        scope.initial(),
        partial(steps, scope),
        check=check,
        states_max=states_max,
    )


def check(state: State) -> str | None:
    """Return a sentence for a violated check, or None."""
    if live(state) not in state.there:
        return "a part that the newest state names was deleted"
    for hold, reader in zip(state.holds, state.readers, strict=True):
        if reader.stage == "told of a loss":
            return "a reader was told of a loss"
        if hold is not None and reader.planned is not None and reader.planned not in state.there:
            return "what a lease holds was deleted"
    return None


def live(state: State) -> int:
    return len(state.born) - 1


def steps(scope: Scope, state: State) -> Iterator[tuple[str, State]]:
    if live(state) < scope.merges:
        born = (*state.born, state.seqno + 1)
        there = state.there | {live(state) + 1}
        yield "merges", state._replace(seqno=state.seqno + 1, born=born, there=there)
    for me, collector in enumerate(state.collectors):
        for label, now, after in _collect(scope, state, collector):
            those = (*state.collectors[:me], now, *state.collectors[me + 1 :])
            yield f"collector {me} {label}", after._replace(collectors=those)
    for me, reader in enumerate(state.readers):
        if state.holds[me] is not None:
            yield f"the lease of reader {me} ends", _held(state, me, None)
        for label, then, after in _read(scope, state, me, reader):
            these = (*state.readers[:me], then, *state.readers[me + 1 :])
            yield f"reader {me} {label}", after._replace(readers=these)


def _collect(
    scope: Scope, state: State, collector: Collector
) -> Iterator[tuple[str, Collector, State]]:
    floor = min((hold for hold in state.holds if hold is not None), default=None)
    if scope.broken == "blind":
        floor = None
    if collector.stage == "resting" and scope.broken == "piecemeal":
        yield "reads the holds", Collector("knows holds", floor), state
    elif collector.stage == "resting":
        yield "reads the state", Collector("deleting", floor, _due(scope, state, floor)), state
    elif collector.stage == "knows holds":
        due = _due(scope, state, collector.floor)
        yield "reads what vanished", Collector("deleting", collector.floor, due), state
    elif collector.due:
        first, *rest = collector.due
        after = state._replace(there=state.there - {first})
        yield f"deletes part {first}", collector._replace(due=tuple(rest)), after
    else:
        yield "is done", RESTING, state


def _due(scope: Scope, state: State, floor: int | None) -> tuple[int, ...]:
    slack = 2 if scope.broken == "eager" else 0
    vanished = enumerate(state.born[1:])
    return tuple(
        part
        for part, seqno in vanished
        if part in state.there and (floor is None or seqno <= floor + slack)
    )


def _held(state: State, me: int, hold: int | None) -> State:
    """Return the state after a record that places, moves or ends a lease."""
    holds = (*state.holds[:me], hold, *state.holds[me + 1 :])
    return state._replace(seqno=state.seqno + 1, holds=holds)


def _read(
    scope: Scope, state: State, me: int, reader: Reader
) -> Iterator[tuple[str, Reader, State]]:
    stage, planned, moves = reader
    newest = live(state)
    if stage == "begins" and scope.broken == "early":
        yield "plans", Reader("without a lease", newest), state
        if planned is None:
            return
    elif stage == "begins":
        yield "places a lease", Reader("leased"), _held(state, me, state.seqno)
        yield "plans without a lease", Reader("planned", newest), state
    elif stage == "without a lease":
        if planned in state.there:
            yield "places a lease", Reader("planned", planned), _held(state, me, state.seqno)
    elif stage == "leased":
        yield "plans", Reader("planned", newest, moves), state
    elif stage == "planned" and planned in state.there:
        yield "reads", Reader("has read", planned, moves), state
    elif stage == "planned":
        yield "finds its part gone", Reader("missing", planned, moves), state
    elif stage == "missing":
        is_named = planned == newest or scope.broken == "stubborn"
        now = Reader("told of a loss") if is_named else Reader("planned", newest, moves)
        yield "looks at the newest state", now, state
    elif stage == "has read" and moves < scope.moves and state.holds[me] is not None:
        kept = planned if scope.broken == "keeps" else None
        next_stage = "planned" if kept is not None else "leased"
        yield "moves on", Reader(next_stage, kept, moves + 1), _held(state, me, state.seqno)
