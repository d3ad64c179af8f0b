"""Sweeping: list the objects of a shard, and delete those that no state names or can name.

It uses no clock. If the listing has a young unnamed part, the sweep raises the write epoch through
consensus. A writer then has until the sweep after the next one to commit the part. After that, the
commit raises PartsSwept, and the writer writes the part again.
Source: design page 4, "Compaction and collection".
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.usage import ShardUsage, tell_apart
from tidelog.persist.states.transition import decide_epoch


@dataclass(frozen=True, slots=True)
class ShardSweepReport:
    """The result of a sweep: the use of objects, and the number deleted."""

    usage: ShardUsage
    deleted: int


async def usage_of_shard(shard: Shard) -> ShardUsage:
    """Return the use of each object of a shard; writes nothing.

    Raises:
        LocationError: the store failed.
    """
    prefix = f"shard/{shard.id}/"
    listed = [(entry.key, entry.size_bytes) async for entry in shard.store.list(prefix)]
    # List first, then read the state. The state then includes each listed object that another
    # process has named since.
    state = await shard.refresh()
    return tell_apart(listed, state, shard.machine.history)


async def sweep(shard: Shard) -> ShardSweepReport:
    """Delete dead objects and the past of the state; unnamed young parts die after two more sweeps.

    Raises:
        LocationError: the store failed; no state names an object that was deleted.
    """
    found = await usage_of_shard(shard)
    if found.dead:
        await shard.store.delete(list(found.dead))
    if found.young_parts:
        await _raise_epoch(shard)
    await shard.machine.settle()
    return ShardSweepReport(found, len(found.dead))


async def _raise_epoch(shard: Shard) -> None:
    if shard.state.registered.name:
        from tidelog.persist.transactions.transactions import transactions_of

        await transactions_of(shard).raise_epoch(shard)
        return
    known = shard.state.write_epoch
    await shard.machine.commit(lambda state: decide_epoch(state, known))
