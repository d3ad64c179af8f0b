"""Appends to several shards at once: all of them land, or none.

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
from tidelog.machine.together import Command, commit_together
from tidelog.persist.format.part import Part
from tidelog.persist.handle.appending import AppendOptions, append_command
from tidelog.persist.handle.shard import Shard
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


async def refresh_all(shards: Sequence[Shard]) -> None:
    """Read the newest state of each shard; shards of one group share a request."""
    await run_all([one.refresh for one in shards], at_once=REFRESHES_AT_ONCE)


def by_group(shards: Sequence[Shard]) -> list[list[Shard]]:
    """Return shards in their order, those of one group together; others are alone."""
    found = groupby(shards, key=lambda shard: group_of(shard.id) or shard.id)
    return [list(some) for _, some in found]
