"""The status of a source: how far it has come, what it has left, and how its last run went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tidelog.collection.catalog.catalog import FILES
from tidelog.collection.ingest.health import Health, decode_health, health_path
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.notes import load_notes
from tidelog.collection.source.binding import FileRange, Taken
from tidelog.collection.source.generations import names_by_path, shown_path
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    ObjectNotFound,
    TidelogError,
)
from tidelog.frontier import Frontier

_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """Where a source stands.

    Units: ``upper`` is in milliseconds; ``left_bytes`` is what it has and was not taken, None where
        the source cannot be asked, which ``trouble`` then says; ``files`` counts those of which
        something was taken, None of a source that reads no files, which ``reached`` an address of
        each path; ``notes`` are reports about files that no user has acknowledged, by path;
        ``skipped`` are files that were given up, and when; ``late`` and ``bad``
        count rows since the beginning. What came within ``lateness_ms`` is taken, and held back: it
        lies in ``held_bytes`` of the source, beside rows that are in.
    """

    name: str
    upper: int | None
    left_bytes: int | None
    files: int | None
    reached: Mapping[str, int]
    lateness_ms: int
    retain_ms: int | None
    since: int
    held_bytes: int
    late: int
    bad: int
    notes: Mapping[str, str]
    skipped: Mapping[str, int]
    trouble: str | None
    run: Health | None


async def source_status(ingester: Ingester) -> SourceStatus:
    """Ask the source, the shards, and the health that the last run left; writes nothing.

    Raises:
        LocationError: the location's store failed.
    """
    known = (await ingester.controller.catalog()).source(ingester.info.name)
    ingester.source.pass_over(frozenset(known.skipped))
    upper, taken = await taken_now(ingester)
    held = () if upper.is_empty else (await ingester.standing(upper.time)).held
    left, trouble, is_files = None, None, ingester.info.kind == FILES
    try:
        left = (await ingester.source.head()).left_bytes(taken)
    except TidelogError as error:
        # A source that cannot be reached is when its status is asked for.
        trouble = str(error)
    return SourceStatus(
        name=ingester.info.name,
        upper=None if upper.is_empty else upper.time,
        left_bytes=left,
        files=count_files(taken) if is_files else None,
        reached={} if is_files else {path: taken[path].limit for path in sorted(taken)},
        lateness_ms=known.lateness_ms,
        retain_ms=known.retain_ms,
        since=max(shard.state.since or 0 for shard in ingester.outputs),
        held_bytes=sum(found.weight_bytes for found in held),
        late=sum(found.late for found in taken.values()),
        bad=ingester.errors.state.totals.diffs,
        notes=await load_notes(ingester.store, ingester.info.id),
        skipped={shown_path(path): at for path, at in known.skipped.items()},
        trouble=trouble,
        run=await load_health(ingester),
    )


def count_files(taken: Taken) -> int:
    """Return how many files there are of which something was taken, whatever they were called."""
    files = cast("Mapping[str, FileRange]", taken)  # The caller has asked for these.
    families = {id(names): names for names in names_by_path(files).values()}
    return len(taken) - sum(len(names) - 1 for names in families.values())


async def taken_now(ingester: Ingester) -> tuple[Frontier, Taken]:
    """Return how far the collection is complete, and what of the source that is.

    Raises:
        LocationError: the store failed.
    """
    for _ in range(_TRIES):
        upper = ingester.upper
        if ingester.remap.state.upper_frontier < upper:
            # Commits were met whose bindings this handle has not seen: others are ticks ahead.
            await ingester.remap.refresh()
        try:
            return upper, {} if upper.is_empty else await ingester.taken(upper.time)
        except AsOfBeforeSince:
            # An ingester went on between our reading of the output and of the bindings.
            await ingester.refresh()
    raise ContentionError(
        "gave up, since ingesters changed the source during every read: try again",
        source=ingester.info.name,
    )


async def load_health(ingester: Ingester) -> Health | None:
    """Return the health that the source's last run left, if it can be read.

    Raises:
        LocationError: the store failed.
    """
    try:
        return decode_health((await ingester.store.get(health_path(ingester.info.id))).data)
    except ObjectNotFound:
        return None
