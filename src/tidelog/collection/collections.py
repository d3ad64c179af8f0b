"""The collections of a location, by name: open, list, and set how much history they keep.

A source creates its collection, and drops it: see `tidelog.collection.sources`. A table is a
collection, too: see `tidelog.collection.tables`.
"""

from __future__ import annotations

import builtins
from copy import copy
from dataclasses import dataclass

from tidelog.collection.catalog.catalog import (
    COLLECTION,
    ERRORS_SUFFIX,
    Catalog,
    RenditionInfo,
)
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.catalog.retention import move_history
from tidelog.collection.collection import Collection
from tidelog.collection.table.direct import DIRECT
from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError
from tidelog.persist.states.state import Mark
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

        The name of a rendition stands for its rows, whether readers of the collection read it or
        not.

        Raises:
            NoSuchCollection: no collection has the name; the message lists the existing ones.
            UsageError: the name is not a text.
        """
        check_kind(name, str, "the name of a collection must be a str")
        return self.opened(await self.controller.catalog(), name)

    def opened(self, catalog: Catalog, name: str) -> Collection:
        """Return the handle of a collection of a catalog that was read before; see `open`."""
        if (alone := catalog.lone_rendition(name)) is not None:
            return self.of_rendition(catalog, *alone)
        errors = catalog.errors_of(name)
        owner = catalog.collection(name if errors is None else errors.collection)
        ends = [*(era.begins for era in owner.eras[1:]), None]
        former: Collection | None = None
        for era, end in zip(owner.eras, ends, strict=True):
            rendition = catalog.renditions.get(era.rendition)
            if rendition is None:  # It was dropped, and so were all before it.
                former = None
                continue
            former = self._handle(
                catalog,
                rendition,
                name=name,
                is_errors=errors is not None,
                begins=era.begins,
                ends=end,
                former=former,
            )
        if former is None:
            raise _lacks_active(name)
        return former

    def of_rendition(
        self, catalog: Catalog, rendition: RenditionInfo, is_errors: bool = False
    ) -> Collection:
        """Return a handle that reads one rendition at all times, whether readers read it or not."""
        name = rendition.called + (ERRORS_SUFFIX if is_errors else "")
        found = self._handle(
            catalog, rendition, name=name, is_errors=is_errors, begins=0, ends=None, former=None
        )
        found.following = None
        return found

    async def _succeeded(self, known: Collection, mark: Mark) -> Collection:
        """Return the handle of the rendition that a mark names; ``known`` becomes its former one.

        Raises:
            NoSuchCollection: the collection was dropped. LocationError: the store failed.
        """
        catalog = await self.controller.catalog()
        rendition = catalog.renditions.get(mark.successor)
        if rendition is None:
            # The successor has a successor itself, and was dropped; or the collection was.
            found = self.opened(catalog, known.name)
            if found.rendition.id != known.rendition.id:
                return found
            raise _lacks_active(known.name)
        former = copy(known)
        former.ends, former.following, former.is_read = mark.at, None, True
        return self._handle(
            catalog,
            rendition,
            name=known.name,
            is_errors=known.is_errors,
            begins=mark.at,
            ends=None,
            former=None if former.since.is_empty else former,
        )

    def _handle(
        self,
        catalog: Catalog,
        rendition: RenditionInfo,
        *,
        name: str,
        is_errors: bool,
        begins: int,
        ends: int | None,
        former: Collection | None,
    ) -> Collection:
        table = catalog.tables.get(name)
        appended = {
            source.rendition
            for source in catalog.sources.values()
            if source.envelope == "none" and source.kind != COLLECTION
        }
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
            begins=begins,
            ends=ends,
            former=former,
            following=None if table is not None or ends is not None else self._succeeded,
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


def _lacks_active(name: str) -> CorruptionError:
    return CorruptionError(
        "the catalog lacks the active rendition of a collection: restore the shard of the catalog",
        collection=name,
    )
