"""The collections of a location, by name: open, list, and set how much history they keep.

A source creates its collection, and drops it: see `tidelog.collection.sources`. A table is a
collection, too: see `tidelog.collection.tables`.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass

from tidelog.collection.catalog.catalog import Catalog
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.catalog.retention import move_history
from tidelog.collection.collection import Collection
from tidelog.collection.table.direct import DIRECT
from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes


@refuses_writes()
@dataclass(frozen=True, slots=True, kw_only=True)
class Collections:
    """All collections of a location."""

    store: Store
    consensus: Consensus
    clock: Clock
    controller: Controller
    transactions: Transactions  # Those of the tables.

    async def open(self, name: str) -> Collection:
        """Return the handle of a collection, or of a source's errors under ``NAME_errors``.

        Raises:
            NoSuchCollection: no collection has the name; the message lists the existing ones.
            UsageError: the name is not a text.
        """
        check_kind(name, str, "the name of a collection must be a str")
        return self.opened(await self.controller.catalog(), name)

    def opened(self, catalog: Catalog, name: str) -> Collection:
        """Return the handle of a collection of a catalog that was read before; see `open`."""
        rendition = catalog.errors_of(name)
        is_errors = rendition is not None
        if rendition is None:
            rendition = catalog.active(name)
        table = catalog.tables.get(name)
        appended = {s.rendition for s in catalog.sources.values() if s.envelope == "none"}
        return Collection(
            name=name,
            rendition=rendition,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            is_errors=is_errors,
            appended=is_errors or rendition.id in appended,
            table=table,
            transactions=None if table is None or table.mode == DIRECT else self.transactions,
        )

    async def list(self) -> builtins.list[str]:
        """Return the names of all collections, in order."""
        return sorted((await self.controller.catalog()).collections)

    async def retain(self, name: str, retain_ms: int | None) -> None:
        """Set the length of the history that a collection keeps, in milliseconds of its times.

        None keeps all times that are readable now. Older times become unreadable, and no later call
        makes them readable again.

        Raises:
            NoSuchCollection: no source feeds a collection of this name, and no table has it.
        """
        await self.controller.retain(name, retain_ms)
        collection = await self.open(name)
        await collection.refresh()
        await move_history(collection.all_shards, collection.upper, retain_ms)
