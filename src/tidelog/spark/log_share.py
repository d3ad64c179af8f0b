"""Shares of a log: the objects that a task reads, and the batches that it returns.

Invariants: each requested position is in exactly one share, or in an object without the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from tidelog.core.clock import Clock, SystemClock, run_all
from tidelog.errors import ObjectNotFound
from tidelog.spark.log_view import collected_error, reader_of
from tidelog.spark.scan import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.store.wrapping import open_wrapped
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.logs import log_folder
from tidelog.wal.manifest_log import as_log_records
from tidelog.wal.read.head import missing
from tidelog.wal.read.record_reader import RecordReader, records_between
from tidelog.wal.read.stream_selection import Selection

SHARE_BYTES: Final = 32 * 1024 * 1024
WINDOW_BYTES: Final = 16 * 1024 * 1024
WINDOW_READS: Final = 8


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a log, as executors open it."""

    location_url: str
    name: str
    is_slots: bool

    def open(self, clock: Clock) -> Store:
        """Open the store at the log's folder."""
        return Within(open_wrapped(self.location_url, clock=clock).whole, log_folder(self.name))


class LogShare(msgspec.Struct, frozen=True, kw_only=True):
    """The positions ``[start, limit)`` of a log, which are in ``fragments``.

    With a ``key``, the fragments hold all records of the range that have the key.
    """

    place: LogPlace
    fragments: tuple[Fragment, ...]
    start: int
    limit: int
    key: bytes | None = None


def share_log(
    fragments: Sequence[Fragment],
    start: int,
    limit: int,
    *,
    place: LogPlace,
    key: bytes | None = None,
) -> list[LogShare]:
    """Divide positions by the fragments that hold them; with a key, those that may hold it."""
    if key is not None:
        fragments = [fragment for fragment in fragments if Selection(key=key).may_be_in(fragment)]
    return [
        LogShare(
            place=place,
            fragments=tuple(group),
            start=max(start, group[0].start),
            limit=min(limit, group[-1].limit),
            key=key,
        )
        for group in groups_of(fragments, size_bytes=SHARE_BYTES)
    ]


def groups_of(
    fragments: Sequence[Fragment], *, size_bytes: int, count: int | None = None
) -> Iterator[list[Fragment]]:
    """Yield groups of at most ``size_bytes``, or one fragment, and at most ``count`` fragments."""
    group: list[Fragment] = []
    size = 0
    for fragment in fragments:
        if group and (size + fragment.num_bytes > size_bytes or len(group) == count):
            yield group
            group, size = [], 0
        group.append(fragment)
        size += fragment.num_bytes
    if group:
        yield group


def read_share(share: LogShare, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a share, in batches of exactly the schema ``target``.

    Raises:
        PositionCollected: the collector erased records of the share after the plan was made.
        CorruptionError: an object is missing, or its bytes are wrong.
        LocationError: the store failed.
    """
    clock, place, selection = SystemClock(), share.place, Selection(key=share.key)
    reader = reader_of(place.open(clock), clock, is_slots=place.is_slots)
    for window in groups_of(share.fragments, size_bytes=WINDOW_BYTES, count=WINDOW_READS):
        for fragment, records in zip(window, asyncio.run(_fetch(window, reader)), strict=True):
            rows = records_between(records, fragment, share.start, share.limit)
            # Like every read, this leaves out control records.
            rows = selection.of(rows if place.is_slots else as_log_records(rows))
            yield from batches_of(rows, target)


def batches_of(records: pa.Table, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield records in batches of limited rows and bytes."""
    size = records.nbytes / max(1, records.num_rows)
    step = max(1, min(BATCH_ROWS_MAX, int(BATCH_BYTES_MAX / max(1.0, size))))
    for first in range(0, records.num_rows, step):
        yield from records.slice(first, step).cast(target).combine_chunks().to_batches()


async def _fetch(fragments: Sequence[Fragment], reader: RecordReader) -> list[pa.Table]:
    try:
        work = [partial(reader.fetch, fragment) for fragment in fragments]
        return await run_all(work, at_once=WINDOW_READS)
    except ObjectNotFound as error:
        manifest = await reader.tree.manifest()
        if manifest.oldest > fragments[0].start:
            raise collected_error(fragments[0].start, manifest) from error
        raise missing(error) from error
