"""The commands that a location shows to be begun and not ended, and the calls that end them.

A command is a sequence of durable steps. If its process dies, the steps so far show which command
it was: a rendition that is being dropped, a hold that a handover made, a cursor of a dropped
source, a table whose shards are not registered, a dropped shard that is not final yet. A command
that still runs looks the same, and a second call of it does no harm.
Source: storage, "Controller"; design page 6, "Controller".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.collection.catalog.catalog import Catalog
from tidelog.persist.states.state import State

HANDOVER_HOLD: Final = "handover-"  # Before a time: keeps it readable until the mark is made.


@dataclass(frozen=True, slots=True)
class UnfinishedCommand:
    """A command that was begun: what it left, and the ``remedy``, the command that ends it."""

    left: str
    remedy: str


def shards_to_look_at(catalog: Catalog) -> list[str]:
    """Return the shards whose states show begun commands."""
    several = [
        catalog.renditions[rendition].shards[0]
        for collection in catalog.collections.values()
        if len(collection.renditions) > 1
        for rendition in collection.renditions
    ]
    of_tables = [
        shard
        for table in catalog.tables.values()
        if table.mode == "wal"
        for shard in catalog.renditions[table.rendition].shards
    ]
    return [*several, *of_tables, *sorted(catalog.dropped)]


def unfinished_commands(
    catalog: Catalog, states: Mapping[str, State]
) -> Iterator[UnfinishedCommand]:
    """Yield the begun commands; ``states`` are the newest ones of `shards_to_look_at`, by shard."""
    for rendition in catalog.renditions.values():
        name, of = rendition.called, rendition.collection
        if rendition.dropping is True:
            yield UnfinishedCommand(
                f"the rendition {name!r} is being dropped", f"tidelog rendition drop {name}"
            )
        state = states.get(rendition.shards[0])
        if state is not None and any(hold.startswith(HANDOVER_HOLD) for hold in state.holds):
            yield UnfinishedCommand(
                f"the rendition {name!r} has a hold for a handover",
                f"tidelog collection handover {of} --to {name}",
            )
    for one in catalog.releasing.values():
        if not one.is_released:
            name = one.source.name
            yield UnfinishedCommand(
                f"the dropped source {name!r} may have a cursor", f"tidelog source drop {name}"
            )
    for table in catalog.tables.values():
        shards = catalog.renditions[table.rendition].shards
        found = [states[shard] for shard in shards if shard in states]
        if any(not state.registered.name for state in found):
            yield UnfinishedCommand(
                f"the table {table.name!r} has shards that are not registered",
                f"tidelog table create {table.name}",
            )
    if any(states[shard].upper is not None for shard in catalog.dropped if shard in states):
        yield UnfinishedCommand("dropped shards have objects to delete", "tidelog collect")
