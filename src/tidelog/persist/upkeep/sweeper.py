"""Sweeping: what lies under a shard and is named by nothing is found by listing, and deleted.

No clock is involved. Where a listing shows a part that is young and unnamed, the write epoch is
raised through consensus; whoever is still writing has until the next sweep but one to name it, and
is told to write it again if it comes later than that.
Source: design page 4, "Compaction and collection".
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.transition import decide_epoch
from tidelog.persist.upkeep.usage import ShardUsage, tell_apart


@dataclass(frozen=True, slots=True)
class ShardSwept:
    """What a sweep found, and how many objects it deleted."""

    usage: ShardUsage
    deleted: int


async def usage_of_shard(shard: Shard) -> ShardUsage:
    """Tell what each object of a shard is to it; writes nothing.

    Raises:
        LocationError: the store failed.
    """
    prefix = f"shard/{shard.id}/"
    listed = [(entry.key, entry.size_bytes) async for entry in shard.store.list(prefix)]
    # In this order: what was named since it was listed is known to be.
    state = await shard.refresh()
    return tell_apart(listed, state, shard.machine.history)


async def sweep(shard: Shard) -> ShardSwept:
    """Delete dead objects, and the past of the state; unnamed young parts die two sweeps on.

    Raises:
        LocationError: the store failed: nothing that counts was deleted.
    """
    found = await usage_of_shard(shard)
    if found.dead:
        await shard.store.delete(list(found.dead))
    if found.young_parts:
        await _raise_epoch(shard)
    await shard.machine.settle()
    return ShardSwept(found, len(found.dead))


async def _raise_epoch(shard: Shard) -> None:
    if shard.state.registered.name:
        from tidelog.persist.transactions.transactions import transactions_of

        await transactions_of(shard).raise_epoch(shard)
        return
    known = shard.state.write_epoch
    await shard.machine.commit(lambda state: decide_epoch(state, known))
