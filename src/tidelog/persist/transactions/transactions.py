"""Transactions: the handle that writes several shards atomically, and reads them as of one time.

A commit is one change of the transaction shard's state. It names the parts that were uploaded for
each shard, and takes effect as a whole. Later, the transaction is *applied*: its parts are written
to each shard, those of many transactions in one write. Any process may do so at any time: a
committer, a merger or a sweep. Doing it twice, or only in part, does no harm. A reader adds the
unapplied parts to those of the shard. A shard without writes costs nothing.

The decisions are in `transition` and `applying`, and for the shards' own states in
`tidelog.persist.states.registration`. This module runs them on machines.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock, run_all
from tidelog.core.frontier import TIME_MAX, Frontier, check_time
from tidelog.core.ids import TABLES, NamedKind, ShardId, check_name, name_of, named_id
from tidelog.errors import (
    ContentionError,
    PartsSwept,
    TidelogError,
    UsageError,
)
from tidelog.persist.handle.argument_checks import (
    check_flag,
    check_tables,
    check_timeout,
    check_write_token,
)
from tidelog.persist.handle.listening import Patience, check_start
from tidelog.persist.handle.port import Progress
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.persist.states.registration import decide_join
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import AppendResult, Verdict
from tidelog.persist.transactions import committing, reading
from tidelog.persist.transactions.applier import (
    Applier,
    ShardMachine,
    TransactionMachine,
    transaction_machine,
)
from tidelog.persist.transactions.applying import is_due, shards_of
from tidelog.persist.transactions.begun import Transaction
from tidelog.persist.transactions.lost import check_has_commits, check_is_known
from tidelog.persist.transactions.next_time import decide_drop_writer, joined
from tidelog.persist.transactions.state import TransactionState
from tidelog.persist.transactions.transition import (
    Decided,
    TableParts,
    check_span,
    decide_register,
    decide_retry,
    decide_tidy,
)
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes

PENDING_MAX = 256  # A commit first applies the pending transactions if the state has this many.
TRIES_MAX = 20


@refuses_writes()
@dataclass(slots=True, kw_only=True)
class Transactions:
    """A transaction shard. Opening it does no I/O; its first change creates it.

    With a ``kind``, callers name shards by their names of that kind, otherwise by their ids.
    ``shards`` are this handle's own handles of shards, by id, created when they are needed.
    ``label`` names the writer of commits without a token, for people.
    """

    name: str
    kind: NamedKind | None = None
    store: Store
    consensus: Consensus
    clock: Clock
    label: str = ""
    machine: TransactionMachine = field(init=False)
    applier: Applier = field(init=False)
    shards: dict[str, Shard] = field(init=False, default_factory=dict)
    _applies: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.machine = transaction_machine(self.name, self.store, self.consensus, self.clock)

        def shard(name: str) -> ShardMachine:
            return self.shard(name).machine

        self.applier = Applier(name=self.name, machine=self.machine, shard=shard)

    def __repr__(self) -> str:
        return f"<tidelog transactions {self.name!r}>"

    @property
    def state(self) -> TransactionState:
        """The state as this handle last read it; other processes may have changed it since."""
        return self.machine.state

    async def refresh(self) -> TransactionState:
        """Read the newest state."""
        return await self.machine.refresh()

    async def upper(self) -> Frontier:
        """Return the upper that all registered shards share."""
        return (await self.refresh()).upper_frontier

    async def tables(self) -> list[str]:
        """Return the names of the registered shards."""
        tables = (await self.refresh()).tables
        return sorted(name_of(self.kind, one) or one if self.kind else one for one in tables)

    def id_of(self, name: str) -> ShardId:
        """Return the id of a shard by the name that callers use."""
        if self.kind is None:
            return ShardId(check_name(name, of="name of a shard"))
        return named_id(self.kind, name)

    def shard(self, name: str) -> Shard:
        """Return this handle's own handle of a shard."""
        found = self.shards.get(name)
        if found is None:
            found = Shard(
                id=ShardId(name),
                store=self.store,
                consensus=self.consensus,
                clock=self.clock,
            )
            self.shards[name] = found
        return found

    async def register(self, shard: Shard) -> Frontier:
        """Register a shard, so that only these transactions write it; return the upper.

        The shard may not exist yet; its handle then needs a schema. From now on all other writes to
        the shard are refused. The call is idempotent.

        Raises:
            ShardRegistered: the shard is registered in other transactions.
            UsageError: the shard is finished, is not a shard, belongs to a collection, or does not
                exist and has no schema.
        """
        check_kind(shard, Shard, "shard must be a Shard, such as lake.shard(name)")
        if self.kind is not None and name_of(self.kind, shard.id) is None:
            raise UsageError(
                "a shard of a collection cannot be registered, because its source or its table "
                "writes it: register a shard of lake.shard(name)",
                shard=shard.id,
            )
        known = self.state  # Another call of this handle may read a newer one during the next line.
        await shard.refresh()
        if self.name == TABLES:
            check_has_commits(known, shard.id, shard.state)
            await check_is_known(self, shard)
        schema = shard.state.schema or shard.written_schema().encoded
        own = self.shard(shard.id)
        # First the shard, then the transactions: as soon as a transaction can write the shard, no
        # other writer can.
        for _ in range(TRIES_MAX):
            joined = await own.machine.commit(
                lambda state: decide_join(state, self.name, schema, first_holds=shard.first_holds)
            )
            decide = partial(decide_register, shard=shard.id, joined=joined)
            if await self.machine.commit(decide) is not None:
                return self.state.upper_frontier
            # Another process has begun to forget the shard, and may have died.
            await self.applier.forget(shard.id)
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries: other processes kept forgetting the shard; "
            "register it again",
            shard=shard.id,
        )

    async def forget(self, name: str) -> Frontier:
        """End the registration of a shard; return the upper to which transactions have written it.

        This commits the end of the registration, and then applies the shard's transactions. A
        repeated call completes a call that was interrupted.

        Raises:
            NotRegistered: the shard was never registered here.
        """
        return await self.applier.forget(self.id_of(name))

    async def begin(self) -> Transaction:
        """Begin a transaction that reads as of the newest complete time and writes at the next."""
        return Transaction(transactions=self, at=(await self.refresh()).upper)

    async def compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> AppendResult:
        """Append updates to several shards, all or none, if upper is the expected one.

        Shape: ``updates`` by the names of shards, each as in `ShardSchema.updates`, at times in
            ``[expected_upper, upper)``. Without updates, only the upper of all shards moves.

        With the ``token`` of an earlier call, a transaction that was committed then returns
        ALREADY.

        Raises:
            UpperMismatch: upper is another; the error names it. NOT_APPLIED.
            DataDiffers: the token was used for other updates. NOT_APPLIED.
            NotRegistered: a shard is not registered. UsageError: updates do not fit. NOT_APPLIED.
            OutcomeUnknown: the retry is too old to be recognized. LocationError: the store failed.
        """
        done = await self.try_compare_and_append(updates, expected_upper, upper, token=token)
        return done.landed(expected=Frontier.of(expected_upper))

    async def try_compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> AppendResult:
        """Append as `compare_and_append` does, but return a MISMATCH instead of raising.

        Raises:
            The errors of `compare_and_append`, except UpperMismatch.
        """
        check_write_token(token)
        tables: dict[str, pa.Table] = {
            self.id_of(name): table for name, table in check_tables(updates).items()
        }
        lower, until = Frontier.of(expected_upper), Frontier.of(upper)
        if lower.is_empty or until.is_empty:
            raise UsageError(
                "transactions cannot be finished: pass times as expected_upper and upper; to "
                "finish a shard, forget it, then append to it alone"
            )
        check_span(lower.time, until.time, rows=sum(t.num_rows for t in tables.values()))
        try:
            done = await committing.commit(self, tables, lower, until, token)
        except (UsageError, PartsSwept):
            # The token may have been committed before, and its shard forgotten or its columns
            # changed since.
            told = token and decide_retry(await self.refresh(), token, lower.time, until.time)
            if not told:
                raise
            done = told
        if token is not None and done.verdict is Verdict.ALREADY:
            await committing.check_retry(self, tables, lower, until, token)
        return done

    async def insert(
        self,
        rows: Mapping[str, pa.Table | pa.RecordBatch],
        *,
        at: int | None = None,
        token: Token | None = None,
    ) -> AppendResult:
        """Add rows to several shards, all or none, at the next time; this never conflicts.

        Shape: ``rows`` by the names of shards, without a column ``_time``. A row with ``_diff`` -1
            is removed.

        The time is the first one that is not before ``at`` (default: the clock's milliseconds) and
        past all earlier commits. The result's upper is one past it. Calls that wait for the same
        request of the store are stored together.

        A ``token`` is a writer's name and a number that rises. The state remembers the newest
        number of each name until `drop_writer`, and a retry of it returns ALREADY.

        Raises:
            DataDiffers: the number was used for other rows. NOT_APPLIED.
            NotRegistered: a shard is not registered. UsageError: the rows do not fit. NOT_APPLIED.
            OutcomeUnknown: the writer has used a greater number. LocationError: the store failed.
        """
        check_write_token(token)
        request = committing.next_time(self, at, token)
        time = max(request.earliest, self.state.upper)
        updates: dict[str, pa.Table] = {
            self.id_of(name): committing.rows_at(one, time) for name, one in rows.items()
        }
        return await committing.commit_rows(self, updates, time, request)

    async def write_parts(self, name: str, rows: pa.Table | pa.RecordBatch) -> TableParts:
        """Write rows of a shard for a later `commit_parts`, which any process may call.

        The result is a plain value. If no call commits it, the second sweep after this deletes it.

        Raises:
            NotRegistered: the shard is not registered. NOT_APPLIED.
            UsageError: the rows do not fit. NOT_APPLIED.
        """
        shard = self.id_of(name)
        if shard not in self.state.tables:
            await self.refresh()
        target = await committing.target_of(self, shard)
        return await committing.write_rows(target, self.shard(shard).store, self.clock, rows)

    async def commit_parts(
        self,
        parts: Mapping[str, Sequence[TableParts]],
        *,
        at: int | None = None,
        token: Token | None = None,
    ) -> AppendResult:
        """Commit parts of `write_parts`, all or none, at the next time; see `insert`.

        Raises:
            PartsSwept: a sweep may have deleted parts: write them again. NOT_APPLIED.
            NotRegistered: a shard was registered again since: write its parts again. NOT_APPLIED.
            The other errors of `insert`.
        """
        check_write_token(token)
        writes: dict[str, TableParts] = {
            self.id_of(name): joined(name, some) for name, some in parts.items() if some
        }
        return await committing.commit_written(self, writes, committing.next_time(self, at, token))

    async def drop_writer(self, name: str) -> bool:
        """Forget the numbers of a named writer; return True if it existed."""
        check_kind(name, str, "the name of a writer must be a str")
        return await self.machine.commit(lambda state: decide_drop_writer(state, name))

    async def decide(self, decide: Callable[[TransactionState], Decided]) -> AppendResult:
        """Commit a decision. If many transactions are unapplied, apply them concurrently."""
        if len(self.state.pending) >= PENDING_MAX:
            await self.apply()
        if not is_due(self.state, self.seen()) or self._applies.locked():
            return await self.machine.commit(decide)
        work: list[Callable[[], Awaitable[AppendResult | None]]]
        work = [partial(self.machine.commit, decide), self._apply_due]
        done, _ = await run_all(work, at_once=2)
        if done is None:
            raise AssertionError("the first of the calls is the commit")
        return done

    async def _apply_due(self) -> None:
        # A failure here is no error of the commit: the next commit tries again. An error would
        # also cancel the commit, whose record may be stored.
        async with self._applies:
            with suppress(TidelogError):
                await self._apply_known()

    def seen(self) -> dict[str, int]:
        """Return the uppers of shards that this handle has seen."""
        known = ((name, shard.state.upper) for name, shard in self.shards.items())
        return {name: TIME_MAX if upper is None else upper for name, upper in known}

    async def apply(self) -> int:
        """Apply the committed transactions to all shards; return how many shards needed it.

        Raises:
            LocationError: the store failed; a later call applies the rest.
        """
        await self.refresh()
        return await self._apply_known()

    async def _apply_known(self) -> int:
        names = shards_of(self.state)
        await run_all([partial(self.applier.applied, name) for name in names], at_once=8)
        return len(names)

    async def tidy(self) -> int:
        """Apply the rest, and drop from the state what all shards have; return the number."""
        await self.apply()
        applied = self.seen()
        return await self.machine.commit(lambda state: decide_tidy(state, applied))

    async def snapshot(
        self, name: str, as_of: int, *, wait: bool = False, timeout_us: int | None = None
    ) -> ShardSnapshot:
        """Return the contents of a shard at ``as_of``, a time that is complete for all shards.

        ``wait`` and ``timeout_us`` are those of `Shard.snapshot`.

        Raises:
            NotRegistered: the shard is not registered. AsOfBeforeSince: the time is no longer kept.
            AsOfNotComplete, DeadlineExceeded: see `Shard.snapshot`.
        """
        check_time(as_of)
        check_flag(wait, "wait")
        check_timeout(timeout_us)
        patience = Patience(wait=wait, timeout_us=timeout_us)
        return await reading.snapshot(self, self.id_of(name), as_of, patience)

    async def listen(self, name: str, as_of: int, *, wait: bool = False) -> AsyncIterator[Progress]:
        """Yield all updates of a shard at times after ``as_of``, as they become complete.

        Raises:
            NotRegistered, AsOfBeforeSince, AsOfNotComplete: see `snapshot`.
            UsageError: no time follows ``as_of``.
        """
        check_flag(wait, "wait")
        start = check_start(as_of)
        async with aclosing(reading.listen(self, self.id_of(name), start, wait=wait)) as found:
            async for progress in found:
                yield progress
