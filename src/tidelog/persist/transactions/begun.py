"""A begun transaction: it reads as of one time and writes at the next.

Nothing is written before the commit. If another transaction has committed concurrently, the commit
is refused and the caller begins again. Transactions are therefore serializable.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidelog.core.arguments import check_kind
from tidelog.core.frontier import Frontier
from tidelog.core.ids import new_writer_id
from tidelog.errors import AsOfNotComplete, UsageError
from tidelog.persist.format.part import int64_array
from tidelog.persist.format.schema import DIFF, TIME
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.persist.states.transition import Appended

if TYPE_CHECKING:
    from tidelog.persist.states.state import Token
    from tidelog.persist.transactions.transactions import Transactions


@dataclass(slots=True, kw_only=True)
class Transaction:
    """A transaction that reads as of ``at - 1`` and writes at ``at``."""

    transactions: Transactions
    at: int
    token: Token = field(init=False)
    writes: dict[str, list[pa.Table]] = field(init=False, default_factory=dict)
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
        return await self.transactions.snapshot(name, self.at - 1)

    def write(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows to the write of a shard.

        A row with ``_diff`` -1 is removed; without the column ``_diff``, each row is added once.

        Raises:
            UsageError: the rows have a column ``_time``, or the transaction was committed before.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        check_kind(
            rows, pa.Table, "the rows of a transaction must be a pyarrow table or a record batch"
        )
        if self._is_sent:
            raise UsageError("this transaction was committed: begin another one for further rows")
        if TIME in rows.column_names:
            raise UsageError("the rows of a transaction get its time: remove the column _time")
        rows = rows.append_column(pa.field(TIME, pa.int64()), _all(self.at, rows.num_rows))
        if DIFF not in rows.column_names:
            rows = rows.append_column(pa.field(DIFF, pa.int64()), _all(1, rows.num_rows))
        self.writes.setdefault(name, []).append(rows)

    async def commit(self) -> Appended:
        """Commit all of the writes or nothing; a retry after an error commits them once.

        Raises:
            UpperMismatch: another transaction committed first: begin again. NOT_APPLIED.
            The other errors of `Transactions.compare_and_append`.
        """
        updates = {name: _together(name, tables) for name, tables in self.writes.items()}
        self._is_sent = True
        done = await self.transactions.commit(
            updates, self.at, self.at + 1, token=self.token, is_begun=True
        )
        return done.landed(expected=Frontier.at(self.at))


def _together(name: str, tables: list[pa.Table]) -> pa.Table:
    columns = tables[0].column_names
    if any(sorted(table.column_names) != sorted(columns) for table in tables):
        raise UsageError(
            f"the rows for {name!r} have different columns: give each table all columns"
        )
    try:
        ordered = [table.select(columns) for table in tables]
        return pa.concat_tables(ordered, promote_options="permissive")
    except pa.ArrowException as error:
        raise UsageError(f"the rows for {name!r} have different types: {error}") from error


def _all(value: int, rows: int) -> pa.Array[pa.Int64Scalar]:
    return int64_array(np.full(rows, value, np.int64))
