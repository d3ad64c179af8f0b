"""The contents of a DataFrame of a collection, and the division of its read.

`choose_pin` fixes the contents at ``load``, as a plain value that later commits do not change.
`plan_scans` divides the read when the DataFrame runs, into scans (see `scan`), also plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelog.collection.collection import Collection
from tidelog.collection.crossing import check_same_columns
from tidelog.collection.formats.parquet import footer_bytes, read_footer
from tidelog.collection.source.followed import UpdateSpan
from tidelog.core.arguments import joined_names
from tidelog.core.clock import SystemClock, run_all, wall_us
from tidelog.errors import (
    HoldExpired,
    NoSuchCollection,
    ObjectNotFound,
    PartMissing,
    ReadOvertaken,
    TidelogError,
    UsageError,
)
from tidelog.location import open_location
from tidelog.persist.format.bounds import Box, part_reaches
from tidelog.persist.format.part import Part, missing_part
from tidelog.persist.format.schema import DIFF, TIME, decode_schema, encode_with_known
from tidelog.persist.read.pieces import parts_by_time
from tidelog.persist.read.selection import CheckedSelection, RowSelection
from tidelog.persist.read.snapshot import ShardSnapshot, require_replaced
from tidelog.spark.options import ReadSettings, check_columns
from tidelog.spark.place import url_for_executors
from tidelog.spark.scan import (
    CHANGE_TYPE,
    PARTITION_BYTES,
    Scan,
    can_share_keys,
    crossed,
    decode_share,
    read_groups,
    share_keys,
    share_parts,
)
from tidelog.store.port import Store
from tidelog.store.wrappers.checked import read_checked

FOOTERS_MAX: Final = 16
FOOTER_BYTES: Final = 64 * 1024
READS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRead:
    """The contents of a DataFrame, fixed at ``load``: columns of one rendition, as of a time.

    With ``is_changes``, these are the changes after the time ``after``, up to ``as_of``. Without
    ``after``, they are the contents as of ``as_of`` in the form of changes. ``has_types`` adds the
    column `CHANGE_TYPE`. With ``until_us``, a hold keeps the contents readable until that wall
    time.
    """

    location_url: str
    name: str
    rendition: str
    as_of: int
    schema: bytes
    selection: CheckedSelection
    appended: bool
    after: int | None = None
    is_changes: bool = False
    has_types: bool = False
    until_us: int | None = None

    @property
    def data(self) -> pa.Schema:
        """Return the Arrow schema of the collection."""
        return decode_schema(self.schema).data

    @property
    def shown(self) -> pa.Schema:
        """Return the Arrow schema of the read."""
        fields = [self.data.field(name) for name in self.selection.columns]
        if not self.is_changes:
            return pa.schema(fields)
        own: list[pa.Field[Any]] = [pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64())]
        if self.has_types:
            own.append(pa.field(CHANGE_TYPE, pa.string()))
        return pa.schema([*own, *fields])


async def choose_pin(settings: ReadSettings) -> PinnedRead:
    """Find the collection, and choose the time to read.

    Raises:
        NoSuchLocation, NoSuchCollection, UsageError: an option is wrong.
        AsOfBeforeSince, AsOfNotComplete: the time is not readable; the message names the times
            that are.
    """
    location = await open_location(settings.location_url)
    collection = await location.collection(settings.name)
    after = None
    if settings.since is None:
        as_of = await collection.resolve_as_of(settings.as_of, what="asOf")
    else:
        after, as_of = await collection.resolve_between(settings.since, settings.as_of)
    collection = collection.era_at(as_of)
    columns = tuple(collection.schema.names) if settings.columns is None else settings.columns
    check_columns(columns, collection.schema.names)
    if settings.has_types:
        _check_key(columns, collection)
    selection = RowSelection(columns=columns, where=settings.where).check(collection.schema)
    until_us = None
    if settings.hold_ms is not None:
        until_us = await _hold(collection, as_of if after is None else after, settings.hold_ms)
    return PinnedRead(
        location_url=url_for_executors(location.executor_url, location.store),
        name=settings.name,
        rendition=collection.rendition.id,
        as_of=as_of,
        schema=encode_with_known(collection.served(collection.schema)),
        selection=selection,
        appended=collection.appended,
        after=after,
        is_changes=settings.is_changes,
        has_types=settings.has_types,
        until_us=until_us,
    )


def _check_key(columns: tuple[str, ...], collection: Collection) -> None:
    """Check that the changes have the key, since it identifies updates.

    Raises:
        UsageError: they have not, or the collection has a column of the name `CHANGE_TYPE`.
    """
    if CHANGE_TYPE in columns:
        raise UsageError(f"changeType adds {CHANGE_TYPE}, a column of the collection: remove it")
    if lacking := [name for name in collection.schema.key if name not in columns]:
        raise UsageError(
            "changeType needs the key of the collection: add it to the option 'columns'",
            key=joined_names(lacking),
        )


async def _hold(collection: Collection, time: int, hold_ms: int) -> int:
    """Hold a collection at a time, by leases that end by themselves; return the earliest end."""
    ends = []
    for shard in collection.shards:
        # An empty or finished shard may start at a later time than the others.
        reader = await shard.lease(
            time, lease_us=1_000 * hold_ms, fixed=True, purpose="a Spark DataFrame"
        )
        ends.append(reader.until_us or 0)
    return min(ends)


async def why_missing(pin: PinnedRead, error: PartMissing) -> TidelogError:
    """Return the error of a missing part: it is lost, or a concurrent merge replaced it."""
    location = await open_location(pin.location_url)
    collection = await location.collection(pin.name)
    await collection.refresh()
    try:
        require_replaced([one for era in collection.eras for one in era.states], error)
    except PartMissing:
        return error
    return ReadOvertaken(
        "a merge replaced parts of this read, and they were deleted an hour later: load the "
        "DataFrame again, with option('hold', '6h') for a long read"
    )


async def plan_scans(pin: PinnedRead) -> list[Scan]:
    """Divide the read of the selected rows of a collection.

    Raises:
        NoSuchCollection: the collection was dropped or replaced since ``load``.
        AsOfBeforeSince: its time is no longer readable.
        HoldExpired: its hold has ended.
    """
    if pin.until_us is not None and wall_us(SystemClock()) >= pin.until_us:
        raise HoldExpired(
            f"the hold of {pin.name!r} has ended: load it again, with a longer option 'hold'"
        )
    location = await open_location(pin.location_url)
    collection = await location.collection(pin.name)
    await collection.refresh()
    era = next((one for one in collection.eras if one.rendition.id == pin.rendition), None)
    if era is None:
        raise NoSuchCollection(
            f"another collection has replaced {pin.name!r} since it was loaded, or its rendition "
            "was dropped: load it again"
        )
    box = pin.selection.box
    if pin.after is not None:
        _, until = await collection.resolve_between(pin.after, pin.as_of)
        return _plan_changes(pin, collection, pin.after, until, box)
    snapshots = await era.snapshots(pin.as_of)
    # That has read newer states, and the handle may have continued with a successor.
    pin = _with_known(pin, era.era_at(pin.as_of))
    return await _plan_contents(pin, snapshots, box, location.store)


async def plan_updates(
    collection: Collection,
    columns: Sequence[str],
    span: UpdateSpan,
    *,
    location_url: str,
) -> list[Scan]:
    """Divide the updates of some columns of an open collection.

    Raises:
        AsOfBeforeSince: the times are no longer readable.
        SchemaEvolved: a rendition lacks a column, or has another type for it.
    """
    since, until, is_whole = span
    collection.check_since(since)
    latter = collection.era_at(until)
    pin = PinnedRead(
        location_url=location_url,
        name=collection.name,
        rendition=latter.rendition.id,
        as_of=until,
        schema=encode_with_known(latter.served(latter.schema)),
        selection=RowSelection(columns=columns).check(latter.schema),
        appended=latter.appended,
        after=since,
    )
    scans: list[Scan] = []
    if is_whole:
        era = collection.era_at(since)
        whole = replace(_of_era(pin, era), after=None, as_of=since)
        scans += await _plan_contents(whole, era.snapshots_at(since), {}, collection.store)
    return [*scans, *_plan_changes(pin, collection, since, until, {})]


async def _plan_contents(
    pin: PinnedRead, snapshots: Sequence[ShardSnapshot], box: Box, store: Store
) -> list[Scan]:
    """Divide the contents of a rendition."""
    scans: list[Scan] = []
    for snapshot in snapshots:
        parts = [part for part in snapshot.parts if part_reaches(part, box)]
        scans.extend(await share(_scan_of(pin, parts, box), store))
    return scans


def _plan_changes(
    pin: PinnedRead, collection: Collection, after: int, until: int, box: Box
) -> list[Scan]:
    """Divide changes by times, since only updates of one time cancel; overlapping parts join."""
    scans: list[Scan] = []
    for era in collection.eras:
        if until < era.begins or (era.ends is not None and after >= era.ends - 1):
            continue
        own, start = _of_era(pin, era), after
        if era.former is not None and after < era.begins:
            old = _of_era(pin, era.former)
            scans.append(_crossing(own, old, era, era.former, box))
            start = era.begins
        last = until if era.ends is None else min(until, era.ends - 1)
        parts = [p for p in era.parts_between(start, last) if part_reaches(p, box)]
        dated = replace(own, after=start, as_of=last)
        scans += [_scan_of(dated, together, box) for together in parts_by_time(parts)]
    return scans


def _crossing(
    new: PinnedRead, old: PinnedRead, latter: Collection, former: Collection, box: Box
) -> Scan:
    """Return the scan of the changes at the time at which the latter rendition succeeds."""
    at = latter.begins
    scans = []
    for pin, era, time in ((new, latter, at), (old, former, at - 1)):
        parts = [part for part in era.parts_until(time) if part_reaches(part, box)]
        scans.append(_scan_of(replace(pin, after=None, as_of=time), parts, box))
    return msgspec.structs.replace(scans[0], former=scans[1])


def _of_era(pin: PinnedRead, era: Collection) -> PinnedRead:
    """Return the read of one rendition.

    Raises:
        SchemaEvolved: it lacks a column of the read, or has another type for it.
    """
    wanted = decode_schema(pin.schema)
    if era.rendition.id == pin.rendition:
        return replace(pin, schema=encode_with_known(era.served(wanted)))
    begins = era.begins if era.ends is None else era.ends
    needed = pin.selection.needed
    check_same_columns(needed, wanted, era.schema, name=pin.name, begins=begins)
    schema = encode_with_known(era.served(era.schema))
    return replace(pin, rendition=era.rendition.id, schema=schema, appended=era.appended)


def _with_known(pin: PinnedRead, collection: Collection) -> PinnedRead:
    """Return a read with the schemas that its table has got since ``load``, to decode its parts.

    Raises:
        SchemaEvolved: a column of the read was dropped.
    """
    served = collection.served(decode_schema(pin.schema))
    return replace(pin, schema=encode_with_known(served))


def _scan_of(pin: PinnedRead, parts: Sequence[Part], box: Box) -> Scan:
    return Scan(
        schema=pin.schema,
        columns=pin.selection.needed,
        as_of=pin.as_of,
        after=pin.after,
        parts=tuple(parts),
        appended=pin.appended,
        box=dict(box),
    )


async def load_tables(scan: Scan, store: Store) -> list[pa.Table]:
    """Read a scan's parts.

    Raises:
        PartMissing: a part does not exist.
        CorruptionError: the bytes of a part are wrong.
        LocationError: the store failed.
    """

    async def load(part: Part) -> pa.Table:
        async def decoded(data: bytes) -> pa.Table:
            return decode_share(part, data, scan)

        if part.path is None:
            return await decoded(part.inline or b"")
        try:
            return await read_checked(store, part.path, decoded)
        except ObjectNotFound as error:
            raise missing_part(part.path) from error

    return await run_all([partial(load, part) for part in scan.parts], at_once=READS_MAX)


async def load_scan(scan: Scan, store: Store) -> list[pa.Table]:
    """Read the parts of a scan, and those of the rendition before it; see `load_tables`."""
    found = await load_tables(scan, store)
    if scan.former is None:
        return found
    return crossed(found, await load_tables(scan.former, store), scan.as_of)


async def share(scan: Scan, store: Store) -> list[Scan]:
    """Divide a scan among tasks; raise LocationError if the store failed."""
    if not scan.parts or scan.appended:
        return share_parts(scan) if scan.parts else []
    if scan.size_bytes < 3 * PARTITION_BYTES // 2 or not can_share_keys(decode_schema(scan.schema)):
        return [scan]
    largest = sorted((p for p in scan.parts if p.path), key=lambda p: -p.size_bytes)[:FOOTERS_MAX]
    work = [partial(_load_groups, part, store) for part in largest]
    groups = await run_all(work, at_once=READS_MAX)
    return share_keys(scan, [group for of_part in groups for group in of_part])


async def _load_groups(part: Part, store: Store) -> list[tuple[Any, int]]:
    """Read the keys of a part's row groups, without a checksum: they only choose the cuts."""
    path, end = part.path or "", part.size_bytes
    tail = (await store.get(path, start=max(0, end - FOOTER_BYTES), limit=end)).data
    length = footer_bytes(tail[-8:])
    if length > len(tail):
        tail = (await store.get(path, start=end - length, limit=end)).data
    return list(read_groups(read_footer(tail[-length:])))
