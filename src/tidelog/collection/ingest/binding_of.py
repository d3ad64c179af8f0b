"""The binding of one address: found, or minted on demand.

Ingesters mint centrally: each tick proposes one binding for all that the source has. A program that
reads the source itself can instead ask for the time of one address, before the ingester has seen
it. Both ways propose to the same remap shard, and obey the stored binding. So the program and all
ingesters agree on the time.
Source: persist, "Centralized Timestamp Minter" and "Distributed Minting" (`GetBinding`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.collection.catalog.catalog import COLLECTION
from tidelog.collection.ingest.ingest import TRIES_MAX, Ingester
from tidelog.collection.source.binding import FileRange
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    PartMissing,
    PartsSwept,
    SchemaEvolved,
    UsageError,
)


@dataclass(frozen=True, slots=True)
class BoundAddresses:
    """The addresses ``[start, limit)`` of a path, whose rows all have one time.

    Units: addresses are those of the source's kind, for files bytes. ``time`` is in milliseconds.
    """

    path: str
    start: int
    limit: int
    time: int


async def find_binding(ingester: Ingester, path: str, address: int) -> BoundAddresses:
    """Return the binding of an address. If it has none, mint one for all data up to a tick's size.

    A binding that waits for its rows is computed and committed before another one is minted.

    Raises:
        UsageError: the rows have times of their own, or the source has no message there.
        GoneError, SourceRewritten: a waiting binding has lost its data.
        AsOfBeforeSince: the source has forgotten the binding.
        ContentionError: other ingesters committed first at every try.
        TidelogError: see `Ingester.tick`.
    """
    column = ingester.info.time_column
    if column is not None:
        raise UsageError(
            f"the rows of {ingester.info.name!r} have the times of their column {column!r}: read "
            "the time there"
        )
    if ingester.info.kind == COLLECTION:
        raise UsageError(
            f"the rows of {ingester.info.name!r} have the times of the collection that it reads: "
            "read the time there"
        )
    for _ in range(TRIES_MAX):
        try:
            return await _find_or_mint(ingester, path, address)
        except (_NotYet, PartMissing, PartsSwept, SchemaEvolved):
            continue  # The states in this process are stale, or have a new binding.
    raise ContentionError(
        f"gave up after {TRIES_MAX} tries: the source {ingester.info.name!r} has too much data "
        "before that address; ingest it first"
    )


class _NotYet(Exception):
    """A binding was proposed or committed: look again."""


async def _find_or_mint(ingester: Ingester, path: str, address: int) -> BoundAddresses:
    await ingester.refresh()
    ingester.check_copied()
    found = await _recorded(ingester, path, address)
    if found is not None:
        return found
    head = await ingester.source.head()
    if ingester.is_behind:
        await ingester.tick(head)
    elif not await ingester.mint(head):
        raise UsageError(
            f"the source {ingester.info.name!r} has no message of {path!r} at the address "
            f"{address} yet, or has read past it"
        )
    raise _NotYet


async def _recorded(ingester: Ingester, path: str, address: int) -> BoundAddresses | None:
    """Return the recorded binding of an address; None if it has none yet."""
    state = ingester.remap.state
    since, upper = state.since_frontier.time, state.upper_frontier.time
    if not upper:
        return None
    first = (await ingester.progress(since + 1)).taken.get(path) if since else None
    if first is not None and address < first.limit:
        raise AsOfBeforeSince(
            f"the source {ingester.info.name!r} has forgotten the time of the address {address} of "
            f"{path!r}, because it does not keep its bindings"
        )
    for binding in await ingester.recorded(upper):
        for one in binding.ranges:
            if one.path != path or not one.start <= address < one.limit:
                continue
            if isinstance(one, FileRange) and not one.is_read:  # It was ingested as another file.
                return await _recorded(ingester, one.moved, address)
            return BoundAddresses(path, one.start, one.limit, binding.upper - 1)
    return None
