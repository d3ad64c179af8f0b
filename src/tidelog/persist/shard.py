"""Shards: the handle through which one durable, definite time-varying collection is used.

Opening a shard does no I/O; a shard that nobody has written has since = upper = {0}, and is made
by its first write. Decisions are in `tidelog.persist.transition`; this runs them through a machine.
Source: persist, "API".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.clock import Clock, backoff_us
from tidelog.consensus.port import Consensus
from tidelog.errors import (
    AsOfNotComplete,
    DeadlineExceeded,
    PartMissing,
    PartsSwept,
    UpperMismatch,
    UsageError,
)
from tidelog.frontier import TIME_MAX, Frontier, check_time
from tidelog.ids import ShardId, new_writer_id
from tidelog.machine.machine import Machine
from tidelog.persist import transition
from tidelog.persist.covered import compare_covered, from_time
from tidelog.persist.language import ShardLanguage
from tidelog.persist.part import Part
from tidelog.persist.reader import PartReader, parts_between, parts_until
from tidelog.persist.schema import ShardSchema, decode_schema, encode_schema
from tidelog.persist.snapshot import ShardSnapshot, check_readable, require_replaced
from tidelog.persist.state import Diff, State, Token
from tidelog.persist.transition import Appended, CompareAndAppend, Verdict
from tidelog.persist.updates import consolidate, prepare_updates
from tidelog.persist.writer import PartWriter
from tidelog.store.port import Store

if TYPE_CHECKING:
    from tidelog.persist.compactor import Compacted
    from tidelog.persist.sweeper import ShardSwept

INLINE_STATE_BYTES_MAX = 256 * 1024
WRITES_MAX = 3
POLL_FIRST_US, POLL_MOST_US = 20_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """What a listener learns: the updates at times in ``[lower, upper)``, and that they are all."""

    updates: pa.Table
    lower: Frontier
    upper: Frontier


@dataclass(slots=True, kw_only=True)
class Shard:
    """One shard. Give ``schema`` to write; without it, the shard's own is used once it is written.

    ``first_holds`` are placed by the shard's first write, whoever does it.
    """

    id: ShardId
    store: Store
    consensus: Consensus
    clock: Clock
    schema: ShardSchema | None = None
    first_holds: Mapping[str, Frontier] = field(default_factory=dict)
    cache_bytes: int = 0
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
        return f"<tidelog shard {self.id!s}>"

    @property
    def state(self) -> State:
        """Return the state as this handle knows it, which others may have moved on from."""
        return self.machine.state

    async def refresh(self) -> State:
        """Read the newest state."""
        return await self.machine.refresh()

    async def upper(self) -> Frontier:
        return (await self.refresh()).upper_frontier

    async def since(self) -> Frontier:
        return (await self.refresh()).since_frontier

    async def compare_and_append(
        self,
        updates: pa.Table | None,
        expected_upper: Frontier | int,
        upper: Frontier | int | None,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> Appended:
        """Append updates for ``[expected_upper, upper)`` if the shard's upper is the expected one.

        Shape: ``updates`` as in `ShardSchema.updates`, or None for none. ``upper`` None finishes
            the shard.
        With the ``token`` of an earlier call, a write that landed then is answered ALREADY.

        Raises:
            UsageError: the updates do not fit the schema or the interval. NOT_APPLIED.
            OutcomeUnknown: a retry too old to be told. LocationError: the store failed.
        """
        lower, until = Frontier.of(expected_upper), Frontier.of(upper)
        schema = self._written_schema()
        rows = 0 if updates is None else updates.num_rows
        transition.check_interval(lower, until, rows=rows)
        ready: pa.Table | None = None
        if updates is not None and rows:
            ready = await self.clock.offload(
                lambda: prepare_updates(updates, schema, lower=lower, upper=until)
            )

        async def write() -> Appended:
            parts: list[Part] = []
            if ready is not None:
                parts = await self.writer().write(ready, inline=self.may_inline)
            return await self.commit_parts(
                parts, lower, until, token=token, named=named, holds=holds or {}
            )

        for _ in range(WRITES_MAX - 1):
            with suppress(PartsSwept):
                return await write()
        return await write()

    async def commit_parts(
        self,
        parts: list[Part],
        lower: Frontier,
        upper: Frontier,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> Appended:
        """Commit parts that were written before, by whomever; see `compare_and_append`."""
        command = CompareAndAppend(
            schema=encode_schema(self._written_schema()),
            parts=parts,
            expected_upper=lower,
            upper=upper,
            token=token or (new_writer_id(self.clock), 0),
            named=named,
            fresh=token is None,
            holds=holds or {},
            first_holds=self.first_holds,
        )
        return await self.machine.commit(lambda state: transition.decide_append(state, command))

    async def append(
        self, updates: pa.Table, lower: Frontier | int, upper: Frontier | int | None
    ) -> bool:
        """Make the shard hold these updates for ``[lower, upper)``, whoever writes them.

        Several writers may bring the same data, cut at other times. Times that are covered already
        are dropped; gives False if their data could no longer be compared.

        Raises:
            UpperMismatch: the shard's upper is below ``lower``: there would be a hole. NOT_APPLIED.
            DataDiffers: others wrote other data for these times. NOT_APPLIED.
        """
        start, until = Frontier.of(lower), Frontier.of(upper)
        schema = self._written_schema()
        transition.check_interval(start, until, rows=updates.num_rows)
        ready = await self.clock.offload(
            lambda: prepare_updates(updates, schema, lower=start, upper=until)
        )
        checked = True
        state = await self.refresh()
        while True:
            reached = state.upper_frontier
            if reached < start:
                raise UpperMismatch("the shard is not written up to lower", upper=reached)
            covered = min(until, reached)
            if start < covered:
                checked &= compare_covered(state, schema, ready, start, covered)
            if until <= reached:
                return checked
            rest = from_time(ready, reached.time)
            if (await self.compare_and_append(rest, reached, until)).verdict is Verdict.COMMITTED:
                return checked
            start, ready = reached, rest
            state = self.state

    async def snapshot(self, as_of: int, *, timeout_us: int | None = None) -> ShardSnapshot:
        """Return the contents at ``as_of``, once they are complete.

        Raises:
            AsOfBeforeSince: since is past it; the message has the smallest time that can be read.
            DeadlineExceeded: it was not complete within ``timeout_us`` (None waits for ever).
        """
        check_time(as_of)
        state = await self.wait_for_upper(as_of, timeout_us=timeout_us)
        return self.snapshot_of(state, as_of)

    def snapshot_of(self, state: State, as_of: int) -> ShardSnapshot:
        """Return the contents at a time that ``state``, read before, is complete for: no request.

        Raises:
            AsOfBeforeSince: see `snapshot`. AsOfNotComplete: the state does not reach so far.
        """
        check_readable(state, as_of)
        if not state.upper_frontier.passed(as_of):
            raise AsOfNotComplete(
                "the time is not complete yet: ask for an earlier one", upper=state.upper_frontier
            )
        schema = self.schema or decode_schema(state.schema)

        async def again(error: PartMissing) -> ShardSnapshot:
            return self.snapshot_of(await self.check_replaced(error), as_of)

        return ShardSnapshot(
            shard=self.id,
            schema=schema,
            as_of=as_of,
            parts=tuple(parts_until(state, as_of)),
            reader=self.reader,
            again=again,
        )

    async def check_replaced(self, error: PartMissing) -> State:
        """Return the newest state, if it names other parts in place of one that is missing.

        Raises:
            PartMissing: it does not: the object is lost. LocationError: the store failed.
        """
        state = await self.refresh()
        require_replaced([state], error)
        return state

    async def listen(self, as_of: int) -> AsyncIterator[Progress]:
        """Yield everything at times after ``as_of``, interval by interval, for as long as it comes.

        With a snapshot at the same ``as_of``, nothing is missing and nothing comes twice.

        Raises:
            AsOfBeforeSince: updates after ``as_of`` may no longer be told apart.
        """
        reached = check_time(as_of)
        while True:
            state = await self.wait_for_upper(reached + 1)
            check_readable(state, reached)
            schema = self.schema or decode_schema(state.schema)
            last = TIME_MAX if state.upper is None else state.upper - 1
            try:
                tables = await self.reader.read(parts_between(state, reached, last), schema)
            except PartMissing as error:
                await self.check_replaced(error)
                continue
            work = partial(consolidate, tables, schema, after=reached, until=last)
            found = await self.clock.offload(work)
            yield Progress(found, Frontier.at(reached + 1), state.upper_frontier)
            if state.upper is None:
                return
            reached = last

    async def hold(self, name: str, since: Frontier | int | None = None) -> Frontier:
        """Place the named hold (at since unless told), or find it; gives where it is."""
        wanted = None if since is None else Frontier.of(since)
        schema = encode_schema(self._written_schema())
        return await self.machine.commit(
            lambda state: transition.decide_hold(state, name, wanted, schema=schema)
        )

    async def downgrade_since(self, name: str, since: Frontier | int | None) -> Frontier:
        """Move the named hold up; gives the shard's since, the least of all holds."""
        wanted = Frontier.of(since)
        return await self.machine.commit(
            lambda state: transition.decide_downgrade(state, name, wanted)
        )

    async def release(self, name: str) -> bool:
        """Drop the named hold; since moves only with the next downgrade."""
        return await self.machine.commit(lambda state: transition.decide_release(state, name))

    async def compact(self, *, full: bool = False) -> Compacted:
        """Merge batches that are due, or all; see `tidelog.persist.compactor.compact`."""
        from tidelog.persist.compactor import compact

        return await compact(self, full=full)

    async def collect(self, *, after_us: int | None = None) -> int:
        """Delete objects that merges made vanish ``after_us`` ago, or earlier; return how many.

        Readers who planned before have so long to read; an hour, unless told.

        Raises:
            LocationError: the store failed: what was deleted is named by nothing.
        """
        return await self.machine.collect(after_us=after_us)

    async def sweep(self) -> ShardSwept:
        """Delete what nothing names; see `tidelog.persist.sweeper.sweep`."""
        from tidelog.persist.sweeper import sweep

        return await sweep(self)

    async def bury(self) -> int:
        """Finish the shard for all, and give up what it holds; return how many objects that are.

        They go by `collect`.
        """
        return await self.machine.commit(transition.decide_tombstone)

    def writer(self) -> PartWriter:
        """Return what writes this shard's parts."""
        return PartWriter(
            store=self.store,
            clock=self.clock,
            shard=self.id,
            schema=self._written_schema(),
            write_epoch=self.state.write_epoch,
        )

    @property
    def may_inline(self) -> bool:
        return self.state.totals.inline_bytes < INLINE_STATE_BYTES_MAX

    async def wait_for_upper(self, time: int, *, timeout_us: int | None = None) -> State:
        """Wait until ``time`` is complete; a poll costs one request, and they grow rarer."""
        start = self.clock.monotonic_us()
        attempt = 0
        while True:
            state = await self.refresh()
            if state.upper_frontier.passed(time):
                return state
            if timeout_us is not None and self.clock.monotonic_us() - start >= timeout_us:
                raise DeadlineExceeded(
                    "the time is not complete yet: ask for an earlier one, or wait longer",
                    asked=time,
                    upper=state.upper_frontier,
                )
            pause = backoff_us(attempt, self.clock, first_us=POLL_FIRST_US, most_us=POLL_MOST_US)
            left = pause if timeout_us is None else start + timeout_us - self.clock.monotonic_us()
            await self.clock.sleep(max(0, min(pause, left)))
            attempt += 1

    def _written_schema(self) -> ShardSchema:
        if self.schema is None and self.state.schema:
            self.schema = decode_schema(self.state.schema)
        if self.schema is None:
            raise UsageError("open the shard with its schema to write it", shard=self.id)
        return self.schema
