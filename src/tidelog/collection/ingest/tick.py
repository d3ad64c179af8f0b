"""The commits of a tick of an ingester, and its results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.collection.ingest.engine import TickParts
from tidelog.collection.ingest.source_shards import SourceShards
from tidelog.collection.source.binding import Binding
from tidelog.core.frontier import Frontier
from tidelog.persist.format.part import Part
from tidelog.persist.handle.appending import AppendOptions
from tidelog.persist.handle.shard import Shard
from tidelog.persist.handle.together import ShardAppend, append_together
from tidelog.store.wrappers.metered import Usage


@dataclass(frozen=True, slots=True)
class Tick:
    """The result of one tick, for the times ``[lower, upper)``.

    Shape: ``exhausted`` is True if the head had nothing left to ingest. ``computed`` is None if the
        binding had no ranges to compute. ``added`` are new columns that the source took.
    Units: ``won`` counts the commits of this ingester, and ``unchecked`` those of other ingesters
        that could not be compared. ``left_bytes`` of the head are not ingested. Counts of rows and
        bytes are 0 if another ingester made the last commit: that one reports them. ``usage``
        counts the requests of executors.
    """

    lower: int
    upper: int
    rows: int = 0
    bad: int = 0
    late: int = 0
    size_bytes: int = 0
    left_bytes: int = 0
    won: int = 0
    unchecked: int = 0
    exhausted: bool = False
    added: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    computed: TickParts | None = None
    usage: Usage = field(default_factory=Usage)


class Commits(NamedTuple):
    """The commits of a tick; ``is_completed`` is True if this ingester made the last of them."""

    won: int
    unchecked: int
    is_completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TickCommit:
    """The commit of the parts of ``[lower, upper)`` to the shards of a rendition.

    Shape: ``parts`` are in the order of `SourceShards.written`. ``holds`` returns the holds that
        the commit of a shard moves. ``is_same`` compares parts with another ingester's commit: it
        returns whether they could be compared, or None if the others must not be compared or
        committed.
    """

    to: SourceShards
    lower: int
    upper: int
    parts: Sequence[Sequence[Part]]
    holds: Callable[[Shard], Mapping[str, Frontier]]
    is_same: Callable[[Shard, Sequence[Part]], Awaitable[bool | None]]

    def appends(self, shards: Sequence[Shard]) -> list[ShardAppend]:
        """Return the appends to some of the shards."""
        given = {shard.id: parts for shard, parts in zip(self.to.written, self.parts, strict=True)}
        lower, upper = Frontier.at(self.lower), Frontier.at(self.upper)
        return [
            ShardAppend(one, given[one.id], lower, upper, AppendOptions(holds=self.holds(one)))
            for one in shards
        ]

    async def commit(self) -> Commits:
        """Commit to each group of shards that does not have the interval yet, as a whole.

        If another ingester was first, compare its commit with the computed parts. All compute the
        same updates, so groups with commits of several ingesters fit together.
        """
        won = unchecked = 0
        is_ours = False
        lower, upper = Frontier.at(self.lower), Frontier.at(self.upper)
        for shards in self.to.groups:
            appends = self.appends(shards)
            behind = [one for one in appends if one.shard.state.upper_frontier <= lower]
            is_ours = bool(behind) and await append_together(behind)
            self.to.check_alive()
            won += is_ours * len(behind)
            # An idle tick of another ingester may have advanced the upper within the interval. The
            # next tick starts from the shards' states.
            for one in appends:
                is_theirs = not is_ours or one not in behind
                if is_theirs and upper <= one.shard.state.upper_frontier:
                    is_same = await self.is_same(one.shard, one.parts)
                    if is_same is None:
                        return Commits(won, unchecked + 1, False)
                    unchecked += not is_same
        return Commits(won, unchecked, is_ours)


class Proposal(NamedTuple):
    """A proposed binding; its parts, if they were computed before; its commits, if it has landed.

    Another ingester's binding may have landed instead, unless there are commits.
    """

    binding: Binding
    computed: TickParts | None
    commits: Commits | None
