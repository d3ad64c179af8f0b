"""Canaries of renditions: handovers, drops and crossings that leave out one of their rules.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from tidelog.collection import crossing, handover
from tidelog.collection.catalog.catalog import INGEST_HOLD, RenditionInfo
from tidelog.collection.collection import Collection
from tidelog.collection.collections import Collections
from tidelog.collection.handover import Handovers
from tidelog.collection.hold_all import place_hold
from tidelog.collection.unfinished import HANDOVER_HOLD
from tidelog.core.frontier import Frontier
from tidelog.machine.language import Decision
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.handover import decide_mark
from tidelog.persist.states.state import Diff, Mark, State

EARLY_MS: Final = 2_000


@contextmanager
def mark_below_upper() -> Iterator[None]:
    """A handover chooses a time that readers may have read already, and the mark is accepted."""
    time_of = Handovers._time_of

    async def early(
        self: Handovers, active: Collection, latter: Collection, asked: int | None, patience: Any
    ) -> int | None:
        time = await time_of(self, active, latter, asked, patience)
        if asked is not None or time is None:
            return time
        return max(active.begins + 1, time - EARLY_MS)

    def careless(state: State, mark: Mark) -> Decision[Diff, Mark]:
        upper = state.upper
        early = state if upper is None else replace(state, upper=min(upper, mark.at))
        return decide_mark(early, mark)

    with (
        patch.object(Handovers, "_time_of", early),
        patch.object(handover, "decide_mark", careless),
    ):
        yield


@contextmanager
def mark_replaces_another() -> Iterator[None]:
    """A second handover replaces the mark of the first one."""

    def hasty(state: State, mark: Mark) -> Decision[Diff, Mark]:
        return decide_mark(replace(state, mark=None), mark)

    with patch.object(handover, "decide_mark", hasty):
        yield


@contextmanager
def mark_without_hold() -> Iterator[None]:
    """Nothing holds the time of the mark in the other rendition until the mark is made."""

    async def careless(shards: Sequence[Shard], name: str, since: Frontier | None) -> Frontier:
        if name.startswith(HANDOVER_HOLD):
            return since or Frontier.at(0)
        return await place_hold(shards, name, since)

    with patch.object(handover, "place_hold", careless):
        yield


@contextmanager
def holds_stay_behind() -> Iterator[None]:
    """A handover gives no hold of a reader to the other rendition."""

    async def none(_: Collection) -> list[str]:
        return []

    with patch.object(handover, "_holds_of_readers", none):
        yield


@contextmanager
def crossing_only_adds() -> Iterator[None]:
    """The changes at a handover lack the negated rows of the former rendition."""

    def nothing(table: pa.Table) -> pa.Table:
        return table.slice(0, 0)

    with patch.object(crossing, "negated", nothing):
        yield


@contextmanager
def handle_stays_with_its_rendition() -> Iterator[None]:
    """A reader's handle that is open during a handover goes on with the former rendition."""
    opened = Collections.open

    async def alone(self: Collections, name: str) -> Collection:
        found = await opened(self, name)
        found.following = None
        return found

    with patch.object(Collections, "open", alone):
        yield


@contextmanager
def renditions_share_a_hold() -> Iterator[None]:
    """All renditions move one hold on the bindings that they share."""
    with patch.object(RenditionInfo, "ingest_hold", property(lambda _: INGEST_HOLD)):
        yield


FOR_RENDITIONS: Final[tuple[Callable[[], AbstractContextManager[None]], ...]] = (
    mark_below_upper,
    mark_replaces_another,
    crossing_only_adds,
    handle_stays_with_its_rendition,
    renditions_share_a_hold,
    mark_without_hold,
    holds_stay_behind,
)
