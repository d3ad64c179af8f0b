"""Committing: write the parts of each shard, then commit them in one change of the transactions.

The commit is stored as soon as that change is. The shards get their parts later: see `applied`.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock, backoff_us, run_all, wall_us
from tidelog.core.frontier import TIME_MAX, Frontier, check_time
from tidelog.core.ids import ShardId, new_writer_id
from tidelog.errors import (
    LocationError,
    NotRegistered,
    Outcome,
    OutcomeUnknown,
    PartsSwept,
    SchemaEvolved,
    UsageError,
)
from tidelog.persist.format.part import int64_array
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.format.updates import prepare_updates
from tidelog.persist.handle.appending import WRITES_MAX, sum_by_stored_schema
from tidelog.persist.handle.shard import INLINE_STATE_BYTES_MAX
from tidelog.persist.states.evolution import evolved
from tidelog.persist.states.state import Registration, Token
from tidelog.persist.states.transition import AppendResult, Verdict
from tidelog.persist.transactions.applying import waiting_bytes
from tidelog.persist.transactions.next_time import CommitNext, Reads, decide_next, known_result
from tidelog.persist.transactions.port import TransactionsHandle
from tidelog.persist.transactions.transition import (
    CommitTransaction,
    TableParts,
    called,
    check_same_updates,
    decide_commit,
    has_digest,
    table_of,
)
from tidelog.persist.write.writer import PartWriter
from tidelog.store.port import Store

R = TypeVar("R")
LOST_TRIES: Final = 4
SMALL_BYTES: Final = 64 * 1024  # Less is prepared faster than a thread is woken.
NO_SCHEMAS: Final[Mapping[str, ShardSchema]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTime:
    """A commit at the next time from ``earliest``; ``reads`` and ``named`` as in `CommitNext`.

    ``is_retry`` states that an earlier call may have committed the token.
    """

    earliest: int
    token: Token
    known_upper: int
    named: bool = False
    is_retry: bool = False
    reads: Reads | None = None


def next_time(transactions: TransactionsHandle, at: int | None, token: Token | None) -> NextTime:
    """Return the request of a commit; see `Transactions.insert`.

    Raises:
        UsageError: see `earliest_time`.
    """
    return NextTime(
        earliest=earliest_time(transactions, at),
        token=token or (new_writer_id(transactions.clock), 0),
        known_upper=transactions.state.upper,
        named=token is not None,
    )


async def commit(
    transactions: TransactionsHandle,
    updates: Mapping[str, pa.Table],
    lower: Frontier,
    upper: Frontier,
    token: Token | None,
) -> AppendResult:
    """Write the parts of each shard, and commit all or none; see `compare_and_append`."""

    async def attempt() -> AppendResult:
        command = CommitTransaction(
            writes=await _written(transactions, updates, lower, upper),
            expected_upper=lower.time,
            upper=upper.time,
            token=token or (new_writer_id(transactions.clock), 0),
            fresh=token is None,
            keeps_digest=token is not None,
            applied=transactions.seen(),
        )
        return await transactions.decide(lambda state: decide_commit(state, command))

    return await _with_new_parts(transactions, updates, attempt)


async def commit_rows(
    transactions: TransactionsHandle,
    updates: Mapping[str, pa.Table],
    time: int,
    request: NextTime,
    *,
    schemas: Mapping[str, ShardSchema] = NO_SCHEMAS,
) -> AppendResult:
    """Write parts of updates at ``time``, and commit them at the next time.

    Raises:
        SchemaEvolved: a shard has another schema than the one in ``schemas``. NOT_APPLIED.
        The errors of `commit_written`.
    """
    lower, upper = Frontier.at(time), Frontier.at(time + 1)

    async def attempt() -> AppendResult:
        writes = await _written(transactions, updates, lower, upper, schemas)
        return await commit_written(transactions, writes, request)

    try:
        return await _with_new_parts(transactions, updates, attempt)
    except (UsageError, NotRegistered, PartsSwept, SchemaEvolved):
        # An earlier call may have committed the token, and its shard may be forgotten or have other
        # columns since.
        if not (request.named or request.is_retry):
            raise
        state = await transactions.refresh()
        known = known_result(state, request.token, named=request.named)
        if known is None:
            raise
        return known


async def commit_written(
    transactions: TransactionsHandle, writes: Mapping[str, TableParts], request: NextTime
) -> AppendResult:
    """Commit parts at the next time. If the answer is lost, read it back by the token.

    Raises:
        LocationError: the store failed at every try; ``outcome`` states whether the commit may be
            stored.
    """
    fresh = not (request.named or request.is_retry)
    command = CommitNext(
        writes=writes,
        earliest=request.earliest,
        token=request.token,
        known_upper=request.known_upper,
        named=request.named,
        fresh=fresh,
        reads=request.reads,
        applied=transactions.seen(),
        by=request.token[0] if request.named else transactions.label,
    )
    for attempt in range(LOST_TRIES):
        try:
            done = await transactions.decide(partial(decide_next, command=command))
        except (LocationError, OutcomeUnknown) as error:
            if error.outcome is not Outcome.UNKNOWN or attempt == LOST_TRIES - 1:
                raise
            # The change may be stored, or may land later. The same token lands at most once.
            command = replace(command, fresh=False)
            await transactions.clock.sleep(backoff_us(attempt, transactions.clock))
            continue
        if fresh and done.verdict is Verdict.ALREADY:
            return AppendResult(Verdict.COMMITTED, done.upper)
        return done
    raise AssertionError("the last try returns or raises")


async def _with_new_parts(
    transactions: TransactionsHandle,
    updates: Mapping[str, pa.Table],
    attempt: Callable[[], Awaitable[R]],
) -> R:
    """Write and commit; write again if the parts are of an earlier epoch or registration."""
    for _ in range(WRITES_MAX - 1):
        try:
            return await attempt()
        except (PartsSwept, NotRegistered):
            # The state that this handle knows may be stale, so read it again and retry.
            await transactions.refresh()
            for name in updates:
                await transactions.shard(name).refresh()
    return await attempt()


async def _written(
    transactions: TransactionsHandle,
    updates: Mapping[str, pa.Table],
    lower: Frontier,
    upper: Frontier,
    schemas: Mapping[str, ShardSchema] = NO_SCHEMAS,
) -> dict[str, TableParts]:
    """Write the parts of all shards."""
    if not all(name in transactions.state.tables for name in updates):
        await transactions.refresh()
    names = [name for name, table in updates.items() if table.num_rows]
    work = [
        partial(
            write_parts, transactions, name, updates[name], lower, upper, schema=schemas.get(name)
        )
        for name in names
    ]
    return dict(zip(names, await run_all(work, at_once=8), strict=True))


async def check_retry(
    transactions: TransactionsHandle,
    updates: Mapping[str, pa.Table],
    lower: Frontier,
    upper: Frontier,
    token: Token,
) -> None:
    """Check that a retry brings the updates of the stored transaction that used its token.

    Each shard's rows are compared in the columns that the shard had at that commit.

    Raises:
        DataDiffers: the updates differ. NOT_APPLIED.
        OutcomeUnknown: the rows do not fit those columns, so they cannot be compared.
    """
    if not has_digest(transactions.state, token):
        return
    sums: dict[str, bytes] = {}
    for name, table in updates.items():
        shard = transactions.shard(name)
        state = await shard.refresh()
        if not table.num_rows:
            continue
        try:
            sums[name] = await sum_by_stored_schema(shard, state, table, lower, upper)
        except UsageError as error:
            raise OutcomeUnknown(
                "a stored transaction has this token, but its rows for the shard "
                f"{called(name)!r} cannot be compared ({error}): read the shards to find out "
                "whether they have its rows",
                token=token,
            ) from error
    check_same_updates(transactions.state, token, sums)


async def write_parts(
    transactions: TransactionsHandle,
    name: str,
    updates: pa.Table,
    lower: Frontier,
    upper: Frontier,
    *,
    schema: ShardSchema | None = None,
) -> TableParts:
    """Write the parts of one shard; they have no effect before the commit."""
    target = await target_of(transactions, name, schema=schema)
    store = transactions.shard(name).store
    return await write_to(target, store, transactions.clock, updates, (lower, upper))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsTarget:
    """A shard for which any process can write parts, without its state; a plain value.

    A commit refuses parts of an earlier registration ``number``, or of an old write epoch.
    ``inline`` allows a small part to be stored in its descriptor.
    """

    shard: ShardId
    schema: ShardSchema
    number: int
    write_epoch: int
    inline: bool


async def target_of(
    transactions: TransactionsHandle, name: str, *, schema: ShardSchema | None = None
) -> PartsTarget:
    """Return the target for parts of a registered shard.

    A caller whose rows have the columns of ``schema`` passes it. Otherwise a column that the shard
    no longer has would be left out, without an error.

    Raises:
        NotRegistered: the shard is not registered. NOT_APPLIED.
        SchemaEvolved: its schema is not ``schema``. NOT_APPLIED.
    """
    if name not in transactions.state.tables:
        await transactions.refresh()
    table, shard = table_of(transactions.state, name), transactions.shard(name)
    registered = Registration(transactions.name, table.number)
    if shard.state.registered != registered:
        await shard.refresh()
    if shard.state.registered != registered:
        raise NotRegistered(
            f"the shard {called(name)!r} is no longer registered: register it first"
        )
    if schema is not None and schema.encoded != shard.state.schema:
        raise evolved("it has other columns than the rows", shard.state)
    waiting = waiting_bytes(transactions.state, name, after=shard.state.upper or 0)
    return PartsTarget(
        shard=shard.id,
        schema=shard.written_schema(),
        number=table.number,
        write_epoch=shard.state.write_epoch,
        inline=shard.state.totals.inline_bytes + waiting < INLINE_STATE_BYTES_MAX,
    )


async def write_to(
    target: PartsTarget,
    store: Store,
    clock: Clock,
    updates: pa.Table,
    span: tuple[Frontier, Frontier],
) -> TableParts:
    """Write updates at times in a span as parts for a target; see `write_parts`.

    Raises:
        UsageError: the updates do not fit. LocationError: the store failed.
    """
    lower, upper = span
    prepare = partial(prepare_updates, updates, target.schema, lower=lower, upper=upper)
    is_small = updates.nbytes < SMALL_BYTES
    ready = prepare() if is_small else await clock.offload(prepare)
    writer = PartWriter(
        store=store,
        clock=clock,
        shard=target.shard,
        schema=target.schema,
        write_epoch=target.write_epoch,
    )
    return TableParts(target.number, await writer.write(ready, inline=target.inline))


async def write_rows(
    target: PartsTarget, store: Store, clock: Clock, rows: pa.Table | pa.RecordBatch
) -> TableParts:
    """Write rows as parts for a commit that will choose their time.

    Raises:
        UsageError: the rows do not fit. LocationError: the store failed.
    """
    span = Frontier.at(0), Frontier.at(1)  # The commit replaces this time by its own.
    return await write_to(target, store, clock, rows_at(rows, 0), span)


def rows_at(rows: pa.Table | pa.RecordBatch, time: int) -> pa.Table:
    """Return the rows of a commit as updates: all at ``time``, added once unless ``_diff`` differs.

    Raises:
        UsageError: the rows are not a table, or have a column ``_time``.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    check_kind(
        rows, pa.Table, "the rows of a transaction must be a pyarrow table or a record batch"
    )
    if TIME in rows.column_names:
        raise UsageError("the rows of a transaction get its time: remove the column _time")
    rows = rows.append_column(pa.field(TIME, pa.int64()), _all(time, rows.num_rows))
    if DIFF not in rows.column_names:
        rows = rows.append_column(pa.field(DIFF, pa.int64()), _all(1, rows.num_rows))
    return rows


def _all(value: int, rows: int) -> pa.Array[pa.Int64Scalar]:
    return int64_array(np.full(rows, value, np.int64))


def earliest_time(transactions: TransactionsHandle, at: int | None) -> int:
    """Return the earliest time of a commit: ``at``, or the clock's milliseconds.

    Raises:
        UsageError: ``at`` is not a time, or no time follows it.
    """
    time = wall_us(transactions.clock) // 1_000 if at is None else check_time(at, "at=")
    if time == TIME_MAX:
        raise UsageError("no time follows the greatest time: commit at an earlier time", at=time)
    return time
