"""Shards: the handle of one durable, definite time-varying collection.

Opening a shard does no I/O. A shard that was never written has since = upper = {0}; its first write
creates it. The decisions are in `tidelog.persist.states.transition`; this module runs them on a
machine.
Source: persist, "API".
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind, check_whole
from tidelog.core.clock import Clock, in_time
from tidelog.core.frontier import Frontier, check_time
from tidelog.core.ids import NamedKind, ShardId, name_of
from tidelog.errors import AsOfNotComplete, PartMissing, UsageError
from tidelog.machine.language import Decision, R
from tidelog.machine.machine import Machine
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle import appending, leasing, listening
from tidelog.persist.handle.appender import Appender, open_appender
from tidelog.persist.handle.appending import AppendOptions, Updates
from tidelog.persist.handle.argument_checks import (
    check_fencing,
    check_flag,
    check_holds,
    check_owner,
    check_timeout,
    check_write_token,
)
from tidelog.persist.handle.leasing import LeasedReader
from tidelog.persist.handle.port import Progress
from tidelog.persist.read.by_spark import spark_room
from tidelog.persist.read.reader import PartReader, parts_until
from tidelog.persist.read.selection import ALL_ROWS, CheckedSelection, RowSelection
from tidelog.persist.read.snapshot import (
    ShardSnapshot,
    require_replaced,
    start_after,
)
from tidelog.persist.states import holding, transition
from tidelog.persist.states.evolution import (
    EvolveResult,
    EvolveVerdict,
    check_opened,
    decide_evolve,
    newest_schema,
    schema_to_write,
    served_schema,
)
from tidelog.persist.states.holding import Beats
from tidelog.persist.states.state import Diff, ShardLanguage, State, Token
from tidelog.persist.states.transition import AppendResult, Verdict
from tidelog.persist.write.writer import PartWriter
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import is_read_only, refuses_writes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.persist.maintenance.compactor import CompactionReport
    from tidelog.persist.maintenance.sweeper import ShardSweepReport

_log = logging.getLogger(__name__)
INLINE_STATE_BYTES_MAX = 256 * 1024
LEASE_US = 900_000_000


@refuses_writes()
@dataclass(slots=True, kw_only=True)
class Shard:
    """One shard. A writer needs a ``schema``, unless the shard exists and has its own.

    The shard's first write places ``first_holds``, whichever process writes it. Each call ends
    within ``timeout_us`` microseconds, if given; see `within`.
    """

    id: ShardId
    store: Store
    consensus: Consensus
    clock: Clock
    schema: ShardSchema | None = None
    first_holds: Mapping[str, Frontier] = field(default_factory=dict)
    cache_bytes: int = 0
    # The URL by which other processes reach the store; by default the store's own.
    location_url: str = ""
    timeout_us: int | None = None
    beats: Beats = field(init=False, default_factory=Beats)
    machine: Machine[State, Diff] = field(init=False)
    reader: PartReader = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Machine(
            key=self.id,
            prefix=f"shard/{self.id}",
            language=ShardLanguage(self.id),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )
        self.reader = PartReader(store=self.store, clock=self.clock, cache_bytes=self.cache_bytes)

    def __repr__(self) -> str:
        return f"<tidelog shard {name_of(NamedKind.SHARD, self.id) or self.id!s}>"

    @property
    def state(self) -> State:
        """The state as this handle last read it; other processes may have changed it since."""
        return self.machine.state

    async def refresh(self) -> State:
        """Read the newest state.

        Raises:
            UsageError: the handle was opened with another schema or key than the shard's.
        """
        state = await self._in_time(self.machine.refresh())
        check_opened(state, self.schema)
        return state

    async def upper(self) -> Frontier:
        """Return the upper; that of a registered shard is the upper of its transactions."""
        return await self._in_time(listening.complete_upper(self))

    async def since(self) -> Frontier:
        return (await self.refresh()).since_frontier

    def within(self, timeout_us: int | None) -> Shard:
        """Return a copy of this handle whose calls each end within ``timeout_us`` microseconds.

        This includes the calls of its leases, appenders and listeners, and waits for incomplete
        times. A call that takes longer raises DeadlineExceeded; the outcome of a write is then
        UNKNOWN.

        Raises:
            UsageError: ``timeout_us`` is not a number of microseconds.
        """
        check_timeout(timeout_us)
        limited = copy(self)
        limited.timeout_us = timeout_us
        return limited

    async def compare_and_append(
        self,
        updates: Updates,
        expected_upper: Frontier | int,
        upper: Frontier | int | None,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> AppendResult:
        """Append updates for ``[expected_upper, upper)`` if the shard's upper is the expected one.

        Shape: ``updates`` have the columns of `ShardSchema.updates`. They are an Arrow table or
            batch, a pandas or Polars DataFrame, an object with the Arrow stream interface or a list
            of dicts. A reader or an iterable of Arrow tables may have any length. None means no
            updates, and ``upper`` None finishes the shard.

        With the ``token`` of an earlier call that landed, the result is ALREADY. The state
        remembers the token of a ``named`` writer until `drop_writer`.

        Raises:
            UpperMismatch: upper is another; the error names it. NOT_APPLIED.
            DataDiffers: the token, of an unnamed writer, was used for other updates. NOT_APPLIED.
            UsageError: the updates do not fit the schema or the interval, or the shard was
                dropped. NOT_APPLIED.
            PartsSwept: the updates of a stream took too long to arrive. NOT_APPLIED.
            OutcomeUnknown: the retry is too old to be recognized. LocationError: the store failed.
        """
        done = await self.try_compare_and_append(
            updates, expected_upper, upper, token=token, named=named, holds=holds
        )
        if done.verdict is Verdict.MISMATCH:
            transition.check_not_dropped(self.state)
        return done.landed(expected=Frontier.of(expected_upper))

    async def try_compare_and_append(
        self,
        updates: Updates,
        expected_upper: Frontier | int,
        upper: Frontier | int | None,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> AppendResult:
        """Append as `compare_and_append` does, but return a MISMATCH instead of raising.

        Raises:
            The errors of `compare_and_append`, except UpperMismatch.
        """
        lower, until = Frontier.of(expected_upper), Frontier.of(upper)
        check_write_token(token)
        check_flag(named, "named")
        options = AppendOptions(token=token, named=named, holds=check_holds(holds))
        work = appending.compare_and_append(self, updates, lower, until, options)
        return await self._in_time(work, writes=True)

    async def commit_parts(
        self,
        parts: list[Part],
        lower: Frontier,
        upper: Frontier,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> AppendResult:
        """Commit parts that any process has written before; see `compare_and_append`."""
        options = AppendOptions(token=token, named=named, holds=holds or {})
        work = appending.commit_parts(self, parts, lower, upper, options)
        return await self._in_time(work, writes=True)

    async def append(
        self, updates: object, lower: Frontier | int, upper: Frontier | int | None
    ) -> AppendResult:
        """Make the shard hold these updates for ``[lower, upper)``, whichever writer brings them.

        ``updates`` as in `compare_and_append`, but a stream is read to its end first. Several
        writers may bring the same data, cut at different times. Updates at times below the
        shard's upper are compared with the shard's: by the sums that the state remembers, or by
        reading. The others are written. The verdict is ALREADY if there are no others.

        Raises:
            UpperMismatch: the shard's upper is below ``lower``, so a gap would remain. NOT_APPLIED.
            UsageError: the shard was dropped. NOT_APPLIED.
            DataDiffers: the shard has other updates at these times. NOT_APPLIED.
            AsOfBeforeSince: updates at these times can no longer be read. NOT_APPLIED.
            CorruptionError, LocationError: reading them failed. NOT_APPLIED.
        """
        work = appending.append(self, updates, Frontier.of(lower), Frontier.of(upper))
        return await self._in_time(work, writes=True)

    async def appender(self, name: str, *, heartbeat_us: int = 0) -> Appender:
        """Return the writer of a name, which appends one interval after the other.

        Raises:
            UsageError: the name is not valid. LocationError: the store failed.
        """
        check_owner(name, "writer")
        check_whole(heartbeat_us, "heartbeat_us")
        return await self._in_time(open_appender(self, name, heartbeat_us=heartbeat_us))

    async def drop_writer(self, name: str) -> bool:
        """Forget a named writer; return True if it existed.

        Raises:
            UsageError: the name is not a text.
        """
        check_kind(name, str, "the name of a writer must be a str")
        return await self._decide(lambda state: transition.decide_drop_writer(state, name))

    async def snapshot(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> ShardSnapshot:
        """Return the contents at ``as_of``: all rows and columns, or the selected ones.

        ``where`` is a condition on a row in DuckDB's dialect. Omitted rows and columns are not
        read, if the bounds of parts and row groups allow it. With ``wait``, the call waits until
        ``as_of`` is complete; ``timeout_us``, or the limit of `within`, ends the wait.

        Raises:
            UsageError: the shard has no such column, or the condition is not valid.
            AsOfBeforeSince: ``as_of`` is before since; the message has the earliest readable time.
            AsOfNotComplete: ``as_of`` is not below upper, and the caller does not wait.
            DeadlineExceeded: ``as_of`` did not become complete in time.
        """
        check_time(as_of)
        check_flag(wait, "wait")
        check_timeout(timeout_us)
        asked = RowSelection(columns=columns, where=where)
        checked = None if self.schema is None else asked.check(self.schema)
        state = await self.wait_for_upper(as_of, wait=wait, timeout_us=timeout_us)
        checked = checked or asked.check(served_schema(state, self.schema))
        # The state of a registered shard gets its transactions from another connection.
        newest = partial(self.wait_for_upper, as_of) if is_read_only(self.store) else None
        found = self.snapshot_of(state, as_of, checked, newest=newest)
        self.report_before_data(as_of)
        return found

    def report_before_data(self, as_of: int) -> None:
        """Log a warning if the shard has data, and all of it is later than the time read."""
        first = start_after([self.state], as_of)
        if first is not None:
            _log.warning(
                "the time %d is before all data of the shard %r, which begins at %d: check the "
                "unit of the time",
                as_of,
                name_of(NamedKind.SHARD, self.id) or self.id,
                first,
            )

    def snapshot_of(
        self,
        state: State,
        as_of: int,
        selection: CheckedSelection | None = None,
        *,
        upper: Frontier | None = None,
        schema: ShardSchema | None = None,
        newest: Callable[[], Awaitable[State]] | None = None,
    ) -> ShardSnapshot:
        """Return the contents at a time that ``state``, read before, is complete for: no request.

        ``upper`` replaces the state's own, if the state is known to be complete further. ``schema``
        is the schema of an earlier plan, which the reader already has. ``newest`` reads the shard
        again, complete for the time; it is needed with ``upper``.

        Raises:
            AsOfBeforeSince: see `snapshot`. AsOfNotComplete: the state is not complete at that
                time.
            SchemaEvolved: a column of the reader's schema was dropped.
        """
        state.check_readable(as_of)
        reached = upper or state.upper_frontier
        if not reached.passed(as_of):
            raise AsOfNotComplete(
                "the time is not complete yet: read at an earlier time", upper=reached
            )
        served = served_schema(state, schema or self.schema)

        async def again(error: PartMissing) -> ShardSnapshot:
            found = await (newest or self.refresh)()
            require_replaced([found], error)
            return self.snapshot_of(found, as_of, selection, schema=served, newest=newest)

        async def held(lease_us: int, purpose: str) -> tuple[ShardSnapshot, int]:
            if newest is not None:
                await newest()
            reader = await self.lease(as_of, lease_us=lease_us, fixed=True, purpose=purpose)
            # Parts planned before the hold may be deleted, so plan again.
            planned = self.snapshot_of(self.state, as_of, selection, newest=newest)
            return planned, reader.until_us or 0

        return ShardSnapshot(
            shard=self.id,
            schema=served,
            as_of=as_of,
            parts=tuple(parts_until(state, as_of)),
            reader=self.reader,
            again=again,
            held=held,
            location_url=self.location_url,
            selection=selection or ALL_ROWS.check(served),
        )

    async def check_replaced(self, error: PartMissing) -> State:
        """Return the newest state, if it names other parts instead of the missing one.

        Raises:
            PartMissing: the state still names the part, so the object is lost. LocationError: the
                store failed.
        """
        state = await self.refresh()
        require_replaced([state], error)
        return state

    async def listen(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> AsyncGenerator[Progress, None]:
        """Yield all updates at times after ``as_of``, by intervals, as they become complete.

        Together with a snapshot at the same ``as_of``, no update is missing and none comes twice.
        With ``columns``, updates are those of a shard with only these columns. With ``wait``, the
        listener first waits until ``as_of`` itself is complete.

        Raises:
            AsOfBeforeSince: the times after ``as_of`` may no longer be distinct.
            AsOfNotComplete: ``as_of`` is not below upper, and the caller does not wait.
            UsageError: no time follows ``as_of``; otherwise see `snapshot`.
            DeadlineExceeded: the next interval did not come within the limit of `within`.
        """
        check_flag(wait, "wait")
        selection = RowSelection(columns=columns, where=where)
        async with aclosing(listening.listen(self, as_of, selection, wait=wait)) as stream:
            async for progress in stream:
                yield progress

    async def hold(
        self, name: str, since: Frontier | int | None = None, *, token: int | None = None
    ) -> Frontier:
        """Place a critical hold (default: at the shard's since), or find it; return its since.

        A ``token`` greater than the hold's takes the hold over. All later calls with a smaller
        token are refused.

        Raises:
            UsageError: ``since`` is below the shard's, or past upper. HoldFenced: see above.
        """
        check_owner(name, "hold")
        check_fencing(token)
        wanted = None if since is None else Frontier.of(since)
        schema = b"" if self.schema is None else self.schema.encoded
        decide = partial(holding.decide_hold, name=name, schema=schema, token=token)
        return await listening.reaching(self, wanted, partial(self._since, decide))

    async def move_hold(
        self, name: str, since: Frontier | int | None, *, token: int | None = None
    ) -> Frontier:
        """Advance the named hold; return the shard's since, the least of all holds.

        Raises:
            UsageError: no such hold, or ``since`` is past upper. HoldFenced: see `hold`.
        """
        check_kind(name, str, "the name of a hold must be a str")
        check_fencing(token)
        wanted = Frontier.of(since)
        decide = partial(holding.decide_advance_hold, name=name, token=token)
        return await listening.reaching(self, wanted, partial(self._since, decide))

    async def _since(self, decide: Callable[..., Decision[Diff, R]], at: Frontier | None) -> R:
        return await self._decide(partial(decide, since=at))

    async def drop_hold(self, name: str, *, token: int | None = None) -> bool:
        """Drop the named hold; return True if it existed. Since follows at the next move of a hold.

        Raises:
            UsageError: the name is not a text. HoldFenced: see `hold`.
        """
        check_kind(name, str, "the name of a hold must be a str")
        check_fencing(token)
        return await self._decide(lambda state: holding.decide_drop_hold(state, name, token=token))

    async def lease(
        self,
        since: Frontier | int | None = None,
        *,
        lease_us: int = LEASE_US,
        fixed: bool = False,
        purpose: str = "",
    ) -> LeasedReader:
        """Return a reader whose readable parts are kept while it renews its lease.

        A ``fixed`` lease is not renewed and outlives this process; it ends after ``lease_us``.
        Close the reader when it is no longer needed; otherwise a collector ends its lease later.

        Raises:
            UsageError: ``since`` (default: the shard's) is below the shard's, or past upper.
        """
        start = None if since is None else Frontier.of(since)
        check_flag(fixed, "fixed")
        opened = partial(
            leasing.open_lease, self, lease_us=lease_us, is_fixed=fixed, purpose=purpose
        )
        return await self._in_time(listening.reaching(self, start, opened), writes=True)

    async def end_leases(self) -> int:
        """End the leases that no reader renews, as far as known here; return their number."""
        return await self._in_time(leasing.end_leases(self))

    async def evolve_schema(
        self, schema: pa.Schema, *, expected: int | None = None
    ) -> EvolveResult:
        """Make ``schema`` the shard's schema, if the id of the current one is ``expected``.

        Columns are dropped, or added at the end; stored data is not rewritten. Handles with an
        earlier schema can no longer write. They can still read, unless one of their columns was
        dropped.

        Raises:
            SchemaIncompatible: the change is not allowed; the message lists the allowed changes.
            UsageError: the shard was never written, or is finished.
        """
        check_kind(schema, pa.Schema, "a schema must be a pyarrow.Schema")
        if expected is not None:
            check_whole(expected, "expected")
        done = await self._decide(lambda state: decide_evolve(state, schema, expected))
        if self.schema is not None and done.verdict is not EvolveVerdict.MISMATCH:
            self.schema = newest_schema(self.state)
        return done

    async def schemas(self) -> list[pa.Schema]:
        """Return the columns of each schema that the shard has had, by their ids."""
        state = await self.refresh()
        return list(newest_schema(state).known) if state.schema else []

    async def compact(
        self, *, full: bool = False, spark: SparkSession | None = None
    ) -> CompactionReport:
        """Merge batches that are due, or all; see `tidelog.persist.maintenance.compactor.compact`.

        With a Spark session, its executors do the large merges.

        Raises:
            UsageError: ``full`` is neither True nor False.
        """
        check_flag(full, "full")
        from tidelog.persist.maintenance.compactor import HERE, compact

        merger = HERE if spark is None else spark_room("merger").SparkMerger(spark)
        return await self._in_time(compact(self, full=full, merger=merger))

    async def collect(self, *, after_us: int | None = None) -> int:
        """Delete objects that merges replaced at least ``after_us`` ago; return their number.

        This leaves readers that planned earlier that much time: one hour by default. Objects held
        by a lease are kept; leases that no reader renews are ended first. For a dropped shard,
        the past of its state is deleted too.

        Raises:
            UsageError: ``after_us`` is not a number of microseconds.
            LocationError: the store failed; no state names an object that was deleted.
        """
        if after_us is not None:
            check_whole(after_us, "after_us")
        await self.end_leases()
        if self.state.is_dropped:
            # The move of the last hold to the end of a finished shard empties since. The state
            # still names parts then.
            await self._decide(transition.decide_drop)
        removal = self.machine.settle if self.state.is_dropped else self.machine.collect
        return await self._in_time(removal(after_us=after_us))

    async def sweep(self) -> ShardSweepReport:
        """Delete unnamed objects; see `tidelog.persist.maintenance.sweeper.sweep`."""
        from tidelog.persist.maintenance.sweeper import sweep

        return await self._in_time(sweep(self))

    async def drop(self) -> int:
        """Finish the shard and give up all its times; return the number of objects that it named.

        The next `collect` deletes them. The name is never used again. To finish a shard and keep
        its times readable, append with an upper of None instead.

        Raises:
            ShardRegistered: transactions write the shard. LocationError: the store failed.
        """
        return await self._decide(transition.decide_drop)

    def writer(self, schema: ShardSchema | None = None) -> PartWriter:
        """Return a writer of this shard's parts, by default in the handle's schema."""
        return PartWriter(
            store=self.store,
            clock=self.clock,
            shard=self.id,
            schema=schema or self.written_schema(),
            write_epoch=self.state.write_epoch,
        )

    @property
    def may_inline(self) -> bool:
        return self.state.totals.inline_bytes < INLINE_STATE_BYTES_MAX

    async def wait_for_upper(
        self, time: int, *, wait: bool = True, timeout_us: int | None = None
    ) -> State:
        """Wait until ``time`` is complete. A poll costs one request, and the pauses grow.

        Raises:
            AsOfNotComplete, DeadlineExceeded: see `snapshot`.
        """
        return await listening.wait_for_upper(self, time, wait=wait, timeout_us=timeout_us)

    def written_schema(self) -> ShardSchema:
        """Return the schema in which this handle writes.

        Raises:
            UsageError: it has none. SchemaEvolved: its schema is no longer the newest.
        """
        schema = schema_to_write(self.state, self.schema)
        if schema is None:
            raise UsageError(
                "the shard was opened without a schema: open it with its schema to write to it",
                shard=self.id,
            )
        return schema

    async def _decide(self, decide: Callable[[State], Decision[Diff, R]]) -> R:
        def checked(state: State) -> Decision[Diff, R]:
            check_opened(state, self.schema)
            return decide(state)

        return await self._in_time(self.machine.commit(checked), writes=True)

    async def _in_time(self, work: Coroutine[Any, Any, R], *, writes: bool = False) -> R:
        return await in_time(self.clock, work, self.timeout_us, writes=writes)
