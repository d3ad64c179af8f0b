"""Skipping: how ingestion continues without bytes that were bound and no longer exist.

The catalog first records each skipped range, by the path and the version of its file. An ingester
reads the catalog before it finishes a binding that waits, and once a minute, so all of them leave
out the same ranges. Committed rows stay. A range that was bound and not committed becomes one row
of the errors. Later files of the same name are ingested. A record that an older version of tidelog
wrote has only a path: it skips every file of that name.
"""

from __future__ import annotations

from functools import partial

import msgspec

from tidelog.collection.catalog.catalog import FILES, SourceInfo
from tidelog.collection.ingest.compute import shape_messages
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.status import taken_now
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.moves import former_path, shown_path
from tidelog.errors import GoneError, InvariantError, SourceRewritten, UsageError


async def skip_file(ingester: Ingester, path: str) -> SourceInfo:
    """Skip a file that stops a source; return the changed source.

    Raises:
        UsageError: the file does not stop the source, or is skipped already.
        LocationError: a store failed.
    """
    name = ingester.info.name
    known = (await ingester.controller.catalog()).source(name)
    if known.kind != FILES:
        raise UsageError(f"the source {name!r} reads no files, so none can be skipped")
    lost = await lost_ranges(ingester, path)
    if not lost and path in map(shown_path, known.skipped):
        raise UsageError(
            f"the file {path!r} is already skipped: see 'tidelog source status {name}'"
        )
    if not lost:
        raise UsageError(
            f"the file {path!r} does not block the source {name!r}, so it cannot be skipped: "
            f"'tidelog source status {name}' names the blocking file"
        )
    return await ingester.controller.skip_files(name, [former_path(found) for found in lost])


async def lost_ranges(ingester: Ingester, path: str) -> list[FileRange]:
    """Return the ranges of a path that a tick still needs, if one of them cannot be read.

    A tick reads all of these ranges, so one bad range stops them all. If each can be read and
    decoded, the result is empty.

    Raises:
        LocationError: a store failed.
    """
    await ingester.refresh()
    upper, _ = await taken_now(ingester)
    binding = await ingester.pending()
    progress = await ingester.progress(upper.time)
    bound = binding.ranges if binding is not None else ()
    waiting = [
        found
        for found in (*progress.held, *bound)
        if isinstance(found, FileRange)
        and found.path == path
        and found.is_read
        and not ingester.is_skipped(found)
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
    return []
