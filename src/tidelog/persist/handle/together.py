"""Appends to several shards at once, or holds on them: all of them land, or none.

The shards are of one group, so they share an object of consensus. The appends cost one put,
whatever the number of shards.
Source: decision 37.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from tidelog.core.clock import run_all
from tidelog.core.frontier import Frontier
from tidelog.core.ids import group_of
from tidelog.machine.language import Decision
from tidelog.machine.together import Command, commit_together
from tidelog.persist.format.part import Part
from tidelog.persist.handle.appending import AppendOptions, append_command
from tidelog.persist.handle.argument_checks import check_fencing, check_owner
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.evolution import check_opened
from tidelog.persist.states.holding import decide_hold
from tidelog.persist.states.state import Diff, State
from tidelog.persist.states.transition import Verdict, decide_append

REFRESHES_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class ShardAppend:
    """Parts for one shard, at times in ``[lower, upper)``, written before."""

    shard: Shard
    parts: Sequence[Part]
    lower: Frontier
    upper: Frontier
    options: AppendOptions


async def append_together(appends: Sequence[ShardAppend]) -> bool:
    """Append to shards of one group; return False if one has another upper, and nothing landed.

    The handles then know the newest states.

    Raises:
        SchemaEvolved, PartsSwept, UsageError: one shard refuses the parts. NOT_APPLIED.
        LocationError: the store failed.
    """
    commands = []
    for one in appends:
        schema = (one.options.schema or one.shard.written_schema()).encoded
        command = append_command(
            one.shard, list(one.parts), one.lower, one.upper, one.options, schema=schema
        )
        commands.append(Command(one.shard.machine, partial(decide_append, command=command)))
    done = await commit_together(commands)
    return all(one.verdict is Verdict.COMMITTED for one in done)


async def hold_together(
    wanted: Sequence[tuple[Shard, Frontier]],
    name: str,
    *,
    token: int | None = None,
    owner: Shard | None = None,
) -> list[Frontier]:
    """Place a hold on shards of one group, each at its own time; return their frontiers.

    If one shard refuses, no shard gets the hold. An existing hold does not move, and counts as of
    the last refresh of its shard. With ``owner``, a shard of the same group, the hold is placed
    only while that one has it. The result is empty otherwise.

    Raises:
        UsageError, HoldFenced: one shard refuses; see `Shard.hold`. NOT_APPLIED.
        LocationError: the store failed.
    """
    check_owner(name, "hold")
    check_fencing(token)
    # A commit writes nothing if one of its shards has the hold. The next one leaves that shard out.
    while lacking := [one for one in wanted if not _is_held(one[0].state, name, token)]:
        commands = [_hold_command(*one, name, token) for one in lacking]
        if owner is not None:
            commands.append(Command(owner.machine, partial(_decide_again, name=name)))
        await commit_together(commands)
        if owner is not None and name not in owner.state.holds:
            return []
    return [shard.state.holds[name].frontier for shard, _ in wanted]


def _decide_again(state: State, *, name: str) -> Decision[Diff, Frontier]:
    """Decide to write a hold again as it is, so that the commit has it as a condition."""
    found = state.holds.get(name)
    if found is None:
        return Decision(Frontier.empty())
    return Decision(found.frontier, Diff(holds={name: found}))


def _is_held(state: State, name: str, token: int | None) -> bool:
    found = state.holds.get(name)
    return found is not None and found.token == (token or 0)


def _hold_command(
    shard: Shard, since: Frontier, name: str, token: int | None
) -> Command[State, Diff, Frontier]:
    def decide(state: State) -> Decision[Diff, Frontier]:
        check_opened(state, shard.schema)
        schema = b"" if shard.schema is None else shard.schema.encoded
        return decide_hold(state, name, since, schema=schema, token=token)

    return Command(shard.machine, decide)


async def refresh_all(shards: Sequence[Shard]) -> None:
    """Read the newest state of each shard; shards of one group share a request."""
    await run_all([one.refresh for one in shards], at_once=REFRESHES_AT_ONCE)


def by_group(shards: Sequence[Shard]) -> list[list[Shard]]:
    """Return shards in their order, those of one group together; others are alone."""
    found = groupby(shards, key=lambda shard: group_of(shard.id) or shard.id)
    return [list(some) for _, some in found]
