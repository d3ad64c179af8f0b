"""The collections of a location, by name: open, list, and set how much history they keep.

A source creates its collection, and drops it: see `tidelog.collection.sources`.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass

from tidelog.collection.catalog.controller import Controller
from tidelog.collection.catalog.retention import move_history
from tidelog.collection.collection import Collection, find_collection
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Collections:
    """All collections of a location."""

    store: Store
    consensus: Consensus
    clock: Clock
    controller: Controller

    async def open(self, name: str) -> Collection:
        """Return the handle of a collection, or of a source's errors under ``NAME_errors``.

        Raises:
            NoSuchCollection: no collection has the name; the message lists the existing ones.
        """
        return find_collection(
            await self.controller.catalog(),
            name,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )

    async def list(self) -> builtins.list[str]:
        """Return the names of all collections, in order."""
        return sorted((await self.controller.catalog()).collections)

    async def retain(self, name: str, retain_ms: int | None) -> None:
        """Set the length of the history that a collection keeps, in milliseconds of its times.

        None keeps all times that are readable now. Older times become unreadable, and no later call
        makes them readable again.

        Raises:
            NoSuchCollection: no source feeds a collection of this name.
        """
        await self.controller.retain(name, retain_ms)
        collection = await self.open(name)
        await collection.refresh()
        await move_history(collection.all_shards, collection.upper, retain_ms)
