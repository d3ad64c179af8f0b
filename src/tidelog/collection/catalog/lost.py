"""Detection of lost states: shards whose state is missing, or older than it was.

A shard that was never written reads as empty. So does a shard whose consensus object was deleted
by hand. The states of the other shards show which of the two happened, because ingesters write
shards in a fixed order. The check sends a request only if some shard reads as empty or too old.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tidelog.collection.catalog.catalog import INGEST_HOLD
from tidelog.consensus.port import Consensus
from tidelog.core.frontier import Frontier
from tidelog.core.ids import group_of
from tidelog.machine.lost import has_parts, state_lost, state_set_back
from tidelog.persist.handle.shard import Shard

_SHARD_OF_A_SOURCE: Final = re.compile(r"s[0-9a-f]{32}")


def is_of_source(shard: str) -> bool:
    """Return True if an id is that of a source's shard; the source may have been dropped."""
    return group_of(shard) is not None or _SHARD_OF_A_SOURCE.fullmatch(shard) is not None


async def has_sources(consensus: Consensus) -> bool:
    """Return True if a location has a shard of a source.

    The catalog lists a source before its shards are written. An empty catalog next to such a shard
    has therefore lost its state.

    Raises:
        LocationError: the store failed.
    """
    for prefix in ("s", "g"):
        async for key in consensus.list_keys(prefix):
            if is_of_source(key):
                return True
    return False


async def check_states(written: Sequence[Shard], remap: Shard, *, hold: str = INGEST_HOLD) -> None:
    """Check that the state of no shard of a rendition is lost or set back.

    ``hold`` is the name of the rendition's hold on the remap shard.

    The caller has refreshed all shards, the remap shard last. ``written`` is in commit order. An
    ingester writes a binding to the remap shard first, then to all of ``written``, and only then
    the next binding. A shard that was set back by one binding is not reported: the next tick
    writes that binding to it again, as after a crash.

    Raises:
        CorruptionError: a state is lost or set back. LocationError: the store failed.
    """
    if any(shard.state.upper_frontier.is_empty for shard in (*written, remap)):
        return  # A drop finishes shards one by one, also those that no tick has written.
    last = max((n for n, shard in enumerate(written) if not _is_empty(shard)), default=-1)
    # The remap shard is the first that a tick writes, and was read last here. So no shard can be
    # ahead of it.
    if last >= 0 and _is_empty(remap):
        raise state_lost(remap.id)
    if any(remap.state.upper_frontier < shard.state.upper_frontier for shard in written):
        raise state_set_back(remap.id)
    # An ingester moves this hold only to times that every output has passed.
    found = remap.state.holds.get(hold)
    held = 0 if found is None else found.since or 0
    if held > 0:
        last = len(written)
    for n, shard in enumerate(written):
        if not _is_behind(shard, held, is_written=n <= last):
            continue
        # A tick may have written this shard after its read and before the reads of the others.
        await shard.refresh()
        if _is_behind(shard, held, is_written=n <= last):
            raise state_lost(shard.id) if _is_empty(shard) else state_set_back(shard.id)


async def check_new(shard: Shard) -> None:
    """Check that the shard of a direct table is new; its parts are written after its state.

    Raises:
        CorruptionError: its state is lost. LocationError: the store failed.
    """
    if not await has_parts(shard.store, f"shard/{shard.id}"):
        return
    if not (await shard.refresh()).schema:  # Another process may have created it concurrently.
        raise state_lost(shard.id)


def _is_behind(shard: Shard, held: int, *, is_written: bool) -> bool:
    """Return True if a shard is empty though written, or has not passed the remap shard's hold."""
    if _is_empty(shard):
        return is_written
    return held > 0 and not shard.state.upper_frontier.passed(held)


def _is_empty(shard: Shard) -> bool:
    return shard.state.upper_frontier == Frontier.at(0)
