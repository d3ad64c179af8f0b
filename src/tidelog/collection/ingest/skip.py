"""Skipping: how ingestion continues without messages that no longer exist.

The catalog first records each skipped range: a file by its path and version, a range of another
kind of source by its path and addresses. An ingester reads the catalog when it starts, before it
finishes a binding that waits, and once a minute, so all of them leave out the same ranges.
Committed rows stay. A range whose rows are not committed becomes one row of the errors, with its
addresses. Later files of the same name are ingested. A record that an older version of tidelog
wrote has only a path: it skips every file of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from tidelog.collection.catalog.catalog import FILES, SourceInfo
from tidelog.collection.ingest.compute import shape_messages
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.status import skipped_name, taken_now
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.collection.source.given_up import skip_key
from tidelog.collection.source.moves import former_path
from tidelog.errors import GoneError, InvariantError, SourceRewritten, UsageError


async def skip_lost(ingester: Ingester, path: str) -> SourceInfo:
    """Skip the messages of a path that stop a source; return the changed source.

    Raises:
        UsageError: the path does not stop the source, or is skipped already.
        LocationError: a store failed.
    """
    name = ingester.info.name
    known = (await ingester.controller.catalog()).source(name)
    what = f"the file {path!r}" if known.kind == FILES else repr(path)
    keys = [_key_of(found) for found in await lost_ranges(ingester, path)]
    new = [key for key in keys if key not in known.skipped]
    if not new and (keys or path in [skipped_name(key, known) for key in known.skipped]):
        raise UsageError(f"{what} is already skipped: see 'tidelog source status {name}'")
    if not new:
        raise UsageError(
            f"{what} does not block the source {name!r}, so it cannot be skipped: "
            f"'tidelog source status {name}' names the cause of a block"
        )
    return await ingester.controller.skip_files(name, new)


def _key_of(found: AddressRange) -> str:
    return former_path(found) if isinstance(found, FileRange) else skip_key(found)


async def lost_ranges(ingester: Ingester, path: str) -> Sequence[AddressRange]:
    """Return the ranges of a path that a tick still needs, if one of them cannot be read.

    A tick reads all of these ranges, so one bad range stops them all. If each can be read and
    decoded, the result is empty. Without a bound range, the next one may be lost.

    Raises:
        LocationError: a store failed.
    """
    await ingester.refresh()
    if ingester.is_copying:
        return []  # It does not read the source yet.
    upper, taken = await taken_now(ingester)
    binding = await ingester.pending()
    progress = await ingester.progress(upper.time)
    bound = binding.ranges if binding is not None else ()
    waiting = [
        found
        for found in (*progress.held, *bound)
        if found.path == path and found.is_read and not ingester.is_skipped(found)
    ]
    for found in waiting:
        try:
            share, data = await ingester.source.read(found, anew=True)
            if binding is not None:
                job = ingester.job_of(binding, progress)
                job = msgspec.structs.replace(job, is_careful=True)
                await ingester.clock.offload(partial(shape_messages, data, share, 0, job))
        except (SourceRewritten, GoneError, InvariantError):
            return waiting
    if binding is not None:
        return []
    return [found for found in await ingester.source.gone(taken) if found.path == path]
