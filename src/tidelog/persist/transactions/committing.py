"""Committing: write the parts of each shard, then commit them in one change of the transactions.

Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.core.clock import run_all
from tidelog.core.frontier import Frontier
from tidelog.core.ids import new_writer_id
from tidelog.errors import NotRegistered, OutcomeUnknown, PartsSwept, UsageError
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import prepare_updates
from tidelog.persist.handle.appending import WRITES_MAX, sum_by_stored_schema
from tidelog.persist.states.state import Registered, Token
from tidelog.persist.states.transition import Appended
from tidelog.persist.transactions.transition import (
    CommitTransaction,
    TableParts,
    called,
    check_same_updates,
    decide_commit,
    has_digest,
    table_of,
)

if TYPE_CHECKING:
    from tidelog.persist.transactions.transactions import Transactions


async def commit(
    transactions: Transactions,
    updates: Mapping[str, pa.Table],
    lower: Frontier,
    upper: Frontier,
    token: Token | None,
    *,
    keeps_digest: bool,
) -> Appended:
    """Write the parts of each shard, and commit all or none; see `compare_and_append`."""
    attempt = partial(
        _try, transactions, updates, lower, upper, token=token, keeps_digest=keeps_digest
    )
    for _ in range(WRITES_MAX - 1):
        try:
            return await attempt()
        except (PartsSwept, NotRegistered):
            # The state that this handle knows may be stale, so read it again and retry.
            await transactions.refresh()
            for name in updates:
                await transactions.shard(name).refresh()
    return await attempt()


async def _try(
    transactions: Transactions,
    updates: Mapping[str, pa.Table],
    lower: Frontier,
    upper: Frontier,
    *,
    token: Token | None,
    keeps_digest: bool,
) -> Appended:
    if not all(name in transactions.state.tables for name in updates):
        await transactions.refresh()
    names = [name for name, table in updates.items() if table.num_rows]
    work = [partial(write_parts, transactions, name, updates[name], lower, upper) for name in names]
    written = await run_all(work, at_once=8)
    command = CommitTransaction(
        writes=dict(zip(names, written, strict=True)),
        expected_upper=lower.time,
        upper=upper.time,
        token=token or (new_writer_id(transactions.clock), 0),
        fresh=token is None,
        keeps_digest=keeps_digest,
        applied=transactions.seen(),
    )
    return await transactions.machine.commit(lambda state: decide_commit(state, command))


async def check_retry(
    transactions: Transactions,
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
                f"{called(name)!r} cannot be compared: read the shards instead ({error})",
                token=token,
            ) from error
    check_same_updates(transactions.state, token, sums)


async def write_parts(
    transactions: Transactions, name: str, updates: pa.Table, lower: Frontier, upper: Frontier
) -> TableParts:
    """Write the parts of one shard; they have no effect before the commit."""
    table, shard = table_of(transactions.state, name), transactions.shard(name)
    registered = Registered(transactions.name, table.number)
    if shard.state.registered != registered:
        await shard.refresh()
    if shard.state.registered != registered:
        raise NotRegistered(
            f"the shard {called(name)!r} is no longer registered: register it first"
        )
    schema: ShardSchema = shard.written_schema()
    ready = await transactions.clock.offload(
        partial(prepare_updates, updates, schema, lower=lower, upper=upper)
    )
    parts = await shard.writer(schema).write(ready, inline=shard.may_inline)
    return TableParts(table.number, parts)
