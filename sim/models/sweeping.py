"""Sweeps by write epochs against writers, and against transactions, at a small scope.

A writer reads the epoch, uploads its part under it, and commits. A commit accepts parts of the
state's epoch and of the one before. A sweeper lists, **then** reads the state, and deletes listed
parts that are unnamed and older than those epochs. If it saw unnamed parts that are too young, it
raises the epoch, provided that it is unchanged. There is no clock; an agent that takes no further
step has died.

In a registered shard, the transactions name a committed part first. The shard names it only after
any agent applies it. A sweeper there fences off old parts in the transactions, **then** has all
committed parts applied, **then** raises the shard's epoch.

Checks at every step: each part that the shard or the transactions name exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Exploration, explore

BROKEN: Final = {
    "unchecked": "a commit takes parts of any epoch",
    "narrow": "the sweeper deletes what is of the epoch before as well",
    "unnamed": "the sweeper deletes old parts without a look at what is named",
    "unfenced": "the sweeper of a registered shard does not fence its transactions",
    "unapplied": "the sweeper of a registered shard does not apply what was committed",
    "reversed": "the sweeper of a registered shard applies first, and fences then",
    "blindly": "the sweeper raises whatever epoch there is",
}

Part = tuple[int, int, int]  # Its writer, its try, and its epoch.
Parts = frozenset[Part]
NONE: Final[Parts] = frozenset()


class Writer(NamedTuple):
    """A writer; ``epoch`` is the one that it read."""

    stage: str
    tries: int = 0
    epoch: int = 0


class Sweeper(NamedTuple):
    """A sweeper; ``known`` is the epoch that it read."""

    stage: str
    listed: Parts = NONE
    known: int = 0
    is_young: bool = False


class State(NamedTuple):
    """A state; ``pending``: committed by transactions, not yet applied; ``fence``: their epoch."""

    epoch: int
    fence: int
    named: Parts
    pending: Parts
    there: Parts
    writers: tuple[Writer, ...]
    sweepers: tuple[Sweeper, ...]


RESTING: Final = Sweeper("resting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The numbers of agents and steps. ``broken``: the rule that is dropped."""

    writers: int = 2
    tries: int = 2
    sweepers: int = 1
    epochs: int = 3
    registered: bool = False
    broken: str | None = None

    def initial(self) -> State:
        writers = (Writer("resting"),) * self.writers
        return State(0, 0, NONE, NONE, NONE, writers, (RESTING,) * self.sweepers)


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
    if not state.named <= state.there:
        return "a part that the state names was deleted"
    return None if state.pending <= state.there else "a part that was committed was deleted"


def steps(scope: Scope, state: State) -> Iterator[tuple[str, State]]:
    for part in sorted(state.pending):
        yield f"somebody applies {part}", _applied(state, frozenset({part}))
    for me, writer in enumerate(state.writers):
        for label, now, after in _write(scope, state, me, writer):
            those = (*state.writers[:me], now, *state.writers[me + 1 :])
            yield f"writer {me} {label}", after._replace(writers=those)
    for me, sweeper in enumerate(state.sweepers):
        for label, swept, after in _sweep(scope, state, sweeper):
            these = (*state.sweepers[:me], swept, *state.sweepers[me + 1 :])
            yield f"sweeper {me} {label}", after._replace(sweepers=these)


def _applied(state: State, parts: Parts) -> State:
    return state._replace(pending=state.pending - parts, named=state.named | parts)


def _write(
    scope: Scope, state: State, me: int, writer: Writer
) -> Iterator[tuple[str, Writer, State]]:
    stage, tries, epoch = writer
    part = (me, tries, epoch)
    if stage == "resting" and tries < scope.tries:
        yield "reads the epoch", Writer("ready", tries, state.epoch), state
    elif stage == "ready":
        after = state._replace(there=state.there | {part})
        yield "uploads", Writer("uploaded", tries, epoch), after
    elif stage == "uploaded":
        reached = state.fence if scope.registered else state.epoch
        taken = epoch >= reached - 1 or scope.broken == "unchecked"
        after = state
        if taken and scope.registered:
            after = state._replace(pending=state.pending | {part})
        elif taken:
            after = state._replace(named=state.named | {part})
        yield f"commits, {taken=}", Writer("resting", tries + 1), after


def _sweep(scope: Scope, state: State, sweeper: Sweeper) -> Iterator[tuple[str, Sweeper, State]]:
    stage, listed, known, is_young = sweeper
    if stage == "resting":
        yield "lists", Sweeper("listed", state.there), state
    elif stage == "listed":
        unnamed = listed if scope.broken == "unnamed" else listed - state.named
        limit = state.epoch if scope.broken == "narrow" else state.epoch - 1
        dead = frozenset(part for part in unnamed if part[2] < limit)
        young = bool(unnamed - dead)
        yield "reads the state", Sweeper("deleting", dead, state.epoch, young), state
    elif stage == "deleting":
        now = Sweeper("raising" if is_young else "resting", NONE, known if is_young else 0)
        if is_young and scope.registered:
            first = "applying" if scope.broken in ("unfenced", "reversed") else "fencing"
            now = now._replace(stage=first)
        yield "deletes", now, state._replace(there=state.there - listed)
    elif stage == "fencing":
        following = {"unapplied": "raising", "reversed": "raising"}.get(
            scope.broken or "", "applying"
        )
        after = state._replace(fence=max(state.fence, known + 1))
        yield "fences", sweeper._replace(stage=following), after
    elif stage == "applying":
        following = "fencing" if scope.broken == "reversed" else "raising"
        yield "has all applied", sweeper._replace(stage=following), _applied(state, state.pending)
    elif stage == "raising":
        may = state.epoch == known or scope.broken == "blindly"
        raised = state.epoch + (may and state.epoch < scope.epochs)
        yield f"raises the epoch, {may=}", RESTING, state._replace(epoch=raised)
