"""The truth about a collection with renditions, from all records that were ever decided.

The marks in the states of the first shards say which rendition is read at each time. The bindings
and the rows of the source say what each rendition has. Nothing here uses a handle of a collection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard
from sim.workloads.sources import Bound, bindings_of
from tidelog.collection.catalog.catalog import RenditionInfo, SourceInfo
from tidelog.testing.models import Row, Update, accumulate, consolidate

Replay = Callable[[SourceInfo, list[Bound]], list[Update]]


@dataclass(frozen=True, slots=True)
class TrueEra:
    """A rendition, and the times at which readers read it: from ``begins``, before ``ends``."""

    rendition: RenditionInfo
    begins: int
    ends: int | None

    def has(self, time: int) -> bool:
        return self.begins <= time and (self.ends is None or time < self.ends)


@dataclass(slots=True)
class Truth:
    """The renditions that ever existed by id, their updates, and the eras of the collection."""

    renditions: dict[str, RenditionInfo]
    updates: dict[str, list[Update]]
    eras: list[TrueEra]
    shards: dict[str, ObservedShard]
    _whole: list[Update] = field(default_factory=list)

    def __post_init__(self) -> None:
        for era in self.eras:
            own = self.updates[era.rendition.id]
            if era.begins:
                new = accumulate(own, era.begins)
                new.subtract(accumulate(self._whole, era.begins - 1))
                self._whole += [Update(row, era.begins, diff) for row, diff in new.items() if diff]
                own = [update for update in own if update.time > era.begins]
            self._whole += [u for u in own if era.ends is None or u.time < era.ends]

    def contents(self, time: int, rendition: str | None = None) -> Counter[Row]:
        """Return the rows of the collection at a time, or of one rendition."""
        return accumulate(self._whole if rendition is None else self.updates[rendition], time)

    def changes(self, after: int, until: int) -> Counter[tuple[Row, int]]:
        """Return the consolidated updates of the collection with ``after < time <= until``."""
        return consolidate(self._whole, after=after, until=until)

    def era_at(self, time: int) -> TrueEra:
        return next(era for era in self.eras if era.has(time))

    def is_dropped(self, rendition: RenditionInfo) -> bool:
        """Return True if the first shard of a rendition was finished by a drop."""
        first = self.shards.get(rendition.shards[0])
        return first is not None and first.state.is_dropped

    @property
    def newest(self) -> TrueEra:
        return self.eras[-1]

    @property
    def upper(self) -> int | None:
        """Return the upper of the rendition that is read now, by its first shard."""
        first = self.shards.get(self.newest.rendition.shards[0])
        return 0 if first is None else first.upper

    @property
    def told(self) -> list[tuple[str, str, int]]:
        """Return the id, name and begin of each era, for messages."""
        return [(era.rendition.id, era.rendition.called, era.begins) for era in self.eras]

    def history(self) -> list[tuple[str, int, int]]:
        """Return the changes that ``rendition history`` must print: name, time and diff."""
        found: list[tuple[str, int, int]] = []
        for n, era in enumerate(self.eras):
            if n:
                found.append((self.eras[n - 1].rendition.called, era.begins, -1))
            found.append((era.rendition.called, era.begins, +1))
        return found


def truth_of(shards: dict[str, ObservedShard], first: str, replay: Replay) -> Truth:
    """Return the truth; ``first`` is the id of the collection's first rendition.

    Each output shard must have the rows that the replay gives.
    """
    renditions = _listed(shards["catalog"], "rendition", RenditionInfo)
    feeders = _listed(shards["catalog"], "source", SourceInfo)
    sources = {one.rendition: one for one in feeders.values()}
    updates: dict[str, list[Update]] = {}
    for key, rendition in renditions.items():
        remap = shards.get(rendition.remap or "")
        made = [] if remap is None else replay(sources[key], bindings_of(remap))
        updates[key] = made
        _check_outputs(rendition, made, shards)
    return Truth(renditions, updates, _eras(renditions, shards, first), shards)


def _listed(catalog: ObservedShard, kind: str, form: Any) -> dict[str, Any]:
    """Return all entries of a kind that the catalog ever had, by id; the newest of each id."""
    added = [u.row for u in catalog.updates if u.row[0] == kind and u.diff > 0]
    found = [msgspec.json.decode(str(value), type=form) for _, _, value in added]
    return {one.id: one for one in found}


def _eras(
    renditions: dict[str, RenditionInfo], shards: dict[str, ObservedShard], first: str
) -> list[TrueEra]:
    found: list[TrueEra] = []
    newest, begins = first, 0
    while True:
        shard = shards.get(renditions[newest].shards[0])
        states = [] if shard is None else shard.states
        marks = {(one.mark.at, one.mark.successor) for one in states if one.mark is not None}
        demand(len(marks) <= 1, "a mark was changed", marks=marks)
        ends, successor = next(iter(marks), (None, ""))
        found.append(TrueEra(renditions[newest], begins, ends))
        if ends is None:
            return found
        demand(ends > begins, "an era has no time", marks=marks, begins=begins)
        newest, begins = successor, ends
        demand(newest not in [era.rendition.id for era in found], "a rendition was read twice")


def _check_outputs(
    rendition: RenditionInfo, made: list[Update], shards: dict[str, ObservedShard]
) -> None:
    """Check that the outputs have the replayed updates below their uppers."""
    outputs = [shards[one] for one in rendition.shards if one in shards]
    if len(outputs) < len(rendition.shards):
        return  # No ingester has come to it.
    reached = min(_reached(shard) for shard in outputs)
    have = consolidate([u for s in outputs for u in s.updates], until=reached - 1)
    need = consolidate(made, until=reached - 1)
    demand(
        have == need,
        "a rendition has other rows than its bindings give",
        rendition=rendition.called,
        missing=[(k, v) for k, v in need.items() if have.get(k) != v][:8],
        surplus=[(k, v) for k, v in have.items() if need.get(k) != v][:8],
    )


def _reached(shard: ObservedShard) -> int:
    """Return the greatest upper of a shard; a drop leaves none."""
    return max(state.upper or 0 for state in shard.states)
