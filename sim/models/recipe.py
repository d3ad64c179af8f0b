"""The recipe with two ingesters: bindings, renditions that share them, and a changed program.

All steps of all processes are interleaved: an ingester may die at each of them, and a request that
it sent may land later. The code decides what lands (`decide_append`), what a binding records
(`plan_updates`), and which binding comes next (`next_binding`). Addresses and times are small whole
numbers. A rendition has two shards, and each keeps the newest address of its key.

Invariants: below its upper, each shard has what the program of its rendition makes of the bindings.
No ingester stops for other rows, unless it runs another program; then it stops before it follows
rows that it would not have written. No binding is made without a change whose command has returned.
No rendition lacks a binding that it needs.
Source: storage, "The recipe"; design page 6, "The recipe, as it runs"; decisions 32, 33 and 34.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Exploration, explore
from tidelog.collection.source.binding import (
    SourceProgress,
    advance,
    next_binding,
    plan_updates,
    remap_schema,
)
from tidelog.collection.source.kind import RowRange
from tidelog.core.frontier import Frontier
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import CompareAndAppend, Verdict, decide_append

PATH: Final = "p"
SHARDS: Final = 2
SCHEMA: Final = remap_schema(RowRange)
RULES: Final[Mapping[str, str]] = {
    "obey": "an ingester takes its own proposal for the recorded binding",
    "propose": "a binding is recorded at any upper of the remap shard",
    "commit": "rows are committed whatever the upper of a shard",
    "meet": "a tick begins at the greatest upper of the shards, not at the least",
    "feedback": "rows are computed from the newest output, not from that before the binding",
    "epoch": "a binding is proposed whatever was announced since the catalog was read",
    "order": "an ingester reads the epoch after the catalog",
    "keep": "nothing holds the bindings for a later rendition",
    "program": "an ingester with another program goes on",
    "compare": "an ingester does not compare its rows with those of another one",
}


class Bound(NamedTuple):
    """A recorded binding: the times below ``upper`` have the addresses below ``limit``."""

    upper: int
    limit: int
    has_change: bool = False


class Delta(NamedTuple):
    """One commit of a shard: the row of its key before and after, at a time; or no row."""

    upper: int
    time: int = -1
    before: int = -1
    after: int = -1


class Agent(NamedTuple):
    """An ingester: the rendition that it feeds, its program, and where it is in a tick.

    ``known`` are the uppers of its shards as read. ``seen`` counts the records of the remap shard
    that it has read. ``looked`` is the epoch before its last read of the catalog.
    """

    rendition: int
    program: int
    step: str = "outputs"
    known: tuple[int, ...] = ()
    seen: int = 0
    epoch: int = 0
    looked: int = -1
    has_change: bool = False
    proposal: Bound | None = None
    interval: tuple[int, int] = (0, 0)  # The times of the computed binding, with its rows.
    rows: tuple[Delta, ...] = ()


class Sent(NamedTuple):
    """A proposal under way to the remap shard: its expected upper, and the epoch it needs."""

    rendition: int
    lower: int
    bound: Bound
    epoch: int


class World(NamedTuple):
    """The remap shard, the shards of each rendition, the ingesters, and requests under way.

    ``since`` is that of the remap shard. ``command`` is the next step of a change of the catalog.
    """

    agents: tuple[Agent, ...]
    outputs: tuple[tuple[tuple[Delta, ...], ...], ...]
    remap: tuple[Bound, ...] = ()
    since: int = 0
    epoch: int = 0
    command: str = "begin"
    returned: int = -1  # The number of bindings at the return of the command.
    flying: tuple[Sent, ...] = ()
    deaths: int = 0
    harm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One scope. ``renditions`` and ``programs`` are those of the ingesters, in their order.

    ``decides`` are the programs that the catalog names, by rendition. Two programs give other rows
    for each address except the first. With ``sampled``, the fixed sample shows that; without it,
    readers may get rows of either (decision 34). ``ends`` is the number of uppers to choose from.
    ``without`` names the broken rule.
    """

    addresses: int = 2
    bindings: int = 2
    ends: int = 1
    deaths: int = 1
    renditions: tuple[int, ...] = (0, 0)
    programs: tuple[int, ...] = (0, 0)
    decides: tuple[int, ...] = (0, 0)
    sampled: bool = True
    changes: bool = False
    merges: bool = False
    without: str = ""

    def explored(self, *, states_max: int = STATES_MAX) -> Exploration[World]:
        return explore(self.initial(), self.steps, check=self.check, states_max=states_max)

    def initial(self) -> World:
        agents = tuple(
            Agent(rendition, program)
            for rendition, program in zip(self.renditions, self.programs, strict=True)
        )
        outputs = ((((),) * SHARDS),) * (max(self.renditions) + 1)
        return World(agents, outputs, command="begin" if self.changes else "end")

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for me, agent in enumerate(world.agents):
            for label, after in self.ticks(world, me, agent):
                yield f"{me}: {label}", after
            if world.deaths < self.deaths and agent.step not in ("outputs", "stopped"):
                born = Agent(agent.rendition, agent.program)
                yield f"{me}: dies", with_agent(world, me, born)._replace(deaths=world.deaths + 1)
        for sent in world.flying:
            left = tuple(one for one in world.flying if one != sent)
            yield "a late binding lands", self.recorded(world._replace(flying=left), sent)[0]
        yield from self.commands(world)
        yield from self.merged(world)

    def ticks(self, world: World, me: int, agent: Agent) -> Iterator[tuple[str, World]]:
        """Yield the next step of an ingester."""
        outputs = world.outputs[agent.rendition]
        if agent.step == "outputs":
            known = tuple(upper_of(shard) for shard in outputs)
            yield "reads outputs", with_agent(world, me, agent, step="bindings", known=known)
        elif agent.step == "bindings":
            read = {"seen": len(world.remap), "epoch": world.epoch}
            yield "reads bindings", with_agent(world, me, agent, step="choose", **read)
        elif agent.step == "choose":
            yield from self.chooses(world, me, agent)
        elif agent.step == "catalog":
            has_change = world.command != "begin"
            step = "learn" if self.without == "order" else "choose"
            read = {"looked": agent.epoch, "has_change": has_change}
            yield "reads the catalog", with_agent(world, me, agent, step=step, **read)
        elif agent.step == "learn":
            read = {"looked": world.epoch, "epoch": world.epoch}
            yield "reads the epoch", with_agent(world, me, agent, step="choose", **read)
        elif agent.step == "propose":
            yield from self.proposes(world, me, agent)
        elif agent.step == "obey":
            yield "computes", self.computed(world, me, agent)
        elif agent.step.startswith("commit"):
            yield self.commits(world, me, agent, int(agent.step[-1]))

    def lower_of(self, agent: Agent) -> int:
        return max(agent.known) if self.without == "meet" else min(agent.known)

    def chooses(self, world: World, me: int, agent: Agent) -> Iterator[tuple[str, World]]:
        """Choose a proposal if no binding waits; the program is compared before."""
        lower, remap = self.lower_of(agent), world.remap[: agent.seen]
        upper, taken = (remap[-1].upper, remap[-1].limit) if remap else (0, 0)
        is_other = agent.program != self.decides[agent.rendition]
        if self.sampled and is_other and self.without != "program":
            yield "has another program", with_agent(world, me, agent, step="stopped")
        elif upper > lower:
            yield "finds a binding", with_agent(world, me, agent, step="obey")
        elif self.changes and agent.looked != agent.epoch:
            yield "must look", with_agent(world, me, agent, step="catalog")
        elif len(remap) < self.bindings:
            for limit in range(taken, min(taken + 2, self.addresses) + 1):
                for end in range(lower + 1, lower + 1 + self.ends):
                    bound = Bound(end, limit, agent.has_change)
                    changed = with_agent(world, me, agent, step="propose", proposal=bound)
                    yield f"plans {limit} until {end}", changed

    def proposes(self, world: World, me: int, agent: Agent) -> Iterator[tuple[str, World]]:
        """Propose a binding, and read back the recorded one; or die, and it lands later."""
        assert agent.proposal is not None
        sent = Sent(agent.rendition, self.lower_of(agent), agent.proposal, agent.looked)
        after, landed = self.recorded(world, sent)
        read = {"seen": len(after.remap), "epoch": after.epoch}
        step = "obey" if landed or len(after.remap) > agent.seen else "choose"
        kept = agent.proposal if self.without == "obey" else None
        yield "proposes", with_agent(after, me, agent, step=step, proposal=kept, **read)
        if world.deaths < self.deaths and not world.flying:
            dead = with_agent(world, me, Agent(agent.rendition, agent.program))
            yield (
                "dies, its binding under way",
                dead._replace(deaths=world.deaths + 1, flying=(*world.flying, sent)),
            )

    def recorded(self, world: World, sent: Sent) -> tuple[World, bool]:
        """Return the world after a proposal has reached the remap shard, and if it was recorded."""
        bound, lower = sent.bound, sent.lower
        upper = world.remap[-1].upper if world.remap else 0
        given = sent.epoch if self.changes and self.without != "epoch" else None
        expected = upper if self.without == "propose" and bound.upper > upper else lower
        if not lands(upper, world.epoch, expected, bound.upper, given):
            return world, False
        harm = ""
        if least_upper(world.outputs[sent.rendition]) < upper:
            harm = "a binding was recorded before all shards had the one before it"
        elif world.returned >= 0 and not bound.has_change:
            harm = "a binding was made without a change whose command had returned"
        return world._replace(remap=(*world.remap, bound), harm=harm), True

    def computed(self, world: World, me: int, agent: Agent) -> World:
        """Compute the rows of the recorded binding, from the output before it."""
        lower = self.lower_of(agent)
        upper, start, limit = following(world.remap[: agent.seen], lower)
        proposal = agent.proposal
        if self.without == "obey" and proposal is not None and proposal.upper > lower:
            start = taken_at(world.remap[: agent.seen], lower)
            upper, limit = proposal.upper, max(start, proposal.limit)
        shards = world.outputs[agent.rendition]
        rows = []
        for number, shard in enumerate(shards):
            before = row_at(shard, STATES_MAX if self.without == "feedback" else lower - 1)
            rows.append(made(agent.program, number, upper, (start, limit), before))
        tick = {"interval": (lower, upper), "rows": tuple(rows)}
        # The rest of the tick needs nothing else, so equal states are met again.
        left = agent._replace(known=(), seen=0, epoch=0, proposal=None)
        return with_agent(world, me, left, step="commit 0", **tick)

    def commits(self, world: World, me: int, agent: Agent, number: int) -> tuple[str, World]:
        """Commit to one shard, or compare with the commit of another ingester."""
        lower, upper = agent.interval
        shard = world.outputs[agent.rendition][number]
        is_last = number + 1 == len(world.outputs[agent.rendition])
        done = agent._replace(step=f"commit {number + 1}")
        if is_last:
            done = done._replace(step="outputs", interval=(0, 0), rows=())
        rows, reached = agent.rows[number], upper_of(shard)
        if self.without == "commit":
            rows = rows._replace(upper=max(upper, reached))
        if self.without == "commit" or lands(reached, 0, lower, upper, None):
            after = with_shard(world, agent.rendition, number, (*shard, rows))
            return f"commits {number}", with_agent(after, me, done)
        theirs = commit_between(shard, lower, upper)
        if theirs is None or theirs == rows:
            return f"finds {number} done", with_agent(world, me, done)
        if self.without == "compare":
            harm = "an ingester follows rows that it would not have written"
            return f"overlooks {number}", with_agent(world, me, done)._replace(harm=harm)
        stopped = with_agent(world, me, agent, step="stopped")
        if all(one.program == self.decides[one.rendition] for one in world.agents):
            stopped = stopped._replace(harm="an ingester stops for other rows of one program")
        return f"stops at {number}", stopped

    def commands(self, world: World) -> Iterator[tuple[str, World]]:
        """A command changes the catalog, announces the change, and returns."""
        if world.command == "begin":
            yield "command: changes the catalog", world._replace(command="announce")
        elif world.command == "announce":
            raised = world.epoch + 1 if world.remap else world.epoch
            returned = len(world.remap) if world.remap else -1
            yield (
                "command: announces, and returns",
                world._replace(command="end", epoch=raised, returned=returned),
            )

    def merged(self, world: World) -> Iterator[tuple[str, World]]:
        """A merge of the remap shard drops times before its holds: of the first rendition alone."""
        if not self.merges:
            return
        held = 0 if self.without != "keep" else max(0, least_upper(world.outputs[0]) - 1)
        if world.since < held:
            yield "merges the bindings", world._replace(since=held)

    def check(self, world: World) -> str | None:
        """Return the violated invariant of a state."""
        if world.harm:
            return world.harm
        for rendition, shards in enumerate(world.outputs):
            if world.since > max(0, least_upper(shards)):
                return f"the bindings that rendition {rendition} needs are gone"
            for number, shard in enumerate(shards):
                program = self.decides[rendition]
                if self.sampled and not is_right(world.remap, shard, number, program):
                    return f"shard {number} of rendition {rendition} has other rows"
        return None


def with_agent(world: World, me: int, agent: Agent, **changes: object) -> World:
    changed = agent._replace(**changes)  # type: ignore[arg-type]
    return world._replace(agents=(*world.agents[:me], changed, *world.agents[me + 1 :]))


def with_shard(world: World, rendition: int, number: int, shard: tuple[Delta, ...]) -> World:
    shards = world.outputs[rendition]
    changed = (*shards[:number], shard, *shards[number + 1 :])
    outputs = (*world.outputs[:rendition], changed, *world.outputs[rendition + 1 :])
    return world._replace(outputs=outputs)


def upper_of(shard: tuple[Delta, ...]) -> int:
    return shard[-1].upper if shard else 0


def least_upper(shards: tuple[tuple[Delta, ...], ...]) -> int:
    return min(upper_of(shard) for shard in shards)


def row_at(shard: tuple[Delta, ...], as_of: int) -> int:
    """Return the row of a shard at a time, or -1."""
    found = -1
    for one in shard:
        if 0 <= one.time <= as_of:
            found = one.after
    return found


def commit_between(shard: tuple[Delta, ...], lower: int, upper: int) -> Delta | None:
    """Return the commit of exactly these times, or None."""
    begin = 0
    for one in shard:
        if (begin, one.upper) == (lower, upper):
            return one
        begin = one.upper
    return None


@lru_cache(maxsize=100_000)
def lands(reached: int, epoch: int, expected: int, upper: int, given: int | None) -> bool:
    """Return True if the state machine accepts an append to a shard with this upper and epoch."""
    state = State(upper=reached, schema=b"s", write_epoch=epoch)
    if upper < expected:
        return False
    command = CompareAndAppend(
        schema=b"s",
        parts=(),
        expected_upper=Frontier.at(expected),
        upper=Frontier.at(upper),
        token=("an ingester", 0),
        fresh=True,
        write_epoch=given,
    )
    return decide_append(state, command).result.verdict is Verdict.COMMITTED


@lru_cache(maxsize=100_000)
def following(remap: tuple[Bound, ...], lower: int) -> tuple[int, int, int]:
    """Return the upper and the addresses of the binding that comes next, by the stored rows."""
    progress, start, tables = SourceProgress(), 0, []
    for bound in remap:
        ranges = [RowRange(path=PATH, start=start, limit=bound.limit)][: bound.limit > start]
        tables.append(plan_updates(progress, ranges, SCHEMA, upper=bound.upper))
        found = next_binding(tables[-1:], 0, bound.upper, RowRange)
        progress, start = advance(progress, replace(found, upper=bound.upper)), bound.limit
    found = next_binding(tables, lower, remap[-1].upper, RowRange)
    if not found.ranges:
        taken = taken_at(remap, lower)
        return found.upper, taken, taken
    return found.upper, found.ranges[0].start, found.ranges[0].limit


def taken_at(remap: tuple[Bound, ...], upper: int) -> int:
    """Return the address after those that are bound below an upper."""
    return max((bound.limit for bound in remap if bound.upper <= upper), default=0)


@lru_cache(maxsize=100_000)
def made(program: int, number: int, upper: int, taken: tuple[int, int], before: int) -> Delta:
    """Return the commit of a shard for some addresses: it keeps the newest address of its key."""
    own = [address for address in range(*taken) if address % SHARDS == number]
    if not own:
        return Delta(upper)
    # Another program gives another row for each address except the first.
    row = own[-1] + (100 * program if own[-1] else 0)
    return Delta(upper, upper - 1, before, row)


@lru_cache(maxsize=100_000)
def is_right(remap: tuple[Bound, ...], shard: tuple[Delta, ...], number: int, program: int) -> bool:
    """Return True if a shard has what the bindings below its upper make."""
    found = [one._replace(upper=0) for one in shard if one.time >= 0]
    needed, start, before = [], 0, -1
    for bound in remap:
        one = made(program, number, bound.upper, (start, bound.limit), before)
        start = max(start, bound.limit)
        if one.time >= 0 and bound.upper <= upper_of(shard):
            needed.append(one._replace(upper=0))
            before = one.after
    return found == needed


REPLICAS: Final = Recipe()
UPPERS: Final = Recipe(ends=2, deaths=0)
SHARING: Final = Recipe(renditions=(0, 1), programs=(0, 1), decides=(0, 1), merges=True)
CHANGED: Final = Recipe(addresses=1, deaths=0, changes=True)
OTHER: Final = Recipe(programs=(0, 1))
UNSEEN: Final = Recipe(programs=(0, 1), sampled=False)
HOLDING: Final[Mapping[str, Recipe]] = {
    "replicas": REPLICAS,
    "two uppers": UPPERS,
    "three bindings": Recipe(bindings=3, deaths=0),
    "sharing": SHARING,
    "changed": CHANGED,
    "other program": OTHER,
    "unseen program": UNSEEN,
}
BROKEN: Final[Mapping[str, Recipe]] = {
    "obey": REPLICAS,
    "propose": UPPERS,
    "commit": REPLICAS,
    "meet": REPLICAS,
    "feedback": REPLICAS,
    "epoch": CHANGED,
    "order": CHANGED,
    "keep": SHARING,
    "program": OTHER,
    "compare": UNSEEN,
}


def without(rule: str) -> Recipe:
    """Return the scope in which a rule is broken."""
    return replace(BROKEN[rule], without=rule)
