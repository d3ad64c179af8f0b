"""A begun transaction: it reads as of one time and writes at a later one.

Nothing is written before the commit. If another transaction has concurrently written a shard that
this one read or wrote, the commit is refused and the caller begins again. Transactions are
therefore serializable.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.core.frontier import Frontier
from tidelog.core.ids import new_writer_id
from tidelog.errors import AsOfNotComplete, UpperMismatch, UsageError
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.persist.states.transition import AppendResult, Verdict
from tidelog.persist.transactions.committing import (
    NextTime,
    commit_rows,
    earliest_time,
    rows_at,
)
from tidelog.persist.transactions.next_time import Reads, moved_since
from tidelog.persist.transactions.port import TransactionsHandle
from tidelog.persist.transactions.transition import called

if TYPE_CHECKING:
    from tidelog.persist.states.state import Token


@dataclass(slots=True, kw_only=True)
class Transaction:
    """A transaction that reads as of ``at - 1`` and writes at ``at`` or later."""

    transactions: TransactionsHandle
    at: int
    token: Token = field(init=False)
    writes: dict[str, list[pa.Table]] = field(init=False, default_factory=dict)
    reads: set[str] = field(init=False, default_factory=set)
    _is_sent: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.token = new_writer_id(self.transactions.clock), 0

    async def snapshot(self, name: str) -> ShardSnapshot:
        """Return the contents of a shard before this transaction.

        Raises:
            AsOfNotComplete: no time precedes this transaction. NotRegistered: the shard is not
                registered in these transactions.
        """
        if not self.at:
            raise AsOfNotComplete("this is the first transaction, so no earlier contents exist")
        self.reads.add(self.transactions.id_of(name))
        return await self.transactions.snapshot(name, self.at - 1)

    def write(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows to the write of a shard.

        A row with ``_diff`` -1 is removed; without the column ``_diff``, each row is added once.

        Raises:
            UsageError: the rows have a column ``_time``, or the transaction was committed before.
        """
        updates = rows_at(rows, self.at)
        if self._is_sent:
            raise UsageError("this transaction was committed: begin another one for further rows")
        self.writes.setdefault(name, []).append(updates)

    async def commit(self, *, at: int | None = None) -> AppendResult:
        """Commit all of the writes or nothing; a retry after an error commits them once.

        The time is the first one that is not before ``at``, for example the clock's milliseconds,
        and past all earlier commits. The result's upper is one past it.

        Raises:
            UpperMismatch: another transaction has written a shard that this one read or wrote;
                the error names it. Begin again. NOT_APPLIED.
            The other errors of `Transactions.insert`.
        """
        transactions = self.transactions
        updates: dict[str, pa.Table] = {
            transactions.id_of(name): _together(name, tables)
            for name, tables in self.writes.items()
        }
        reads = Reads(upper=self.at, shards=frozenset(self.reads))
        request = NextTime(
            earliest=self.at if at is None else max(self.at, earliest_time(transactions, at)),
            token=self.token,
            known_upper=self.at,
            is_retry=self._is_sent,
            reads=reads,
        )
        self._is_sent = True
        done = await commit_rows(transactions, updates, self.at, request)
        if done.verdict is Verdict.MISMATCH:
            moved = moved_since(transactions.state, reads, updates)
            raise UpperMismatch(
                "another transaction has written a shard that this one read or wrote, and nothing "
                "was written: begin again",
                upper=done.upper,
                expected=Frontier.at(self.at),
                written=[called(name) for name in moved],
            )
        return done


def _together(name: str, tables: list[pa.Table]) -> pa.Table:
    columns = tables[0].column_names
    if any(sorted(table.column_names) != sorted(columns) for table in tables):
        raise UsageError(
            f"the rows for {name!r} have different columns: pass all columns in each table"
        )
    try:
        ordered = [table.select(columns) for table in tables]
        return pa.concat_tables(ordered, promote_options="permissive")
    except pa.ArrowException as error:
        raise UsageError(f"the rows for {name!r} have different types: {error}") from error
