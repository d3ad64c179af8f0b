"""Announcements: how a change of the catalog reaches the ingesters of a source that run already.

An ingester does not read the catalog in each tick. A command that has changed the catalog therefore
raises the write epoch of the source's remap shard. A binding is proposed to that shard, on the
condition that it still has the epoch that the ingester knew before it read the catalog.
Invariants: once a command has returned, no ingester proposes a binding without its change. If the
    command was killed before the announcement, ingesters find its change within `LOOK_US`.
Source: decision 32.
"""

from __future__ import annotations

from typing import Final

from tidelog.collection.catalog.catalog import Catalog
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.ids import ShardId
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.sweeper import raise_epoch
from tidelog.persist.states.state import State
from tidelog.store.port import Store

LOOK_US: Final = 60_000_000


def epoch_of_bindings(state: State) -> int | None:
    """Return the epoch that announcements raise; None if the remap shard has no binding yet.

    Commands announce nothing to such a shard, so its ingesters read the catalog in each tick.
    """
    return None if state.upper == 0 else state.write_epoch


async def announce_change(
    catalog: Catalog, name: str, *, store: Store, consensus: Consensus, clock: Clock
) -> None:
    """Make the ingesters of a source read the catalog before their next binding; idempotent.

    The caller has changed the catalog before. ``catalog`` lists the shards of the source.

    Raises:
        LocationError: the store failed; call again.
    """
    for remap in sorted(remaps_of(catalog, name)):
        shard = Shard(id=ShardId(remap), store=store, consensus=consensus, clock=clock)
        if epoch_of_bindings(await shard.refresh()) is not None:
            await raise_epoch(shard)


def remaps_of(catalog: Catalog, name: str) -> set[str]:
    """Return the remap shards of a source, or of all renditions of a collection."""
    found = set()
    for source in catalog.sources.values():
        rendition = catalog.renditions[source.rendition]
        if name in (source.name, rendition.collection) and rendition.remap is not None:
            found.add(rendition.remap)
    return found
