"""Skipping: how a source goes on without a file that is gone, or is not what was bound.

That a file is skipped is recorded in the catalog before anybody goes on without it, for good: what
was committed of it stays, a range of it that was bound and not committed has no rows but one in the
errors, and nothing more is taken of it. Each ingester reads the catalog before each tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pyarrow as pa

from tidelog.clock import Clock
from tidelog.collection.catalog.catalog import ERRORS_SCHEMA, FILES, SourceInfo
from tidelog.collection.formats.records import Misfit
from tidelog.collection.ingest.compute import Job, error_updates, shape_messages
from tidelog.collection.ingest.engine import Computed, part_writer
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.status import taken_now
from tidelog.collection.source.binding import AddressRange
from tidelog.collection.source.decode import errors_table
from tidelog.collection.source.files_head import FilesHead
from tidelog.errors import GoneError, InvariantError, SourceRewritten, UsageError
from tidelog.store.port import Store


async def skip_file(ingester: Ingester, path: str) -> SourceInfo:
    """Let a source go on without a file that it stands at.

    Raises:
        UsageError: it does not stand at it, or the file is skipped already. LocationError: a store
            failed.
    """
    name = ingester.info.name
    known = (await ingester.controller.catalog()).source(name)
    if known.kind != FILES:
        raise UsageError(f"the source {name!r} reads no files, so none can be skipped")
    if path in known.skipped:
        raise UsageError(f"the file {path!r} is skipped already: 'tidelog source status {name}'")
    if await why_stuck(ingester, path) is None:
        raise UsageError(
            f"the file {path!r} keeps nothing from being taken, so there is nothing to skip: "
            f"'tidelog source status {name}' says what does, with the file's name as it is to be "
            "given"
        )
    return await ingester.controller.skip_file(name, path)


async def why_stuck(ingester: Ingester, path: str) -> str | None:
    """Say what is wrong with a file that a source cannot go on from; None if it can.

    Raises:
        LocationError: a store failed.
    """
    await ingester.refresh()
    upper, taken = await taken_now(ingester)
    try:
        binding = await ingester.pending()
        standing = await ingester.standing(upper.time)
        bound = binding.ranges if binding is not None else ()
        for found in (*standing.held, *bound):
            if found.path == path and found.is_read:
                share, data = await ingester.source.read(found, anew=True)
                if binding is not None:
                    job = ingester.job_of(binding, standing)
                    job = msgspec.structs.replace(job, is_careful=True)
                    await ingester.clock.offload(partial(shape_messages, data, share, 0, job))
        head = await ingester.source.head()
        if path in taken and isinstance(head, FilesHead):
            only = FilesHead(tuple(e for e in head.entries if e.key == path), head.listed_us)
            await ingester.plan(only, upper.time, taken={path: taken[path]})
    except (SourceRewritten, GoneError, InvariantError) as error:
        return error.sentence
    return None


async def write_skipped(
    computed: Computed, ranges: Sequence[AddressRange], job: Job, *, store: Store, clock: Clock
) -> Computed:
    """Return what was computed, with a bad row for each range that was skipped.

    Raises:
        LocationError: the store failed.
    """
    errors = [
        errors_table(found.path, [Misfit(found.start, _reason(found), "")]) for found in ranges
    ]
    rows = error_updates(pa.concat_tables(errors), job)
    writer = part_writer(store, clock, job.errors, ERRORS_SCHEMA)
    parts = await writer.write(rows, inline=job.errors.may_inline)
    return replace(
        computed,
        error_parts=[*computed.error_parts, *parts],
        bad=computed.bad + len(ranges),
    )


def _reason(found: AddressRange) -> str:
    return f"what stood up to {found.limit} was skipped by 'tidelog source skip'"
