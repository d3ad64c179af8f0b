"""The commands that a location shows to be begun and not ended, and the calls that end them.

A command is a sequence of durable steps. If its process dies, these steps show the command. It may
be a begun drop of a rendition, a hold of a handover, or a cursor of a dropped source. It may be an
unregistered shard of a table, or a dropped shard that is not final yet. A command that still runs
looks the same, and a second call of it does no harm.
Source: storage, "Controller"; design page 6, "Controller".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.collection.catalog.catalog import Catalog, RenditionInfo
from tidelog.collection.formats.times import format_time
from tidelog.collection.table.direct import DIRECT
from tidelog.persist.states.state import State

COLLECT: Final = "tidelog collect"
HANDOVER_HOLD: Final = "handover-"  # Before a time: keeps it readable until the mark is made.


@dataclass(frozen=True, slots=True)
class UnfinishedCommand:
    """The steps that a begun command has ``left``, and the ``remedy``: the command that ends it."""

    left: str
    remedy: str


def shards_to_look_at(catalog: Catalog) -> list[str]:
    """Return the shards whose states show begun commands."""
    several = [
        shard
        for collection in catalog.collections.values()
        if len(collection.renditions) > 1
        for rendition in collection.renditions
        for shard in catalog.renditions[rendition].roles
    ]
    of_tables = [
        shard
        for table in catalog.tables.values()
        if table.mode != DIRECT
        for shard in catalog.renditions[table.rendition].shards
    ]
    return [*dict.fromkeys(several), *of_tables, *sorted(catalog.dropped)]


def unfinished_commands(
    catalog: Catalog, states: Mapping[str, State]
) -> Iterator[UnfinishedCommand]:
    """Yield the begun commands; ``states`` are the newest ones of `shards_to_look_at`, by shard.

    A remedy never changes what readers read in another way than the begun command would have.
    """
    for rendition in catalog.renditions.values():
        yield from _of_rendition(catalog, rendition, states)
    for table in catalog.tables.values():
        shards = catalog.renditions[table.rendition].shards
        found = [states[shard] for shard in shards if shard in states]
        if any(not state.registered.name for state in found):
            yield UnfinishedCommand(
                f"the table {table.name!r} has shards that are not registered",
                f"tidelog table create {table.name}, with the same options as before",
            )
    # A new source may have the name of a dropped one by now, so the collector must do this.
    for one in catalog.releasing.values():
        if not one.is_released:
            yield UnfinishedCommand(
                f"the dropped source {one.source.name!r} may have a cursor", COLLECT
            )
    if any(states[shard].upper is not None for shard in catalog.dropped if shard in states):
        yield UnfinishedCommand("dropped shards have objects to delete", COLLECT)


def _of_rendition(
    catalog: Catalog, rendition: RenditionInfo, states: Mapping[str, State]
) -> Iterator[UnfinishedCommand]:
    name, of = rendition.called, rendition.collection
    drop = f"tidelog rendition drop {name}"
    if rendition.dropping is True:
        yield UnfinishedCommand(f"the rendition {name!r} is being dropped", drop)
        return
    own = [states[shard] for shard in rendition.roles if shard in states]
    held = {hold for state in own for hold in state.holds if hold.startswith(HANDOVER_HOLD)}
    if not held:
        return
    owner = catalog.collection(of)
    firsts = [catalog.renditions[one].shards[0] for one in owner.renditions]
    marks = [states[shard].mark for shard in firsts if shard in states]
    made = [(mark.at, mark.successor) for mark in marks if mark is not None]
    made += [(era.begins, era.rendition) for era in owner.eras]
    newest = max((at for at, _ in made), default=0)
    at = max(int(hold.removeprefix(HANDOVER_HOLD)) for hold in held)
    if _waits(catalog, states, at, rendition):
        yield UnfinishedCommand(
            f"the handover of {of!r} to {name!r}, at {format_time(at)}, waits for the times before "
            "it",
            f"tidelog ingest {of}",
        )
    elif (at, rendition.id) in made or at > newest:
        yield UnfinishedCommand(
            f"the rendition {name!r} has a hold for a handover",
            f"tidelog collection handover {of} --to {name}",
        )
    elif rendition.id != owner.active:
        yield UnfinishedCommand(
            f"the rendition {name!r} has a hold for a handover that failed: another handover was "
            "first",
            drop,
        )


def _waits(
    catalog: Catalog, states: Mapping[str, State], at: int, successor: RenditionInfo
) -> bool:
    """Return True if a handover was made, and the former rendition is not complete up to it."""
    for former in catalog.renditions.values():
        found = [states[shard] for shard in former.shards if shard in states]
        mark = found[0].mark if found else None
        if mark is not None and (mark.at, mark.successor) == (at, successor.id):
            return not all(state.upper_frontier.passed(at - 1) for state in found)
    return False
