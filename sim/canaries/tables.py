"""Canaries of tables: builds whose writes overlook the writes of others.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from sim.canaries.transactions import commit_that_read_never_conflicts
from tidelog.collection.table import direct
from tidelog.collection.table.direct import DirectTransactions, as_transactions
from tidelog.collection.table.lookups import Lookup
from tidelog.collection.table.reader import TableReader, TableView
from tidelog.machine.language import Decision
from tidelog.persist.states.state import Diff, State
from tidelog.persist.states.transition import AppendResult, decide_append
from tidelog.persist.transactions.state import TransactionState
from tidelog.persist.transactions.transition import Decided


@contextmanager
def loser_compares_no_rows() -> Iterator[None]:
    """A write that loses a race is committed again, whatever rows the winner changed."""

    async def never(_: TableReader, __: Lookup, ___: TableView, ____: TableView) -> bool:
        return False

    with patch.object(TableReader, "are_changed", never):
        yield


@contextmanager
def direct_write_keeps_its_first_view() -> Iterator[None]:
    """A write of a direct table that loses a race is appended all the same."""

    async def decide(
        writes: DirectTransactions, plan: Callable[[TransactionState], Decided]
    ) -> AppendResult:
        shard = writes.only
        schema, seen = shard.written_schema().encoded, writes.state

        def decided(state: State) -> Decision[Diff, AppendResult]:
            found = plan(seen)
            if found.diff is None:
                return Decision(found.result)
            return decide_append(state, direct._append_of(found.diff, shard, state, schema))

        return await shard.machine.commit(decided)

    with patch.object(DirectTransactions, "decide", decide):
        yield


@contextmanager
def direct_table_forgets_tokens() -> Iterator[None]:
    """A repeated call of a direct table is committed twice."""

    def forgetful(shard: str, state: State) -> TransactionState:
        return replace(as_transactions(shard, state), writers={}, commits=())

    with patch.object(direct, "as_transactions", forgetful):
        yield


FOR_TABLES: Final[tuple[Callable[[], AbstractContextManager[None]], ...]] = (
    loser_compares_no_rows,
    commit_that_read_never_conflicts,
)
FOR_DIRECT: Final[tuple[Callable[[], AbstractContextManager[None]], ...]] = (
    direct_write_keeps_its_first_view,
    direct_table_forgets_tokens,
)
