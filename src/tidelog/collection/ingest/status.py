"""The status of a source: its upper, the bytes left to ingest, and the health of its last run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tidelog.collection.catalog.catalog import FILES, SourceInfo
from tidelog.collection.ingest.health import Health, decode_health, health_path
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.notes import load_notes
from tidelog.collection.source.addressed import AddressedHead
from tidelog.collection.source.binding import FileRange, Taken
from tidelog.collection.source.given_up import path_of_key
from tidelog.collection.source.moves import names_by_path, shown_path
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    ObjectNotFound,
    PartMissing,
    PartsSwept,
    TidelogError,
)

_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The progress of a source.

    Shape: ``kind`` is that of the source: files, log, collection and so on. ``trouble`` is the
        error if the source cannot be listed; ``left_bytes`` is then None. ``reached`` has the next
        address of each path, for a source that does not read files. It is empty for a source of
        files; ``files`` is None for the others. ``lag`` has the addresses that are left of each
        path, if the source counts messages. ``notes`` are reports about files that no user has
        acknowledged, by path. ``skipped`` has the skipped files, with the time of the skip in
        microseconds.
    Units: ``upper`` and ``since`` are in milliseconds. ``left_bytes`` are not ingested yet.
        ``files`` counts the files of which some bytes are ingested. ``late`` and ``bad`` count rows
        since the source was created. Rows of the last ``lateness_ms`` are read and not yet visible.
        ``held_bytes`` is the size of the ranges with such rows; other rows there are visible.
    """

    name: str
    kind: str
    upper: int | None
    left_bytes: int | None
    files: int | None
    reached: Mapping[str, int]
    lag: Mapping[str, int]
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
    """Return the status of a source, from its head, its shards and its last health. Write nothing.

    Raises:
        LocationError: the location's store failed.
    """
    known = (await ingester.controller.catalog()).source(ingester.info.name)
    ingester.source.pass_over(frozenset(known.skipped))
    upper, taken = await taken_now(ingester)
    held = () if upper.is_empty else (await ingester.progress(ingester.resumes_at.time)).held
    left, trouble, is_files = None, None, ingester.info.kind == FILES
    lag: Mapping[str, int] = {}
    try:
        head = await ingester.source.head()
        left = head.left_bytes(taken)
        lag = head.left_addresses(taken) if isinstance(head, AddressedHead) else {}
    except TidelogError as error:
        # Users ask for the status when a source cannot be reached, so the rest is still returned.
        trouble = str(error)
    return SourceStatus(
        name=ingester.info.name,
        kind=ingester.info.kind,
        upper=None if upper.is_empty else upper.time,
        left_bytes=left,
        files=count_files(taken) if is_files else None,
        reached={} if is_files else {path: taken[path].limit for path in sorted(taken)},
        lag=lag,
        lateness_ms=known.lateness_ms,
        retain_ms=known.retain_ms,
        since=max(shard.state.since or 0 for shard in ingester.outputs),
        held_bytes=sum(found.weight_bytes for found in held),
        late=sum(found.late for found in taken.values()),
        bad=ingester.errors.state.totals.diffs,
        notes=await load_notes(ingester.store, ingester.info.id),
        skipped={skipped_name(key, known): at for key, at in known.skipped.items()},
        trouble=trouble,
        run=await load_health(ingester),
    )


def skipped_name(key: str, info: SourceInfo) -> str:
    """Return the path in a source's record of a skip, as users name it."""
    return shown_path(key) if info.kind == FILES else path_of_key(key)


def count_files(taken: Taken) -> int:
    """Return the number of files with ingested bytes; a file that was moved counts once."""
    files = cast("Mapping[str, FileRange]", taken)  # Callers pass only sources of files.
    families = {id(names): names for names in names_by_path(files).values()}
    return len(taken) - sum(len(names) - 1 for names in families.values())


async def taken_now(ingester: Ingester) -> tuple[Frontier, Taken]:
    """Return the upper of the collection, and the last range of each path below it.

    Before the end of a copy, the ranges are those of the rendition that is copied.

    Raises:
        ContentionError: other ingesters moved the upper during every read.
        LocationError: the store failed.
    """
    for _ in range(_TRIES):
        upper = ingester.upper
        reached = upper if ingester.former is None else ingester.resumes_at
        if ingester.remap.state.upper_frontier < reached:
            # Other ingesters are ticks ahead: this handle has read their commits to the outputs,
            # but not yet their bindings.
            await ingester.remap.refresh()
        try:
            return upper, {} if reached.is_empty else await ingester.taken(reached.time)
        except (AsOfBeforeSince, PartMissing, PartsSwept) as error:
            # Another ingester ticked between our reads of the outputs and of the bindings, or a
            # merge has replaced a part of the bindings.
            await ingester.catch_up(error)
    raise ContentionError(
        f"gave up after {_TRIES} tries: ingesters kept changing the source during the read; try "
        "again",
        source=ingester.info.name,
    )


async def load_health(ingester: Ingester) -> Health | None:
    """Return the health of the source's last run; None if it is missing or damaged.

    Raises:
        LocationError: the store failed.
    """
    try:
        return decode_health((await ingester.store.get(health_path(ingester.info.id))).data)
    except ObjectNotFound:
        return None
