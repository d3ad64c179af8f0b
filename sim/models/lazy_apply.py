"""Lazy apply at a small scope: two writers, a reader, a merger and a sweep at one registered shard.

A writer reads the shard's epoch and upper, uploads its part, and commits it in the transactions.
The state of the transactions chooses the time. A blind commit is never refused for its time; a
commit that read first is refused if the shard has another write since. The answer of a commit may
be lost, and the writer then commits the same token again. A commit drops the pending writes that
its writer knows to be applied.

An applier reads the transactions, **then** writes their parts to the shard, which skips those that
it has. A reader reads the transactions, **then** the shard, and adds the parts of times that the
shard has not reached. A merger replaces the shard's parts by one, and deletes them. A sweeper is
that of `sim.models.sweeping`. There is no clock; an agent that takes no further step has died.

Checks at every step: each part that the shard names or still needs exists, the shard has each
committed row once, a token is committed once, and a commit that read first read all rows before it.
A reader sees each row below the upper that it read exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Exploration, explore

BROKEN: Final = {
    "backwards": "the reader reads the shard first, and the transactions then",
    "partial": "the reader does not add the parts that the shard does not have yet",
    "by_name": "the reader adds the pending parts that the shard does not name",
    "repeats": "the shard takes the parts of a time that it has reached",
    "drops": "a commit drops all pending writes, applied or not",
    "forgetful": "the transactions do not look for the token of a retry",
    "unread": "a commit that read first is never refused",
    "unfenced": "the sweeper does not fence the transactions",
    "unapplied": "the sweeper does not have the committed parts applied",
}

BLIND: Final = -1
Part = tuple[int, int, int]  # Its writer (or MERGER), its try, and its epoch.
MERGER: Final = 9
Pending = tuple[tuple[int, Part], ...]
Named = tuple[tuple[Part, tuple[int, ...]], ...]


class Writer(NamedTuple):
    """A writer: the epoch, the shard's upper, and the transactions' upper that it read."""

    stage: str = "resting"
    tries: int = 0
    epoch: int = 0
    known: int = 0
    saw: int = BLIND


class Agent(NamedTuple):
    """An applier, reader, merger or sweeper, and the states that it read."""

    stage: str = "resting"
    pending: Pending = ()
    named: Named = ()
    reached: int = 0
    listed: frozenset[Part] = frozenset()
    is_young: bool = False


class World(NamedTuple):
    """``reached`` is the shard's own upper; ``written`` has (writer, try, saw) of each time."""

    epoch: int = 0
    fence: int = 0
    pending: Pending = ()
    written: tuple[tuple[int, int, int], ...] = ()
    reached: int = 0
    named: Named = ()
    there: frozenset[Part] = frozenset()
    writers: tuple[Writer, ...] = ()
    applier: Agent = Agent()
    reader: Agent = Agent()
    merger: Agent = Agent()
    sweeper: Agent = Agent()

    @property
    def needed(self) -> Pending:
        """The pending writes that the shard does not have."""
        return tuple((time, part) for time, part in self.pending if time >= self.reached)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The numbers of agents and steps. The last writer ``reads_first``, if so set.

    ``lost``: answers of commits may be lost. ``broken``: the rule that is dropped.
    """

    writers: int = 2
    tries: int = 1
    reads_first: bool = False
    lost: bool = False
    reader: bool = False
    merger: bool = False
    sweeper: bool = False
    epochs: int = 2
    broken: str | None = None

    def initial(self) -> World:
        return World(writers=(Writer(),) * self.writers)


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Exploration[World]:
    """Visit every run of a scope."""
    return explore(
        scope.initial(),
        partial(steps, scope),
        check=check,
        states_max=states_max,
    )


def check(world: World) -> str | None:
    """Return a sentence for a violated check, or None."""
    names = {part for part, _ in world.named} | {part for _, part in world.needed}
    if not names <= world.there:
        return "a part that is committed was deleted"
    rows = sorted(time for _, times in world.named for time in times)
    needed = [time for time, _ in world.needed]
    if rows + needed != list(range(len(world.written))):
        return "a row is missing, or the shard has it twice"
    tokens = [token[:2] for token in world.written]
    if len(set(tokens)) < len(tokens):
        return "a token was committed twice"
    if any(saw not in (BLIND, time) for time, (_, _, saw) in enumerate(world.written)):
        return "a commit does not follow from all rows before it"
    return "a reader saw other rows than those committed" if world.reader.stage == "wrong" else None


def steps(scope: Scope, world: World) -> Iterator[tuple[str, World]]:
    for me, writer in enumerate(world.writers):
        for label, now, after in _write(scope, world, me, writer):
            those = (*world.writers[:me], now, *world.writers[me + 1 :])
            yield f"writer {me} {label}", after._replace(writers=those)
    for label, agent, after in _apply(scope, world, world.applier):
        yield f"the applier {label}", after._replace(applier=agent)
    if scope.reader:
        for label, agent, after in _read(scope, world, world.reader):
            yield f"the reader {label}", after._replace(reader=agent)
    if scope.merger:
        for label, agent, after in _merge(world, world.merger):
            yield f"the merger {label}", after._replace(merger=agent)
    if scope.sweeper:
        for label, agent, after in _sweep(scope, world, world.sweeper):
            yield f"the sweeper {label}", after._replace(sweeper=agent)


def _write(
    scope: Scope, world: World, me: int, writer: Writer
) -> Iterator[tuple[str, Writer, World]]:
    stage, tries, epoch, _, saw = writer
    part = (me, tries, epoch)
    if stage == "resting" and tries < scope.tries:
        reads_first = scope.reads_first and me == scope.writers - 1
        read = len(world.written) if reads_first else BLIND
        yield "reads", Writer("ready", tries, world.epoch, world.reached, read), world
    elif stage == "ready":
        after = world._replace(there=world.there | {part})
        yield "uploads", writer._replace(stage="uploaded"), after
    elif stage in ("uploaded", "unsure"):
        done = Writer(tries=tries + 1)
        is_known = (me, tries, saw) in world.written and scope.broken != "forgetful"
        if is_known:
            yield "reads its answer back", done, world
        elif _is_refused(scope, world, writer, part):
            yield "is refused", done, world
        else:
            after = _committed(scope, world, writer, part)
            yield "commits", done, after
            if scope.lost and stage == "uploaded":
                yield "commits, and its answer is lost", writer._replace(stage="unsure"), after


def _is_refused(scope: Scope, world: World, writer: Writer, part: Part) -> bool:
    has_moved = writer.saw not in (BLIND, len(world.written)) and scope.broken != "unread"
    return has_moved or part[2] < world.fence - 1


def _committed(scope: Scope, world: World, writer: Writer, part: Part) -> World:
    known = len(world.written) if scope.broken == "drops" else writer.known
    left = tuple(one for one in world.pending if one[0] >= known)
    time = len(world.written)
    token = (part[0], part[1], writer.saw)
    return world._replace(pending=(*left, (time, part)), written=(*world.written, token))


def _apply(scope: Scope, world: World, agent: Agent) -> Iterator[tuple[str, Agent, World]]:
    if agent.stage == "resting" and world.needed:
        yield "reads the transactions", Agent("ready", pending=world.pending), world
    elif agent.stage == "ready":
        (time, part), *rest = agent.pending
        now = Agent("ready", pending=tuple(rest)) if rest else Agent()
        yield f"applies {part}", now, _applied(scope, world, time, part)


def _applied(scope: Scope, world: World, time: int, part: Part) -> World:
    if time < world.reached and scope.broken != "repeats":
        return world
    named = (*world.named, (part, (time,)))
    return world._replace(named=named, reached=max(world.reached, time + 1))


def _read(scope: Scope, world: World, agent: Agent) -> Iterator[tuple[str, Agent, World]]:
    if agent.stage == "resting":
        if scope.broken == "backwards":
            now = Agent("half", named=world.named, reached=world.reached)
        else:
            # The commits are never fewer than what the reader needs, so their number is the upper.
            now = Agent("half", pending=world.pending, reached=len(world.written))
        yield "reads the first state", now, world
    elif agent.stage == "half":
        if scope.broken == "backwards":
            upper, view = len(world.written), (world.pending, agent.named, agent.reached)
        else:
            upper, view = agent.reached, (agent.pending, world.named, world.reached)
        rows = sorted(time for time in _seen(scope, *view) if time < upper)
        yield (
            "reads the other state",
            Agent("resting" if rows == list(range(upper)) else "wrong"),
            world,
        )


def _seen(scope: Scope, pending: Pending, named: Named, reached: int) -> list[int]:
    rows = [time for _, times in named for time in times]
    if scope.broken == "partial":
        return rows
    if scope.broken == "by_name":
        parts = {part for part, _ in named}
        return rows + [time for time, part in pending if part not in parts]
    return rows + [time for time, _ in pending if time >= reached]


def _merge(world: World, agent: Agent) -> Iterator[tuple[str, Agent, World]]:
    """One merge: of two parts or more, by an agent that then deletes them."""
    if agent.stage == "resting" and len(world.named) > 1:
        yield "reads the shard", Agent("ready", named=world.named, reached=world.epoch), world
    elif agent.stage == "ready":
        made = (MERGER, 0, agent.reached)
        now = agent._replace(stage="uploaded")
        yield "uploads", now, world._replace(there=world.there | {made})
    elif agent.stage == "uploaded":
        made = (MERGER, 0, agent.reached)
        old = set(agent.named)
        if made[2] < world.epoch - 1 or not old <= set(world.named):
            yield "is refused", Agent("over"), world
            return
        rows = tuple(sorted(time for _, times in agent.named for time in times))
        left = tuple(one for one in world.named if one not in old)
        after = world._replace(named=((made, rows), *left))
        yield "commits", agent._replace(stage="merged"), after
    elif agent.stage == "merged":
        old_parts = {part for part, _ in agent.named}
        yield "deletes the old parts", Agent("over"), world._replace(there=world.there - old_parts)


def _sweep(scope: Scope, world: World, agent: Agent) -> Iterator[tuple[str, Agent, World]]:
    known = agent.reached  # The epoch that the sweeper read.
    if agent.stage == "resting":
        yield "lists", Agent("listed", listed=world.there), world
    elif agent.stage == "listed":
        unnamed = agent.listed - {part for part, _ in world.named}
        dead = frozenset(part for part in unnamed if part[2] < world.epoch - 1)
        now = Agent("deleting", listed=dead, reached=world.epoch, is_young=bool(unnamed - dead))
        yield "reads the shard", now, world
    elif agent.stage == "deleting":
        first = "applying" if scope.broken == "unfenced" else "fencing"
        may_raise = agent.is_young and world.epoch < scope.epochs
        now = Agent(first, reached=known) if may_raise else Agent()
        yield "deletes", now, world._replace(there=world.there - agent.listed)
    elif agent.stage == "fencing":
        following = "raising" if scope.broken == "unapplied" else "applying"
        after = world._replace(fence=max(world.fence, known + 1))
        yield "fences", agent._replace(stage=following), after
    elif agent.stage == "applying":
        now = agent._replace(stage="holding", pending=world.pending)
        yield "reads the transactions", now, world
    elif agent.stage == "holding":
        after = world
        for time, part in agent.pending:
            after = _applied(scope, after, time, part)
        yield "applies all", Agent("raising", reached=known), after
    elif agent.stage == "raising":
        raised = world.epoch + (world.epoch == known)
        yield "raises the epoch", Agent(), world._replace(epoch=raised)
