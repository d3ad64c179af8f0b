"""A collection as a source: the updates of another collection of the location, decoded or as is.

A binding of ``[lower, upper)`` has one range: the same times of the other collection, the upstream.
Each update keeps its time and its diff. So the collection at a time is the decoding of the upstream
at that time, and rows that the upstream takes back are taken back here.

The first range begins at the hold of the source on the upstream: it has all rows of that time, and
then the updates after it. A hold keeps the times that no ingester has committed yet. If the source
keeps its bindings, the hold stays where it began, so that another rendition reads the same updates.
Invariants: the updates of a range depend only on the range. Merges do not change them, because the
    hold keeps their times distinct. The upper never passes that of the upstream.
Source: storage, "The recipe"; design page 6, "Raw sources".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from tidelog.collection.catalog.catalog import COLLECTION, SourceInfo
from tidelog.collection.collection import Collection
from tidelog.collection.collections import Collections
from tidelog.collection.formats.times import format_time
from tidelog.collection.source.binding import AddressRange, Taken
from tidelog.collection.source.decode import ReadData
from tidelog.collection.source.followed import (
    COLUMN,
    CREATED,
    UPSTREAM,
    WHOLE,
    FollowedHead,
    as_data,
    check_no_cycle,
    hold_of,
    span_of,
    text_column,
)
from tidelog.collection.source.kind import BODY, ROWS, SAMPLE_BYTES, RowRange
from tidelog.collection.source.kinds import open_source
from tidelog.collection.source.port import Plan, RawSource, SourceHead, Survey
from tidelog.collection.source.survey_facts import AnyPiece, SurveyFacts
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.core.clock import Clock
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    CorruptionError,
    GoneError,
    InvariantError,
    NoSuchCollection,
    NoSuchHold,
    PartMissing,
    SchemaEvolved,
)
from tidelog.persist.format.part import with_one_time
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import consolidate
from tidelog.persist.read.rereading import READS_MAX, overtaken
from tidelog.persist.read.selection import RowSelection
from tidelog.persist.read.snapshot import require_replaced
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import Usage

T = TypeVar("T")
CHECK_US: Final = 60_000_000  # A running ingester reads the catalog so often, to learn of a drop.


def open_any(
    info: SourceInfo,
    schema: ShardSchema,
    *,
    store: Store,
    clock: Clock,
    collections: Collections,
    final: bool = False,
) -> RawSource:
    """Open a source of the catalog, also one that reads another of the ``collections``.

    Raises:
        UsageError: see `open_source`.
    """
    if info.kind == COLLECTION:
        return FollowedSource(collections=collections, info=info, schema=schema, clock=clock)
    return open_source(info, schema, store=store, clock=clock, final=final)


@dataclass(slots=True, kw_only=True)
class FollowedSource:
    """The raw source of a collection whose input is another collection."""

    collections: Collections
    info: SourceInfo
    schema: ShardSchema
    clock: Clock
    _upstream: Collection | None = None
    _held: int = field(default=-1)
    _checked_us: int = 0

    @property
    def path(self) -> str:
        """Return the name of the upstream, which is the only path of the source."""
        return self.info.settings[UPSTREAM]

    @property
    def range_type(self) -> type[AddressRange]:
        return RowRange

    def adopt(self, schema: ShardSchema) -> None:
        self.schema = schema

    def pass_over(self, paths: frozenset[str]) -> None:
        """Do nothing: the ingester leaves out skipped ranges, and the next one follows them."""

    async def head(self) -> FollowedHead:
        upstream = await self._opened()
        await self._check_there()
        await upstream.refresh()
        if upstream.since.is_empty or upstream.upper.is_empty:
            raise self._gone("was dropped")
        batches = [
            (batch.upper or 0, batch.size_bytes)
            for era in upstream.eras
            for state in era.states
            for batch in state.batches
        ]
        return FollowedHead(upstream.upper.time, batches)

    async def plan(
        self, taken: Taken, head: SourceHead, *, lower: int, bytes_max: int, survey: Survey
    ) -> Plan | None:
        if not isinstance(head, FollowedHead):
            raise InvariantError("a source was given another source's head")
        start = lower or await self._begin()
        if head.upper <= start:
            return None
        upper = head.end_of_step(start, bytes_max)
        proof = "" if lower else WHOLE
        return Plan((RowRange(path=self.path, start=start, limit=upper, proof=proof),), upper)

    async def survey(self, piece: AnyPiece, job: SurveyJob) -> SurveyFacts:
        raise InvariantError("a source of a collection needs no survey")

    def waiting(self) -> Mapping[str, str]:
        return {}

    def notes(self) -> Mapping[str, str]:
        return {}

    def usage(self) -> Usage:
        return Usage()  # The upstream is in the location's own store.

    async def gone(self, taken: Taken) -> Sequence[AddressRange]:
        return []

    async def read(
        self,
        found: AddressRange,
        low: int | None = None,
        high: int | None = None,
        *,
        anew: bool = False,
    ) -> tuple[AddressRange, ReadData]:
        """Return the updates of a range, consolidated; `OFFSET` has the index of each.

        Raises:
            GoneError: the upstream was dropped, or has given up the times, or lacks the column.
            CorruptionError: an object of the upstream is lost.
        """
        async with self.upstream_of(found) as upstream:
            table = await self._updates(upstream, found)
        return found, as_data(table, self.info)

    @asynccontextmanager
    async def upstream_of(self, found: AddressRange) -> AsyncIterator[Collection]:
        """Yield the upstream, refreshed up to a range; tell of times, columns or parts gone.

        Raises:
            GoneError, CorruptionError: see `read`.
        """
        upstream = await self._opened()
        if upstream.upper.time < found.limit:
            await upstream.refresh()
        try:
            yield upstream
        except AsOfBeforeSince as error:
            why = f"has given up the times from {format_time(found.start)} on"
            raise self._gone(why) from error
        except SchemaEvolved as error:
            why = "lacks a column that the source reads, or has another type for it"
            raise self._gone(why) from error
        except PartMissing as error:
            # The read has refreshed the upstream. An ingester takes this class for a stale state.
            raise CorruptionError(
                f"the collection {self.path!r}, which the source {self.info.name!r} reads, has "
                "lost an object that its state names: restore the object",
                path=error.facts["path"],
            ) from error

    async def reread(self, found: AddressRange, read: Callable[[Collection], Awaitable[T]]) -> T:
        """Return the result of a read of a range; read again if merges replaced its parts.

        Raises:
            GoneError, CorruptionError: see `read`.
            ReadOvertaken: merges replaced the parts at every try.
        """
        async with self.upstream_of(found) as upstream:
            for _ in range(READS_MAX):
                try:
                    return await read(upstream)
                except PartMissing as error:
                    await upstream.refresh()
                    require_replaced([one for era in upstream.eras for one in era.states], error)
        raise overtaken()

    @property
    def columns(self) -> list[str]:
        """Return the columns of the upstream that the source reads."""
        is_rows = self.info.format == ROWS
        return self.schema.names if is_rows else [self.info.settings[COLUMN]]

    async def _updates(self, upstream: Collection, found: AddressRange) -> pa.Table:
        reading = upstream.reading(RowSelection(columns=self.columns))
        form, pieces, (since, until, is_whole) = reading.narrow, [], span_of(found)
        if is_whole:
            pieces = [
                with_one_time(piece.cast(form.contents), since, form.updates)
                async for piece in upstream.contents(reading, since)
            ]
        pieces += [one async for one in upstream.changes_of(reading, since, until)]
        after = found.start - 1
        return await self.clock.offload(
            partial(consolidate, pieces, form, after=after, until=until)
        )

    async def hold(self, taken: Taken, *, make: bool) -> None:
        """Keep the times after ``taken``; with kept bindings, all times since the creation.

        Raises:
            GoneError: the upstream was dropped.
        """
        upstream, name = await self._opened(), hold_of(self.info)
        found = taken.get(self.path)
        if found is None or self.info.keeps_bindings is True:
            if make:
                await upstream.hold(name)
            return
        at = max(found.limit - 1, 0)
        if self._held >= at:
            return
        try:
            await upstream.move_hold(name, at)
        except NoSuchHold:
            with suppress(AsOfBeforeSince):  # The next read reports that the times are gone.
                await upstream.hold(name, at)
        self._held = at

    async def release(self) -> None:
        """Release the hold on the upstream; the call is idempotent.

        Raises:
            LocationError: the store failed; call again.
        """
        await release_upstream(self.info, self.collections)

    async def _begin(self) -> int:
        """Return the time of the hold, at which the source begins."""
        return (await (await self._opened()).hold(hold_of(self.info))).time

    async def _opened(self) -> Collection:
        if self._upstream is None:
            upstream = await _upstream_of(self.info, self.collections)
            if upstream is None:
                raise self._gone("was dropped")
            await upstream.refresh()
            self._upstream, self._checked_us = upstream, self.clock.now_us()
        return self._upstream

    async def _check_there(self) -> None:
        """Check from time to time that the upstream exists: a drop changes only the catalog.

        Raises:
            GoneError: it was dropped.
        """
        now_us = self.clock.now_us()
        if now_us - self._checked_us < CHECK_US:
            return
        if await _upstream_of(self.info, self.collections) is None:
            raise self._gone("was dropped")
        self._checked_us = now_us

    def _gone(self, why: str) -> GoneError:
        return GoneError(
            f"the collection {self.path!r}, which the source {self.info.name!r} reads, {why}: the "
            f"rows of {self.info.name!r} stay, and no more can follow"
        )


async def release_upstream(info: SourceInfo, collections: Collections) -> None:
    """Release the hold of a dropped source on its upstream; the call is idempotent.

    Raises:
        LocationError: the store failed; call again.
    """
    with suppress(GoneError):
        upstream = await _upstream_of(info, collections)
        if upstream is not None:
            await upstream.drop_hold(hold_of(info))


async def _upstream_of(info: SourceInfo, collections: Collections) -> Collection | None:
    """Return the upstream; None if it was dropped, also if a new one has its name."""
    catalog, path = await collections.controller.catalog(), info.settings[UPSTREAM]
    there = catalog.collections.get(path)
    is_same = there is not None and str(there.created_us) == info.settings[CREATED]
    return collections.opened(catalog, path) if is_same else None


@dataclass(slots=True, kw_only=True)
class NewFollowed:
    """The upstream of a source that is about to be created: its columns, and a sample of them."""

    collections: Collections
    info: SourceInfo
    name: str = COLLECTION
    body: str = BODY
    _upstream: Collection | None = None
    _settings: Mapping[str, str] = field(default_factory=dict)

    async def open(self) -> None:
        """Open the upstream, and choose the column to decode.

        Raises:
            NoSuchCollection: the upstream does not exist.
            UsageError: the source would read itself; or a column is missing or is not text.
        """
        catalog = await self.collections.controller.catalog()
        path = self.info.settings[UPSTREAM]
        check_no_cycle(catalog, self.info.name, path)
        there = catalog.collections.get(path)
        if there is None:
            raise NoSuchCollection(
                f"no collection named {path!r}, which the source would read; existing "
                f"collections: {', '.join(sorted(catalog.collections)) or 'none'}"
            )
        self._upstream = self.collections.opened(catalog, path)
        self._settings = {UPSTREAM: path, CREATED: str(there.created_us)}
        if self.info.format != ROWS:
            column = self.info.settings.get(COLUMN)
            self._settings |= {COLUMN: text_column(self._upstream.schema.data, column, path)}

    async def columns(self) -> pa.Schema:
        """Return the columns of the upstream; if a text is decoded, only that, as `BODY`."""
        there = self._there.schema.data
        if self.info.format == ROWS:
            return there
        return pa.schema([there.field(self._settings[COLUMN]).with_name(BODY)])

    async def settle(self) -> Mapping[str, str]:
        """Return the settings to store: they name the upstream for good."""
        return self._settings

    async def sample(self) -> pa.Table:
        """Return about 2 MiB of the texts of the column, to infer columns from."""
        column, size = self._settings[COLUMN], 0
        found = [(await self.columns()).empty_table()]
        with suppress(AsOfNotComplete):
            async for rows in self._there.scan(columns=[column]):
                found.append(rows.rename_columns([BODY]))
                size += rows.nbytes
                if size >= SAMPLE_BYTES:
                    break
        return pa.concat_tables(found)

    @property
    def _there(self) -> Collection:
        if self._upstream is None:
            raise InvariantError("the upstream of a new source was not opened")
        return self._upstream
