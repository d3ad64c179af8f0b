"""Sweeping: list the objects of a shard, and delete those that no state names or can name.

It uses no clock. If the listing has a young unnamed part, the sweep raises the write epoch through
consensus. A writer then has until the sweep after the next one to commit the part. After that, the
commit raises PartsSwept, and the writer writes the part again.
Source: design page 4, "Compaction and collection".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.maintenance.usage import ShardUsage, tell_apart
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import decide_epoch
from tidelog.persist.transactions.applier import applier_of, complete_state


@dataclass(frozen=True, slots=True)
class ShardSweepReport:
    """The result of a sweep: the use of objects, and the number deleted."""

    usage: ShardUsage
    deleted: int


async def usage_of_shard(shard: ShardHandle) -> ShardUsage:
    """Return the use of each object of a shard; writes nothing.

    Objects of commits that a registered shard does not have yet are live, too.

    Raises:
        LocationError: the store failed.
    """
    return await _usage(shard, partial(complete_state, shard))


async def _usage(shard: ShardHandle, newest: Callable[[], Awaitable[State]]) -> ShardUsage:
    prefix = f"shard/{shard.id}/"
    listed = [(entry.key, entry.size_bytes) async for entry in shard.store.list(prefix)]
    # List first, then read the state. The state then includes each listed object that another
    # process has named since.
    state = await newest()
    return tell_apart(listed, state, shard.machine.history)


async def sweep(shard: ShardHandle) -> ShardSweepReport:
    """Delete dead objects and the past of the state; unnamed young parts die after two more sweeps.

    Raises:
        LocationError: the store failed; no state names an object that was deleted.
    """
    # The transactions name the parts of unapplied commits, which are young for the shard's own
    # state. The epoch protects them: see `Applier.raise_epoch`.
    found = await _usage(shard, shard.refresh)
    if found.dead:
        await shard.store.delete(list(found.dead))
    if found.young_parts:
        await raise_epoch(shard)
    await shard.machine.settle()
    return ShardSweepReport(found, len(found.dead))


async def raise_epoch(shard: ShardHandle) -> None:
    """Raise the write epoch of a shard from the one that this handle knows.

    Raises:
        LocationError: the store failed.
    """
    if shard.state.registered.name:
        await applier_of(shard).raise_epoch(shard)
        return
    known = shard.state.write_epoch
    await shard.machine.commit(lambda state: decide_epoch(state, known))
