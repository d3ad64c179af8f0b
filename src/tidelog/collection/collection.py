"""Collections for readers: the shards of the rendition that is read at a time, as one.

A handle is that of the newest rendition, and has the handle of the rendition before it as
``former``. A refresh that finds a mark in the first shard continues with the successor. So a read
at any time meets the mark in a state that it reads anyway.
Source: storage, "Fat client", "Renditions"; design page 6, "Collection, rendition, handover".
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial

import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA, RenditionInfo, TableInfo
from tidelog.collection.catalog.lost import check_new, check_states
from tidelog.collection.crossing import changes_across, check_same_columns
from tidelog.collection.following import follow
from tidelog.collection.formats.times import When, format_time
from tidelog.collection.formats.types import sql_type_of
from tidelog.collection.hold_all import (
    check_newest_stays,
    check_not_own,
    drop_hold,
    earliest_of,
    move_on,
    place_on,
)
from tidelog.collection.reading import (
    CollectionDescription,
    ColumnDescription,
    Contents,
    Reading,
    RenditionDescription,
)
from tidelog.collection.resolving import ReadableTimes
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier, meet
from tidelog.core.ids import ShardId
from tidelog.errors import PartMissing
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import sum_up
from tidelog.persist.handle.listening import caught_up
from tidelog.persist.handle.port import Progress
from tidelog.persist.handle.shard import Shard
from tidelog.persist.handle.together import refresh_all
from tidelog.persist.read.reader import parts_between
from tidelog.persist.read.rereading import reread
from tidelog.persist.read.selection import RowSelection, repeated
from tidelog.persist.read.snapshot import ShardSnapshot, require_replaced
from tidelog.persist.states.evolution import served_schema, with_schemas
from tidelog.persist.states.state import Mark, State
from tidelog.persist.transactions.reading import complete_states
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes

_log = logging.getLogger(__name__)


Following = Callable[["Collection", Mark], Awaitable["Collection"]]  # To the mark's successor.


@refuses_writes()
@dataclass(slots=True, kw_only=True)
class Collection(ReadableTimes):
    """A handle of one collection. Its reads are definite: at one time, each has the same result.

    Shape: ``rendition`` is read at the times from ``begins`` on, up to ``ends`` (exclusive; None:
        it has no successor yet). ``former`` is read before ``begins``; None if no rendition is,
        or if it was dropped.
    """

    name: str
    rendition: RenditionInfo
    store: Store
    consensus: Consensus
    clock: Clock
    is_errors: bool = False
    appended: bool = False  # Its rows are never deleted or replaced.
    table: TableInfo | None = None
    transactions: Transactions | None = None  # That write the shards; only a table has them.
    begins: int = 0
    ends: int | None = None
    former: Collection | None = None
    following: Following | None = None
    schema: ShardSchema = field(init=False)
    shards: list[Shard] = field(init=False)
    _beside: list[Shard] = field(init=False)
    _complete: list[State] = field(init=False, default_factory=list)
    is_read: bool = field(init=False, default=False)  # A former one's states have been read.

    def __post_init__(self) -> None:
        data = self.rendition.data_schema
        errors = self.rendition.errors
        self.schema = ERRORS_SCHEMA if self.is_errors else data
        # The shards of a table, or of an altered source, may have earlier columns, or later ones.
        is_fixed = self.transactions is None and not data.known
        outputs = [self._shard(one, data if is_fixed else None) for one in self.rendition.shards]
        beside = [self._shard(errors, ERRORS_SCHEMA)] if errors is not None else []
        self.shards, self._beside = (beside, outputs) if self.is_errors else (outputs, beside)

    def __repr__(self) -> str:
        return f"<tidelog collection {self.name!r}: {len(self.schema.names)} columns>"

    def _shard(self, shard_id: str, schema: ShardSchema | None) -> Shard:
        return Shard(
            id=ShardId(shard_id),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=schema,
        )

    @property
    def all_shards(self) -> list[Shard]:
        """Return its shards and, for the upper and holds, its source's other readable shards."""
        return [*self.shards, *self._beside]

    @property
    def states(self) -> list[State]:
        """Return the states of its shards, as of the last refresh; see `all_states`."""
        return self.all_states[: len(self.shards)]

    @property
    def all_states(self) -> list[State]:
        """Return the states of all shards, as of the last refresh.

        The states of a table have the commits that its shards do not have yet, and the upper of the
        transactions.
        """
        return self._complete or [shard.state for shard in self.all_shards]

    @property
    def mark(self) -> Mark | None:
        """Return the mark of the rendition, as of the newest state of its first shard."""
        return self.first_shard.state.mark

    @property
    def first_shard(self) -> Shard:
        """Return the shard whose state records handovers."""
        first = self.rendition.shards[0]
        return next(one for one in self.all_shards if one.id == first)

    @property
    def _is_succeeded(self) -> bool:
        """Return True if the next refresh continues with another rendition."""
        return self.following is not None and self.mark is not None

    @property
    def eras(self) -> list[Collection]:
        """Return the handles of the renditions that are read at some time, oldest first."""
        return [*([] if self.former is None else self.former.eras), self]

    async def refresh(self) -> None:
        """Read the newest state of each shard; continue with the rendition that readers now read.

        Raises:
            CorruptionError: the state of a shard is lost or set back.
            LocationError: the store failed.
        """
        await self._refresh_own()
        while (mark := self.mark) is not None and self.following is not None:
            # Other tasks may use this handle meanwhile, and one of them may be first.
            known = copy(self)
            successor = await self.following(known, mark)
            await successor.refresh()
            if self.rendition.id == known.rendition.id:
                self._become(successor)
        # The states of a complete former rendition serve as they are: a merge that replaced their
        # parts is found by the read.
        for former in self.eras[:-1]:
            if not (former.is_read and former.is_complete):
                await former._refresh_own()
                former.is_read = True

    def _become(self, successor: Collection) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(successor, one.name))

    @property
    def is_complete(self) -> bool:
        """Return True if no reader waits for more times of this rendition."""
        return self.ends is not None and self._own_upper.passed(self.ends - 1)

    def era_at(self, time: int) -> Collection:
        """Return the handle of the rendition that is read at a time, as of the last refresh.

        It stays that handle when this one continues with a successor.
        """
        if self.former is not None and time < self.begins:
            return self.former.era_at(time)
        if self.following is None:
            return self
        found = copy(self)
        found.following = None
        return found

    def states_at(self, time: int) -> list[State]:
        return self.era_at(time).states

    async def _refresh_own(self) -> None:
        known, rendition = self.all_shards, self.rendition
        if self.transactions is not None:
            found = await complete_states(self.transactions, known)
            # An alteration that was interrupted has not given its schema to all shards.
            self._complete = [with_schemas(state, self.rendition.schemas) for state in found]
            return
        await refresh_all(known)
        if self.rendition is not rendition:
            return  # Another task has continued with the successor, and read its states.
        if self.schema.known:
            # The outputs of an altered source get its schema with their next rows.
            self._complete = [self._altered(shard) for shard in known]
        is_new = self._own_upper == Frontier.at(0)
        if self.table is not None and is_new:
            await check_new(self.shards[0])
        if self.rendition.remap is not None and is_new:
            remap = self._shard(self.rendition.remap, None)  # Only its state is read, not its rows.
            await remap.refresh()
            # `check_states` needs the order of commits, in which errors come last.
            written = known[1:] + known[:1] if self.is_errors else known
            await check_states(written, remap, hold=self.rendition.ingest_hold)

    def _altered(self, shard: Shard) -> State:
        is_output = shard.id in self.rendition.shards
        return with_schemas(shard.state, self.rendition.schemas) if is_output else shard.state

    async def _newest(self, shard: Shard, time: int) -> State:
        if self.transactions is not None:
            return await caught_up(shard, time)
        await shard.refresh()
        return self._altered(shard)

    @property
    def since(self) -> Frontier:
        """Return the earliest readable time, as of the last refresh."""
        return earliest_of([(one.begins, one.states) for one in self.eras])

    @property
    def upper(self) -> Frontier:
        """Return the upper of the collection and its errors, as of the last refresh."""
        former = self.former
        if former is not None and not former.upper.passed(self.begins - 1):
            return former.upper
        return self._own_upper

    @property
    def _own_upper(self) -> Frontier:
        return meet([state.upper_frontier for state in self.all_states])

    @property
    def unique_key(self) -> tuple[str, ...]:
        """Return the columns of which at most one row at a time has the same values; or none."""
        if self.table is not None:
            return self.table.key
        return () if self.appended or self.is_errors else tuple(self.schema.key)

    async def hold(
        self, name: str, at: When | None = None, *, token: int | None = None
    ) -> Frontier:
        """Keep ``at`` and all later times readable (default: all readable times).

        Return the frontier of the hold. An existing hold of the name does not move; a greater
        ``token`` takes it over.

        Raises:
            UsageError: the time is before since, or not complete yet. Or the name is the
                ingester's.
            HoldFenced: the hold has a newer owner.
            LocationError: the store failed; call again.
        """
        check_not_own(name)
        since = None if at is None else Frontier.at(self._time(at, "at"))
        while True:
            await self.refresh()
            self._check_there()
            if since is not None:
                self.check_since(since.time, at)
            eras, earliest = self.eras, self.since
            placed = await place_on(eras, name, since, earliest=earliest, token=token)
            if not self._is_succeeded:
                return placed

    async def move_hold(self, name: str, at: When, *, token: int | None = None) -> Frontier:
        """Move a hold forward to ``at``; return the earliest readable time of the collection.

        Raises:
            NoSuchHold: no hold has the name.
            UsageError: the newest contents would become unreadable; or see `hold`.
            HoldFenced, LocationError: see `hold`.
        """
        check_not_own(name)
        since = Frontier.at(self._time(at, "at"))
        while True:
            await self.refresh()
            check_newest_stays(self.upper, since)
            moved = await move_on(self.eras, name, since, token=token)
            if not self._is_succeeded:
                return moved

    async def drop_hold(self, name: str, *, token: int | None = None) -> bool:
        """Release a hold; return True if it existed.

        Raises:
            UsageError, HoldFenced, LocationError: see `hold`.
        """
        check_not_own(name)
        dropped: list[bool] = []
        while not dropped or self._is_succeeded:
            await self.refresh()
            dropped += [await drop_hold(era.all_shards, name, token=token) for era in self.eras]
        return any(dropped)

    async def snapshot(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> Contents:
        """Return the rows at a time, by default the newest complete time; see `scan`.

        No rows are read yet.
        """
        wanted = RowSelection(columns=columns, where=where, limit=limit)
        era, reading, time = await self._resolved(wanted, as_of, wait=wait, timeout_us=timeout_us)
        return Contents(as_of=time, reading=reading, collection=era)

    async def _resolved(
        self, wanted: RowSelection, as_of: When | None, *, wait: bool, timeout_us: int | None
    ) -> tuple[Collection, Reading, int]:
        """Return the time to read, and the handle and the read of the rendition of that time."""
        reading = self.reading(wanted)  # A mistake costs no request.
        time = await self.resolve_as_of(as_of, wait=wait, timeout_us=timeout_us)
        era = self.era_at(time)
        return era, era.own_reading(reading, wanted), time

    def own_reading(self, reading: Reading, wanted: RowSelection) -> Reading:
        """Return the read of a selection, which is ``reading`` if that is of this rendition.

        Raises:
            UsageError: see `reading`: another rendition may have other columns.
        """
        if reading.rendition == self.rendition.id:
            return reading
        return self.reading(wanted, is_packed=reading.is_packed)

    async def consolidated(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> pa.Table:
        """Return the contents at a time: columns and ``_diff``, consolidated; see `scan`.

        ``limit`` counts a row as many times as the collection has it.
        """
        wanted = RowSelection(columns=columns, where=where, limit=limit)
        era, reading, time = await self._resolved(wanted, as_of, wait=wait, timeout_us=timeout_us)
        found = [piece async for piece in era.contents(reading, time)]
        return await self.clock.offload(lambda: sum_up(found, reading.narrow))

    async def scan(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the rows at a time, in tables of some thousands; a row repeats by its count.

        Rows come in the order of their key. In a collection that is only appended to, they come in
        the order of writes. ``where`` is a condition in DuckDB's dialect. Only the parts, row
        groups and columns that the selection needs are read, and nothing after ``limit`` rows.
        With ``wait``, the call waits until the time is complete; ``timeout_us`` (microseconds)
        ends the wait, and alone implies ``wait``.

        Raises:
            AsOfBeforeSince, AsOfNotComplete, DeadlineExceeded: see `resolve_as_of`.
            UsageError: a column does not exist, or the condition is invalid or fails on a row.
        """
        wanted = RowSelection(columns=columns, where=where, limit=limit)
        era, reading, time = await self._resolved(wanted, as_of, wait=wait, timeout_us=timeout_us)
        async with aclosing(era.rows_of(reading, time)) as found:
            async for rows in found:
                yield rows

    async def rows_of(self, reading: Reading, time: int) -> AsyncGenerator[pa.Table, None]:
        """Yield the rows at a resolved time, each repeated by its count; see `contents`."""
        async with aclosing(self.contents(reading, time)) as pieces:
            async for piece in pieces:
                for rows in repeated(piece):
                    yield rows

    def reading(self, selection: RowSelection, *, is_packed: bool = False) -> Reading:
        """Return the read of a selection of rows and columns; see `Reading`.

        Raises:
            UsageError: see `RowSelection.check`.
        """
        return Reading(
            name=self.name,
            rendition=self.rendition.id,
            schema=self.schema,
            appended=self.appended,
            is_unique=bool(self.unique_key),
            store=self.store,
            clock=self.clock,
            wanted=selection.check(self.schema),
            is_packed=is_packed,
        )

    def contents(self, reading: Reading, time: int) -> AsyncGenerator[pa.Table, None]:
        """Yield the contents at a resolved time. Concurrent merges do not change the result.

        Raises:
            ReadOvertaken: parts not read yet were merged and deleted.
            AsOfBeforeSince: the time is no longer readable.
            UsageError, CorruptionError, LocationError: see `Reading.contents`.
        """
        era = self.era_at(time)

        def read() -> AsyncGenerator[pa.Table, None]:
            era.check_since(time)  # The newest known states may be later than those of the caller.
            return era._served(reading).contents(era.parts_until(time), time)

        return reread(read, partial(era._check_replaced, time))

    def changes_of(
        self, reading: Reading, since: int, until: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the updates between two resolved times; see `contents`, `Reading.changes`."""
        if self.former is not None and since < self.begins:
            own = self.era_at(max(until, self.begins))
            return changes_across(self.former, own, reading, since, until, at=self.begins)
        own = self.era_at(until)

        def read() -> AsyncGenerator[pa.Table, None]:
            own.check_since(since)
            return own._served(reading).changes(own.parts_between(since, until), since, until)

        return reread(read, partial(own._check_replaced, since))

    def _served(self, reading: Reading) -> Reading:
        if reading.rendition != self.rendition.id:
            reading = self._adopted(reading)
        schema = self.served(reading.schema)
        return reading if schema is reading.schema else replace(reading, schema=schema)

    def _adopted(self, reading: Reading) -> Reading:
        """Return the same read of this rendition, for a handle of another one.

        Raises:
            SchemaEvolved: this rendition lacks a column of the read, or has another type for it.
        """
        begins = self.begins if self.ends is None else self.ends
        needed = reading.wanted.needed
        check_same_columns(needed, reading.schema, self.schema, name=self.name, begins=begins)
        return replace(
            reading,
            rendition=self.rendition.id,
            schema=self.schema,
            appended=self.appended,
            is_unique=bool(self.unique_key),
        )

    def served(self, wanted: ShardSchema) -> ShardSchema:
        """Return a schema that reads all parts of the states, as of the last refresh.

        ``wanted`` is the present schema of the collection, or an earlier one.

        Raises:
            SchemaEvolved: a column of ``wanted`` was dropped; open the collection again.
        """
        return served_schema(max(self.states, key=lambda state: state.schema_id), wanted)

    async def _check_replaced(self, time: int, error: PartMissing) -> None:
        await self._refresh_own()
        require_replaced(self.states, error)
        self.check_since(time)

    def parts_until(self, time: int) -> list[Part]:
        """Return the parts of all shards with updates up to a resolved time."""
        return [part for snapshot in self.snapshots_at(time) for part in snapshot.parts]

    async def snapshots(self, as_of: When | None = None) -> list[ShardSnapshot]:
        """Return the snapshot of each shard at a time. No rows are read."""
        time = await self.resolve_as_of(as_of)
        return self.era_at(time).snapshots_at(time)

    def snapshots_at(self, time: int) -> list[ShardSnapshot]:
        """Return the snapshot of each shard of this rendition at a resolved time."""
        pairs = zip(self.shards, self.states, strict=True)
        # A later plan of the snapshot uses the shard alone, so it must have what the state has.
        schema = self.served(self.schema)
        return [
            shard.snapshot_of(state, time, schema=schema, newest=partial(self._newest, shard, time))
            for shard, state in pairs
        ]

    async def changes(
        self,
        since: When,
        until: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> pa.Table:
        """Return the updates after ``since`` and up to ``until``: consolidated, in time order.

        A snapshot as of ``since``, plus these updates, equals the snapshot as of ``until``. With
        ``columns``, the result is that for a collection with only these columns. With ``wait``, the
        call waits until ``until`` (by default ``since``) is complete; see `scan`.

        Raises:
            AsOfBeforeSince, AsOfNotComplete, DeadlineExceeded: see `resolve_as_of`.
            UsageError: ``until`` is before ``since``; or see `scan`.
        """
        wanted = RowSelection(columns=columns, where=where, limit=limit)
        reading = self.reading(wanted)
        first, last = await self.resolve_between(since, until, wait=wait, timeout_us=timeout_us)
        era = self.era_at(last)
        reading = era.own_reading(reading, wanted)
        found = [piece async for piece in era.changes_of(reading, first, last)]
        return pa.concat_tables([reading.narrow.updates.empty_table(), *found])

    async def listen(
        self,
        since: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> AsyncGenerator[Progress, None]:
        """Yield the changes after ``since``, by steps, as they become complete; see `changes`.

        Together with a snapshot as of ``since`` (by default the newest complete time), no update
        is missing and none comes twice. A step has all updates at times in ``[lower, upper)``; it
        may be empty. A reader that restarts continues at ``upper - 1``. A hold keeps its times.
        With ``wait``, ``since`` may be a time that is not complete yet.

        Raises:
            AsOfBeforeSince, AsOfNotComplete: see `resolve_as_of`. UsageError: see `scan`.
        """
        reading = self.reading(RowSelection(columns=columns, where=where))
        reached = await self.resolve_start(since, wait=wait)
        async with aclosing(follow(self, reading, reached)) as steps:
            async for progress in steps:
                yield progress

    def parts_between(self, since: int, until: int) -> list[Part]:
        """Return the parts of all shards with updates between two resolved times."""
        return [part for state in self.states for part in parts_between(state, since, until)]

    async def describe(self) -> CollectionDescription:
        """Return the schema, frontiers, renditions and sizes of the collection."""
        await self.refresh()
        since, upper, states = self.since, self.upper, self.states
        is_complete = not upper.is_empty and upper.time > 0
        own, shards = self.rendition, tuple(s.id for s in self.shards)
        rendition = RenditionDescription(id=own.id, active=True, shards=shards, name=own.called)
        return CollectionDescription(
            name=self.name,
            schema=tuple(ColumnDescription(f.name, sql_type_of(f)) for f in self.schema.data),
            key=tuple(self.schema.key) if self.table is None else self.table.key,
            since=None if since.is_empty else since.time,
            upper=None if upper.is_empty else upper.time,
            complete_to=format_time(upper.time - 1) if is_complete else None,
            renditions=(rendition,),
            rows=sum(s.totals.diffs for s in states),
            updates=sum(s.totals.rows for s in states),
            bytes=sum(s.totals.size_bytes for s in states),
            parts=sum(len(b.parts) for s in states for b in s.batches),
        )
