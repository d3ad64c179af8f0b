"""Canaries of merges: builds that delete too early, or believe what they may not.

Each is a context manager: inside of the block the code is broken as its docstring says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tidelog.errors import PartMissing
from tidelog.frontier import TIME_MAX
from tidelog.persist.handle import shard
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states import language
from tidelog.persist.states.state import State
from tidelog.persist.upkeep import compactor, usage
from tidelog.persist.upkeep.merger import MergedParts, MergerHere
from tidelog.persist.upkeep.merging import MergeRequest
from tidelog.persist.upkeep.usage import ObjectUse


@contextmanager
def merge_deletes_before_it_commits() -> Iterator[None]:
    """What was merged goes as soon as its merge is written."""
    write = MergerHere.write

    async def hasty(self: MergerHere, shard: Shard, request: MergeRequest) -> MergedParts:
        found = await write(self, shard, request)
        for batch in request.batches:
            await compactor._drop(shard, batch)
        return found

    with patch.object(MergerHere, "write", hasty):
        yield


@contextmanager
def merge_advances_past_since() -> Iterator[None]:
    """All times of a merge become its last, whoever may still tell them apart."""

    def last(request: MergeRequest) -> int:
        return TIME_MAX if request.upper is None else request.upper - 1

    with patch.object(MergeRequest, "advanced_to", property(last)):
        yield


@contextmanager
def reader_takes_merged_for_lost() -> Iterator[None]:
    """A part that is missing is lost, though another stands in its place."""

    def lost(_: Iterable[State], error: PartMissing) -> None:
        raise error

    with patch.object(shard, "require_replaced", lost):
        yield


@contextmanager
def sweep_takes_the_young() -> Iterator[None]:
    """What nothing names yet is taken for dead."""
    told = usage._unnamed

    def hasty(key: str, *, epoch: int, rolled_up: int) -> ObjectUse:
        found = told(key, epoch=epoch, rolled_up=rolled_up)
        return ObjectUse.DEAD if found is ObjectUse.YOUNG else found

    with patch.object(usage, "_unnamed", hasty):
        yield


@contextmanager
def lease_holds_no_objects() -> Iterator[None]:
    """A lease keeps times readable, and what was planned under it is deleted all the same."""
    with patch.object(language, "least_seqno", lambda _: None):
        yield
