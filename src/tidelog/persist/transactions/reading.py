"""Reading a shard that transactions write, up to the upper of the transactions.

A read first applies the transactions that the shard needs.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from tidelog.core.frontier import Frontier
from tidelog.errors import PartMissing
from tidelog.persist.handle.listening import NotYet, Patience, intervals, poll
from tidelog.persist.handle.port import Progress
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.persist.read.snapshot import ShardSnapshot, check_readable
from tidelog.persist.states.evolution import served_schema
from tidelog.persist.states.state import State
from tidelog.persist.transactions.applying import upper_of
from tidelog.persist.transactions.transition import table_of

if TYPE_CHECKING:
    from tidelog.persist.transactions.transactions import Transactions


async def snapshot(
    transactions: Transactions, name: str, as_of: int, patience: Patience
) -> ShardSnapshot:
    """Return the contents of a shard, by its id; see `Transactions.snapshot`."""
    upper = await _wait_for_upper(transactions, name, as_of, patience)
    if upper is None:
        return await transactions.shard(name).snapshot(
            as_of, wait=patience.wait, timeout_us=patience.timeout_us
        )
    state = await read_applied(transactions, name, until=as_of + 1)
    return transactions.shard(name).snapshot_of(state, as_of, upper=upper)


async def listen(
    transactions: Transactions, name: str, reached: int, *, wait: bool
) -> AsyncGenerator[Progress, None]:
    """Yield the updates of a shard, by its id, after ``reached``; see `Transactions.listen`."""
    shard = transactions.shard(name)
    upper = await _wait_for_upper(transactions, name, reached, Patience(wait=wait))
    while True:
        if upper is not None and not upper.passed(reached + 1):
            upper = await _wait_for_upper(transactions, name, reached + 1, Patience(wait=True))
        if upper is None:
            async with aclosing(shard.listen(reached, wait=wait)) as rest:
                async for progress in rest:
                    yield progress
            return
        state = await read_applied(transactions, name, until=upper.time)
        check_readable(state, reached)
        found = intervals(
            shard,
            state,
            reached,
            upper,
            schema=served_schema(state, None),
            selection=ALL_ROWS,
        )
        try:
            async with aclosing(found):
                async for progress in found:
                    yield progress
                    reached = progress.upper.time - 1
        except PartMissing as error:
            await shard.check_replaced(error)


async def read_applied(transactions: Transactions, name: str, *, until: int) -> State:
    # After the transactions' state: that state drops only what the shard already has. In the other
    # order, a transaction could be missing from both.
    await transactions.shard(name).refresh()
    return await transactions.applied(name, until=until)


async def _wait_for_upper(
    transactions: Transactions, name: str, time: int, patience: Patience
) -> Frontier | None:
    """Wait until ``time`` is complete; return upper, or None if the shard is unregistered."""

    async def look() -> Frontier | NotYet | None:
        state = await transactions.refresh()
        upper = upper_of(state, name)
        if upper is None:
            table_of(state, name)
        elif upper > time:
            return Frontier.at(upper)
        elif name not in state.tables:
            # Another process may have begun to forget the shard, and died.
            await transactions.forget_id(name)
            return None
        return NotYet(Frontier.at(upper or 0))

    return await poll(transactions.clock, look, time, patience)
