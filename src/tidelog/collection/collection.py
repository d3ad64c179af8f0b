"""Collections for readers: the shards of the active rendition, read as one.

Source: storage, "Fat client"; design page 6, "Times".
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA, RenditionInfo, TableInfo
from tidelog.collection.catalog.lost import check_new, check_states
from tidelog.collection.following import checked_patience, follow, until_complete
from tidelog.collection.formats.times import When, format_time, is_now, parse_time
from tidelog.collection.formats.types import sql_type_of
from tidelog.collection.hold_all import (
    check_newest_stays,
    check_not_own,
    drop_hold,
    move_hold,
    place_hold,
)
from tidelog.collection.reading import (
    CollectionDescription,
    ColumnDescription,
    Contents,
    Reading,
    RenditionDescription,
)
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier, join, meet
from tidelog.core.ids import ShardId
from tidelog.errors import (
    AsOfBeforeSince,
    AsOfNotComplete,
    NoSuchCollection,
    PartMissing,
    UsageError,
)
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import sum_up
from tidelog.persist.handle.listening import caught_up
from tidelog.persist.handle.port import Progress
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.reader import parts_between
from tidelog.persist.read.rereading import reread
from tidelog.persist.read.selection import RowSelection, repeated
from tidelog.persist.read.snapshot import ShardSnapshot, require_replaced, start_after
from tidelog.persist.states.evolution import served_schema, with_schemas
from tidelog.persist.states.state import State
from tidelog.persist.transactions.reading import complete_states
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes

_log = logging.getLogger(__name__)


@refuses_writes()
@dataclass(slots=True, kw_only=True)
class Collection:
    """A handle of one collection. Its reads are definite: at one time, each has the same result."""

    name: str
    rendition: RenditionInfo
    store: Store
    consensus: Consensus
    clock: Clock
    is_errors: bool = False
    appended: bool = False  # Its rows are never deleted or replaced.
    table: TableInfo | None = None
    transactions: Transactions | None = None  # That write the shards; only a table has them.
    schema: ShardSchema = field(init=False)
    shards: list[Shard] = field(init=False)
    _beside: list[Shard] = field(init=False)
    _complete: list[State] = field(init=False, default_factory=list)

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

    async def refresh(self) -> None:
        """Read the newest state of each shard.

        Raises:
            CorruptionError: the state of a shard is lost or set back.
            LocationError: the store failed.
        """
        known = self.all_shards
        if self.transactions is not None:
            found = await complete_states(self.transactions, known)
            # An alteration that was interrupted has not given its schema to all shards.
            self._complete = [with_schemas(state, self.rendition.schemas) for state in found]
            return
        for shard in known:
            await shard.refresh()
        if self.schema.known:
            # The outputs of an altered source get its schema with their next rows.
            self._complete = [self._altered(shard) for shard in known]
        if self.table is not None and self.upper == Frontier.at(0):
            await check_new(self.shards[0])
        if self.rendition.remap is not None and self.upper == Frontier.at(0):
            remap = self._shard(self.rendition.remap, None)  # Only its state is read, not its rows.
            await remap.refresh()
            # `check_states` needs the order of commits, in which errors come last.
            await check_states(known[1:] + known[:1] if self.is_errors else known, remap)

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
        return join([state.since_frontier for state in self.states])

    @property
    def upper(self) -> Frontier:
        """Return the upper of the collection and its errors, as of the last refresh."""
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
        await self.refresh()
        since = None if at is None else Frontier.at(self._time(at, "at"))
        return await place_hold(self.all_shards, name, since, token=token)

    async def move_hold(self, name: str, at: When, *, token: int | None = None) -> Frontier:
        """Move a hold forward to ``at``; return the earliest readable time of the collection.

        Raises:
            NoSuchHold: no hold has the name.
            UsageError: the newest contents would become unreadable; or see `hold`.
            HoldFenced, LocationError: see `hold`.
        """
        check_not_own(name)
        since = Frontier.at(self._time(at, "at"))
        await self.refresh()
        check_newest_stays(self.all_states, since)
        return await move_hold(self.all_shards, name, since, token=token)

    async def drop_hold(self, name: str, *, token: int | None = None) -> bool:
        """Release a hold; return True if it existed.

        Raises:
            UsageError, HoldFenced, LocationError: see `hold`.
        """
        check_not_own(name)
        await self.refresh()
        return await drop_hold(self.all_shards, name, token=token)

    async def resolve_as_of(
        self,
        as_of: When | None,
        *,
        what: str = "as_of",
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> int:
        """Return the time to read: ``as_of``, or by default the newest complete time.

        A time is as in `parse_time`, or relative: now, today, yesterday, -1h. ``now`` is the newest
        complete time, or the clock's time if that is earlier. With ``wait``, the call waits until
        the time is complete; ``timeout_us`` ends the wait, and alone implies ``wait``.

        Raises:
            AsOfBeforeSince: the time is no longer readable; the message has the earliest one.
            AsOfNotComplete: the time is not complete yet; the message has the newest complete one.
            DeadlineExceeded: the time did not become complete in time.
            UsageError: ``as_of`` is not a time.
        """
        patience = checked_patience(wait, timeout_us)
        asked = None if as_of is None else self._time(as_of, what)
        await until_complete(self, None if is_now(as_of) else asked, patience)
        self._check_there()
        upper = self.upper
        if upper == Frontier.at(0):
            raise AsOfNotComplete(f"{self.name!r} has no complete time yet: {self._begin}")
        if asked is None:
            if upper.is_empty:
                raise UsageError(
                    "the collection is finished, so it has no newest time: pass the time to read"
                )
            return upper.time - 1
        if is_now(as_of) and not upper.is_empty:
            asked = min(asked, upper.time - 1)
        self.check_since(asked, as_of)
        if not upper.passed(asked):
            raise AsOfNotComplete(
                f"{self.name!r} is complete up to {format_time(upper.time - 1)}: read at that "
                f"time or earlier, or {self._more}{_unit_of(as_of)}",
                asked=format_time(asked),
            )
        self._report_time_before_data(asked, as_of)
        return asked

    @property
    def _begin(self) -> str:
        """Return the remedy if no time is complete."""
        if self.table is not None:
            return "its creation was interrupted, so create the table again, or write to it"
        return "ingest its source first, for example with 'tidelog ingest'"

    @property
    def _more(self) -> str:
        """Return the remedy if a later time is wanted."""
        return "ingest more" if self.table is None else "write to the table"

    def _report_time_before_data(self, asked: int, as_of: When | None) -> None:
        """Log a warning if the collection has data, and all of it is later than the time read."""
        first = start_after(self.states, asked)
        if first is None:
            return
        _log.warning(
            "%s is before all data of %r, which begins at %s%s",
            format_time(asked),
            self.name,
            format_time(first),
            _unit_of(as_of),
        )

    def _time(self, when: When, what: str) -> int:
        return parse_time(when, what=what, now_us=self.clock.now_us())

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
        reading = self.reading(RowSelection(columns=columns, where=where, limit=limit))
        time = await self.resolve_as_of(as_of, wait=wait, timeout_us=timeout_us)
        return Contents(as_of=time, reading=reading, collection=self)

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
        reading = self.reading(RowSelection(columns=columns, where=where, limit=limit))
        time = await self.resolve_as_of(as_of, wait=wait, timeout_us=timeout_us)
        found = [piece async for piece in self.contents(reading, time)]
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
        reading = self.reading(RowSelection(columns=columns, where=where, limit=limit))
        time = await self.resolve_as_of(as_of, wait=wait, timeout_us=timeout_us)
        async with aclosing(self.rows_of(reading, time)) as found:
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
        return reread(
            lambda: self._served(reading).contents(self.parts_until(time), time),
            partial(self._check_replaced, time),
        )

    def changes_of(
        self, reading: Reading, since: int, until: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the updates between two resolved times; see `contents`, `Reading.changes`."""
        return reread(
            lambda: self._served(reading).changes(self.parts_between(since, until), since, until),
            partial(self._check_replaced, since),
        )

    def _served(self, reading: Reading) -> Reading:
        schema = self.served(reading.schema)
        return reading if schema is reading.schema else replace(reading, schema=schema)

    def served(self, wanted: ShardSchema) -> ShardSchema:
        """Return a schema that reads all parts of the states, as of the last refresh.

        ``wanted`` is the present schema of the collection, or an earlier one.

        Raises:
            SchemaEvolved: a column of ``wanted`` was dropped; open the collection again.
        """
        return served_schema(max(self.states, key=lambda state: state.schema_id), wanted)

    async def _check_replaced(self, time: int, error: PartMissing) -> None:
        await self.refresh()
        require_replaced(self.states, error)
        self.check_since(time)

    def parts_until(self, time: int) -> list[Part]:
        """Return the parts of all shards with updates up to a resolved time."""
        return [part for snapshot in self._snapshots(time) for part in snapshot.parts]

    async def snapshots(self, as_of: When | None = None) -> list[ShardSnapshot]:
        """Return the snapshot of each shard at a time. No rows are read."""
        time = await self.resolve_as_of(as_of)
        return self._snapshots(time)

    def _snapshots(self, time: int) -> list[ShardSnapshot]:
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
        reading = self.reading(RowSelection(columns=columns, where=where, limit=limit))
        first, last = await self.resolve_between(since, until, wait=wait, timeout_us=timeout_us)
        found = [piece async for piece in self.changes_of(reading, first, last)]
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

    async def resolve_start(
        self, since: When | None, *, wait: bool = False, timeout_us: int | None = None
    ) -> int:
        """Return the time after which a listener starts; see `listen`, `resolve_as_of`."""
        if since is None or is_now(since):
            return await self.resolve_as_of(since, what="since", wait=wait, timeout_us=timeout_us)
        patience = checked_patience(wait, timeout_us)
        reached = self._time(since, "since")
        await until_complete(self, reached, patience)
        self.check_since(reached, since)
        if not self.upper.passed(reached):
            raise AsOfNotComplete(
                "since= is not complete yet: pass an earlier since=",
                asked=format_time(reached),
            )
        return reached

    def parts_between(self, since: int, until: int) -> list[Part]:
        """Return the parts of all shards with updates between two resolved times."""
        return [part for state in self.states for part in parts_between(state, since, until)]

    async def resolve_between(
        self,
        since: When,
        until: When | None,
        *,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> tuple[int, int]:
        """Return the resolved times of a read of changes; see `changes`.

        Raises:
            AsOfBeforeSince, AsOfNotComplete, DeadlineExceeded: see `resolve_as_of`.
            UsageError: ``until`` is before ``since``, or a value is not a time.
        """
        patience = checked_patience(wait, timeout_us)
        first = self._time(since, "since")
        if until is None and patience.waits:
            await until_complete(self, first, patience)
            wait, timeout_us = False, None
        last = await self.resolve_as_of(until, what="until", wait=wait, timeout_us=timeout_us)
        self.check_since(first, since)
        if last < first and until is None:
            raise UsageError(
                f"no time after since= is complete yet: pass an earlier since=, or {self._more}",
                since=format_time(first),
                complete_to=format_time(last),
            )
        if last < first:
            raise UsageError(
                "until= is before since=: pass a later until=",
                since=format_time(first),
                until=format_time(last),
            )
        return first, last

    async def describe(self) -> CollectionDescription:
        """Return the schema, frontiers, renditions and sizes of the collection."""
        await self.refresh()
        since, upper = self.since, self.upper
        states = self.states
        is_complete = not upper.is_empty and upper.time > 0
        rendition = RenditionDescription(
            id=self.rendition.id, active=True, shards=tuple(s.id for s in self.shards)
        )
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

    def _check_there(self) -> None:
        if self.since.is_empty:
            raise NoSuchCollection(
                f"the collection {self.name!r} was dropped after this process opened it: open it "
                "again if a new collection has its name"
            )

    def check_since(self, as_of: int, given: When | None = None) -> None:
        """Check that a resolved time is readable, as of the last refresh.

        Raises:
            AsOfBeforeSince: it is not; the message has the earliest readable time.
        """
        since = self.since
        self._check_there()
        if as_of < since.time:
            raise AsOfBeforeSince(
                f"{self.name!r} is readable since {format_time(since.time)}: read at a later "
                f"time{_unit_of(given)}",
                asked=format_time(as_of),
            )


def _unit_of(given: When | None) -> str:
    """Return a note on the unit of a time that the caller gave as a number."""
    return "; a number counts milliseconds" if str(given).strip().isdigit() else ""
