"""Shares of a keyed log: the parts and fragments that a task reads, and the batches it returns.

Invariants: each wanted record is in exactly one share.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, closing
from functools import partial
from itertools import pairwise
from typing import Final

import msgspec
import pyarrow as pa

from tidelog.blocking.portal import Portal
from tidelog.collection.formats.parquet import footer_bytes, read_footer
from tidelog.core.clock import Clock, SystemClock, run_all
from tidelog.errors import ObjectNotFound, ReadOvertaken, TidelogError
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.format.records import keyed_records
from tidelog.keyed.read.part_reader import RunPartReader
from tidelog.keyed.read.run_objects import DirectoryCache
from tidelog.keyed.read.state_handle import WALS, KeyedStateHandle
from tidelog.keyed.states.run import paths_of
from tidelog.location import open_location
from tidelog.spark.keyed.wanted import KeyedScope
from tidelog.spark.log_share import WINDOW_BYTES, WINDOW_READS, batches_of, groups_of
from tidelog.spark.log_view import reader_of
from tidelog.spark.scan import cut_evenly
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.store.wrapping import open_wrapped
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.read.head import missing

SHARE_BYTES: Final = 16 * 1024 * 1024  # Stored bytes of parts and fragments.
FOOTER_BYTES: Final = 256 * 1024
FOOTERS_AT_ONCE: Final = 8


class KeyedLogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a keyed log, as executors open it; ``wal`` is the name of its inner log."""

    location_url: str
    name: str
    wal: str = ""

    def open(self, clock: Clock) -> Store:
        """Open the location's store."""
        return open_wrapped(self.location_url, clock=clock).whole

    async def state_handle(self, clock: Clock) -> KeyedStateHandle:
        """Return the log with its state and its wal already read."""
        location = await open_location(self.location_url, clock=clock)
        handle: KeyedStateHandle = await location.keyed.state_handle(self.name)
        await handle.refresh()
        return handle


class KeyedShare(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted records of some parts and some fragments.

    Shape: runs hold the fragments' records before ``since``.
    """

    place: KeyedLogPlace
    wanted: KeyedScope
    since: int
    parts: tuple[RunPart, ...] = ()
    fragments: tuple[Fragment, ...] = ()


async def share_parts(
    place: KeyedLogPlace, parts: Sequence[RunPart], wanted: KeyedScope, store: Store
) -> list[KeyedShare]:
    """Divide parts: small ones together, large ones by keys at which row groups begin.

    Raises:
        LocationError: the store failed.
        CorruptionError: the bytes of a part are wrong.
    """
    shares: list[KeyedShare] = []
    held: list[RunPart] = []
    large = [p for p in parts if p.num_bytes > 3 * SHARE_BYTES // 2 and wanted.keys is None]
    work = [partial(_cuts_of, part, store) for part in large]
    part_cuts = await run_all(work, at_once=FOOTERS_AT_ONCE)
    cuts = {part.path: at for part, at in zip(large, part_cuts, strict=True)}
    for part in parts:
        if part.path in cuts:
            shares.extend(_cut(place, part, wanted, cuts[part.path]))
            continue
        if held and sum(p.num_bytes for p in [*held, part]) > SHARE_BYTES:
            shares.append(KeyedShare(place=place, wanted=wanted, since=0, parts=tuple(held)))
            held = []
        held.append(part)
    if held:
        shares.append(KeyedShare(place=place, wanted=wanted, since=0, parts=tuple(held)))
    return shares


def share_loose(
    place: KeyedLogPlace, fragments: Sequence[Fragment], wanted: KeyedScope, since: int
) -> list[KeyedShare]:
    """Divide loose fragments into shares."""
    return [
        KeyedShare(place=place, wanted=wanted, since=since, fragments=tuple(group))
        for group in groups_of(fragments, size_bytes=SHARE_BYTES)
    ]


def read_keyed_share(share: KeyedShare, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a share, in batches of exactly the schema ``target``.

    Raises:
        ReadOvertaken: an object of the share was compacted and deleted since the plan was made.
        CorruptionError: an object is missing, or its bytes are wrong.
        LocationError: the store failed.
    """
    with closing(Portal()) as portal:
        try:
            for table in portal.iterate(_tables(share)):
                yield from batches_of(table, target)
        except ObjectNotFound as error:
            raise portal.run(why_gone(share, error)) from error


async def why_gone(share: KeyedShare, error: ObjectNotFound) -> TidelogError:
    """Return the error of a missing object: it is lost, or the state no longer names it."""
    state = (await share.place.state_handle(SystemClock())).state
    named = paths_of(state.runs)
    is_loose = any(fragment.limit > state.compacted for fragment in share.fragments)
    if is_loose or any(part.path in named for part in share.parts):
        return missing(error)
    return ReadOvertaken(
        "a compaction replaced objects of this read, and they were deleted an hour later: load "
        "the DataFrame again"
    )


async def _tables(share: KeyedShare) -> AsyncGenerator[pa.Table, None]:
    clock = SystemClock()
    store = share.place.open(clock)
    reader = RunPartReader(store, clock, DirectoryCache())
    for part in share.parts:
        async with aclosing(_of_part(reader, part, share.wanted)) as tables:
            async for table in tables:
                yield table
    wal = reader_of(Within(store, f"{WALS}{share.place.wal}"), clock, is_slots=True)
    wanted = share.wanted.between(share.since, share.wanted.limit)
    for window in groups_of(share.fragments, size_bytes=WINDOW_BYTES, count=WINDOW_READS):
        work = [partial(wal.fetch, fragment) for fragment in window]
        for records in await run_all(work, at_once=WINDOW_READS):
            yield await clock.offload(partial(_wanted_of, records, wanted))


def _wanted_of(records: pa.Table, wanted: KeyedScope) -> pa.Table:
    return wanted.rows_of(keyed_records(records))


async def _of_part(
    reader: RunPartReader, part: RunPart, wanted: KeyedScope
) -> AsyncGenerator[pa.Table, None]:
    if wanted.keys is not None:
        for key in wanted.keys:
            if part.first_key <= key <= part.last_key:
                yield await reader.read_key(part, key, wanted.start, wanted.limit)
        return
    stream = reader.scan_keys(part, wanted.first, wanted.last, wanted.start, wanted.limit)
    async with aclosing(stream) as tables:
        async for table in tables:
            yield table


async def _cuts_of(part: RunPart, store: Store) -> list[bytes]:
    """Return the keys at which to cut a part; no checksum is needed to choose them."""
    end = part.num_bytes
    tail = (await store.get(part.path, start=max(0, end - FOOTER_BYTES), limit=end)).data
    length = footer_bytes(tail[-8:])
    if length > len(tail):
        tail = (await store.get(part.path, start=end - length, limit=end)).data
    footer = read_footer(tail[-length:])
    groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
    statistics = [(group.column(0).statistics, group.num_rows) for group in groups]
    rows = [
        (keys.min, count) for keys, count in statistics if keys is not None and keys.has_min_max
    ]
    return cut_evenly(rows, round(part.num_bytes / SHARE_BYTES))


def _cut(
    place: KeyedLogPlace, part: RunPart, wanted: KeyedScope, cuts: Sequence[bytes]
) -> Iterator[KeyedShare]:
    inner = [
        cut for cut in cuts if wanted.first < cut and (wanted.last is None or cut < wanted.last)
    ]
    for first, last in pairwise([b"", *inner, None]):
        within = wanted.of_range(first or b"", last)
        if within.may_be_in(part):
            yield KeyedShare(place=place, wanted=within, since=0, parts=(part,))
