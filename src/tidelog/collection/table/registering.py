"""Registrations of a table's shards: register with the table's schema, and end for good.

A registered shard keeps its schema, because a commit that is not applied yet has rows of it. So a
shard gets the next schema between two registrations: `settle_shard` ends the first one, which
applies its commits, and begins another one. Parts of the first one are refused then. Each step can
be repeated, by any process.
Source: decision 29.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tidelog.core.clock import backoff_us
from tidelog.errors import ContentionError, ShardRegistered
from tidelog.persist.format.schema import decode_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.transactions.lost import check_is_known
from tidelog.persist.transactions.transactions import Transactions

TRIES_MAX: Final = 20


async def settle_shard(
    transactions: Transactions, founder: Shard, schemas: Sequence[bytes]
) -> None:
    """Register a shard of a table with the newest of ``schemas``; the call is idempotent.

    Shape: ``schemas`` are those of the table, oldest first. ``founder`` is a handle with the first
        one, and with the first holds of a new shard.

    Raises:
        ContentionError: writers with old handles kept registering the shard; call again.
        UsageError: the table was dropped. LocationError: the store failed; call again.
    """
    shard = transactions.shard(founder.id)
    for attempt in range(TRIES_MAX):
        # The shards of a table that was never altered need no such read.
        state = await shard.refresh() if len(schemas) > 1 else shard.state
        if state.schema and state.schema_id + 1 < len(schemas):
            # Two processes that do this at once must not undo each other's step. So a shard with an
            # earlier schema is never registered here.
            await _evolve(transactions, shard, schemas)
        await transactions.register(founder)
        if shard.state.schema_id + 1 >= len(schemas):
            return
        await transactions.clock.sleep(backoff_us(attempt, transactions.clock))
    raise ContentionError(
        f"gave up after {TRIES_MAX} tries: other processes kept registering a shard of the altered "
        "table; try again",
        shard=founder.id,
    )


async def _evolve(transactions: Transactions, shard: Shard, schemas: Sequence[bytes]) -> None:
    """End the registration of a shard, and give it the schemas that it lacks."""
    if shard.state.registered.name:
        await check_is_known(transactions, shard)
        await transactions.forget(shard.id)
    # A writer with an old handle may register the shard between these requests.
    with suppress(ShardRegistered):
        for number in range(shard.state.schema_id + 1, len(schemas)):
            columns = decode_schema(schemas[number]).data
            await shard.evolve_schema(columns, expected=number - 1)


async def drop_shard(transactions: Transactions, shard: Shard) -> None:
    """End the registration of a dropped table's shard, and drop the shard; the call is idempotent.

    Raises:
        ContentionError: writers with old handles kept registering the shard; call again.
        LocationError: the store failed; call again.
    """
    for _ in range(TRIES_MAX):
        try:
            await shard.drop()
            return
        except ShardRegistered:
            await transactions.forget(shard.id)
    raise ContentionError(
        f"gave up after {TRIES_MAX} tries: writers kept registering a shard of the dropped table; "
        "try again",
        shard=shard.id,
    )
