"""States that are gone, or set back, though what else is there proves that they were written.

A state that never was reads as one at its beginning, and so does one whose consensus object was
deleted by hand. What proves that it was: another state that is only written after it. It costs
nothing but where something reads as never written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tidelog.consensus.port import Consensus
from tidelog.frontier import Frontier
from tidelog.machine.lost import state_lost, state_set_back
from tidelog.persist.handle.shard import Shard

INGEST_HOLD: Final = "ingest"  # In the remap shard, behind what its outputs have reached.
_SHARD_OF_A_SOURCE: Final = re.compile(r"s[0-9a-f]{32}")


def is_of_source(shard: str) -> bool:
    """Return True if a shard has the id of a source's shard, also of a dropped source."""
    return _SHARD_OF_A_SOURCE.fullmatch(shard) is not None


async def has_sources(consensus: Consensus) -> bool:
    """Return True if a location has shards of sources, which the catalog listed before.

    Raises:
        LocationError: the store failed.
    """
    async for key in consensus.list_keys("s"):
        if is_of_source(key):
            return True
    return False


async def check_states(written: Sequence[Shard], remap: Shard) -> None:
    """Check that no shard of a rendition reads as never written, though it was, or was set back.

    All were refreshed, the remap shard last; ``written`` are in the order of their commits: a
    binding is in the remap shard before it is in any of them, and in all before the next one. What
    was set back to before the last binding alone is written again, as after any crash.

    Raises:
        CorruptionError: one does. LocationError: the store failed.
    """
    last = max((n for n, shard in enumerate(written) if not _is_empty(shard)), default=-1)
    if last >= 0 and _is_empty(remap):
        raise state_lost(remap.id)
    if any(remap.state.upper_frontier < shard.state.upper_frontier for shard in written):
        raise state_set_back(remap.id)
    found = remap.state.holds.get(INGEST_HOLD)
    held = 0 if found is None else found.since or 0
    if held > 0:
        last = len(written)
    for n, shard in enumerate(written):
        if not _is_behind(shard, held, is_written=n <= last):
            continue
        await shard.refresh()  # It may have been written between the reads of it and others.
        if _is_behind(shard, held, is_written=n <= last):
            raise state_lost(shard.id) if _is_empty(shard) else state_set_back(shard.id)


def _is_behind(shard: Shard, held: int, *, is_written: bool) -> bool:
    """Say whether a shard has not reached what all had when the remap shard's hold was moved."""
    if _is_empty(shard):
        return is_written
    return held > 0 and not shard.state.upper_frontier.passed(held)


def _is_empty(shard: Shard) -> bool:
    return shard.state.upper_frontier == Frontier.at(0)
