"""Canaries of merges: builds that delete too early, or rely on wrong facts.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tidelog.core.frontier import TIME_MAX
from tidelog.errors import PartMissing
from tidelog.persist.handle import shard
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance import compactor, usage
from tidelog.persist.maintenance.merger import MergedParts, MergerHere
from tidelog.persist.maintenance.merging import MergeRequest
from tidelog.persist.maintenance.usage import ObjectUse
from tidelog.persist.states import state
from tidelog.persist.states.state import State


@contextmanager
def merge_deletes_before_it_commits() -> Iterator[None]:
    """The inputs of a merge are deleted once its output is written."""
    write = MergerHere.write

    async def hasty(self: MergerHere, shard: Shard, request: MergeRequest) -> MergedParts:
        found = await write(self, shard, request)
        for batch in request.batches:
            await compactor._drop(shard, batch.parts)
        return found

    with patch.object(MergerHere, "write", hasty):
        yield


@contextmanager
def merge_advances_past_since() -> Iterator[None]:
    """All times of a merge become its last time, though a reader may still distinguish them."""

    def last(request: MergeRequest) -> int:
        return TIME_MAX if request.upper is None else request.upper - 1

    with patch.object(MergeRequest, "advanced_to", property(last)):
        yield


@contextmanager
def reader_takes_merged_for_lost() -> Iterator[None]:
    """A missing part counts as lost, though another part replaced it."""

    def lost(_: Iterable[State], error: PartMissing) -> None:
        raise error

    with patch.object(shard, "require_replaced", lost):
        yield


@contextmanager
def sweep_takes_the_young() -> Iterator[None]:
    """Objects that no state names yet count as dead."""
    told = usage._unnamed

    def hasty(key: str, *, epoch: int, rolled_up: int) -> ObjectUse:
        found = told(key, epoch=epoch, rolled_up=rolled_up)
        return ObjectUse.DEAD if found is ObjectUse.YOUNG else found

    with patch.object(usage, "_unnamed", hasty):
        yield


@contextmanager
def lease_holds_no_objects() -> Iterator[None]:
    """A lease keeps times readable, but not the objects planned under it."""
    with patch.object(state, "least_seqno", lambda _: None):
        yield
