"""Detection of lost states: those of the shards of tables, and of the transactions that write them.

The two kinds of states name each other, so a state that is missing or too old is found by the other
one. A process checks before it reads, and before it registers a shard: the registration of a shard
without its state would hide the loss.
Source: decision 29.
"""

from __future__ import annotations

from tidelog.core.ids import transactions_id
from tidelog.machine.lost import has_parts, state_lost, state_set_back
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.states.state import State
from tidelog.persist.transactions.port import TransactionsHandle
from tidelog.persist.transactions.state import TransactionState


def check_has_commits(known: TransactionState, shard: str, state: State) -> None:
    """Check that a shard has the commits that are no longer pending; its state was read last.

    Raises:
        CorruptionError: its state is lost, or older than it was.
    """
    table = known.tables.get(shard)
    if not state.schema and (table is not None or shard in known.forgotten):
        raise state_lost(shard)  # The transactions know a shard only after it was registered.
    if table is None or any(shard in one.writes for one in known.pending):
        return
    written = known.moved.get(shard, 0)
    if written > table.since and state.upper is not None and state.upper < written:
        raise state_set_back(shard)


async def check_is_known(transactions: TransactionsHandle, shard: ShardHandle) -> None:
    """Check that the transactions know a shard that has rows or parts.

    A process registers a shard of a table before it writes parts, and commits before it applies.

    Raises:
        CorruptionError: the state of the transactions is lost.
    """
    if shard.state.registered.name != transactions.name:
        return
    if _is_known(transactions.state, shard.id):
        return
    # Rows that are stored inline have no objects.
    has_some = shard.state.totals.rows or await has_parts(shard.store, f"shard/{shard.id}")
    # Another process may have registered the shard since the transactions were read.
    if has_some and not _is_known(await transactions.refresh(), shard.id):
        raise state_lost(transactions_id(transactions.name))


def _is_known(state: TransactionState, shard: str) -> bool:
    return shard in state.tables or shard in state.forgotten
