"""Reading a shard that transactions write, up to the upper of the transactions.

A reader adds the unapplied parts of the transactions to those of the shard; it writes nothing.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from tidelog.core.clock import run_all
from tidelog.core.frontier import Frontier
from tidelog.core.ids import transactions_id
from tidelog.errors import PartMissing
from tidelog.machine.lost import state_lost, state_set_back
from tidelog.persist.handle.listening import NotYet, Patience, intervals, poll
from tidelog.persist.handle.port import Progress
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.persist.read.snapshot import ShardSnapshot, require_replaced
from tidelog.persist.states.evolution import served_schema
from tidelog.persist.states.registration import with_steps
from tidelog.persist.states.state import Diff, State, apply_diff
from tidelog.persist.transactions.applying import all_steps, last_step, steps_of, upper_of
from tidelog.persist.transactions.lost import check_has_commits, check_is_known
from tidelog.persist.transactions.port import TransactionsHandle
from tidelog.persist.transactions.state import TransactionState
from tidelog.persist.transactions.transition import table_of
from tidelog.store.wrappers.read_only import is_read_only

SHARDS_AT_ONCE: Final = 8


async def snapshot(
    transactions: TransactionsHandle, name: str, as_of: int, patience: Patience
) -> ShardSnapshot:
    """Return the contents of a shard, by its id; see `Transactions.snapshot`."""
    upper = await _wait_for_upper(transactions, name, as_of, patience)
    if upper is None:
        return await transactions.shard(name).snapshot(
            as_of, wait=patience.wait, timeout_us=patience.timeout_us
        )
    shard = transactions.shard(name)
    state = await read_committed(transactions, name, until=as_of + 1)

    async def caught_up() -> State:
        await transactions.refresh()
        if is_read_only(shard.store):
            return await read_committed(transactions, name, until=as_of + 1)
        await transactions.applier.catch_up(shard, as_of)
        return await shard.refresh()

    return shard.snapshot_of(state, as_of, upper=upper, newest=caught_up)


async def listen(
    transactions: TransactionsHandle, name: str, reached: int, *, wait: bool
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
        state = await read_committed(transactions, name, until=upper.time)
        state.check_readable(reached)
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
            await transactions.refresh()
            require_replaced([await read_committed(transactions, name, until=upper.time)], error)


async def read_committed(transactions: TransactionsHandle, name: str, *, until: int) -> State:
    """Return a shard's state with the committed transactions of times below ``until``."""
    steps = steps_of(transactions.state, transactions.name, name, until=until)
    # The shard is read after the transactions, which drop only what the shard already has. In the
    # other order, a transaction could be missing from both.
    return with_steps(await transactions.shard(name).refresh(), steps)


async def complete_states(transactions: TransactionsHandle, shards: Sequence[Shard]) -> list[State]:
    """Return the newest states of shards, with all committed transactions and their upper.

    The transactions are read first; see `read_committed`. Nothing is written. No other writer may
    write the shards, so a shard without a registration is complete, too: a later one begins at a
    later upper.

    Raises:
        CorruptionError: a state is damaged. LocationError: the store failed.
    """
    state = await transactions.refresh()
    steps = [all_steps(state, transactions.name, shard.id) for shard in shards]
    found = await run_all([shard.refresh for shard in shards], at_once=SHARDS_AT_ONCE)
    await _check_not_set_back(transactions, state, found)
    for shard in shards:
        check_has_commits(state, shard.id, shard.state)
        await check_is_known(transactions, shard)
    stepped = [with_steps(one, some) for one, some in zip(found, steps, strict=True)]
    return [_unwritten(state, *one) for one in zip(shards, stepped, strict=True)]


def _unwritten(known: TransactionState, shard: Shard, state: State) -> State:
    """Return the state of a shard; if it was forgotten, up to the upper of the transactions."""
    is_gone = shard.id in known.forgotten and shard.id not in known.tables
    if not is_gone or state.upper is None or state.upper >= known.upper:
        return state
    number = known.forgotten[shard.id].number
    last = last_step(known, state.registered.name, shard.id, number, known.upper)
    return apply_diff(state, Diff(upper=(last.upper,), token=last.token))


async def _check_not_set_back(
    transactions: TransactionsHandle, state: TransactionState, shards: Sequence[State]
) -> None:
    """Check that the state of the transactions is not lost, or older than it was.

    A shard gets only times that are complete in its transactions.
    """
    uppers = [one.upper or 0 for one in shards if one.registered.name == transactions.name]
    # Other processes may have committed and applied since the transactions were read.
    if max(uppers, default=0) > state.upper:
        state = await transactions.refresh()
    if max(uppers, default=0) > state.upper:
        raise (state_set_back if state.upper else state_lost)(transactions_id(transactions.name))


async def _wait_for_upper(
    transactions: TransactionsHandle, name: str, time: int, patience: Patience
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
            if not is_read_only(transactions.shard(name).store):
                await transactions.applier.forget(name)
            return None
        return NotYet(Frontier.at(upper or 0))

    return await poll(transactions.clock, look, time, patience)
