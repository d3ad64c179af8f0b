"""Direct tables: one shard that its writers change by compare-and-append, without transactions.

The shard's own state decides each commit. To share the writes of other tables, it is presented as
the state of transactions over this one shard, without pending commits. The decision about a commit
is made on that state, and becomes a compare-and-append at the shard's present upper.
Source: design page 6, "Tables" (mode `direct`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.core.frontier import Frontier
from tidelog.machine.language import Decision
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.state import Diff, State
from tidelog.persist.states.transition import AppendResult, CompareAndAppend, decide_append
from tidelog.persist.transactions.applying import unpacked
from tidelog.persist.transactions.state import (
    Committed,
    LastCommit,
    RegisteredShard,
    TransactionDiff,
    TransactionState,
)
from tidelog.persist.transactions.transactions import Transactions
from tidelog.persist.transactions.transition import Decided

WAL: Final = "wal"
DIRECT: Final = "direct"
MODES: Final = (WAL, DIRECT)
# The number of a shard that was never registered; see `tidelog.persist.states.state.Registration`.
_UNREGISTERED: Final = 0


@dataclass(slots=True, kw_only=True)
class DirectTransactions(Transactions):
    """The writes of a direct table; ``only`` is its shard."""

    only: Shard

    def __post_init__(self) -> None:
        Transactions.__post_init__(self)
        self.shards[self.only.id] = self.only
        self.name = ""  # That of the transactions of a shard that is not registered.

    def __repr__(self) -> str:
        return f"<tidelog writes of {self.only!r}>"

    @property
    def state(self) -> TransactionState:
        return as_transactions(self.only.id, self.only.state)

    async def refresh(self) -> TransactionState:
        """Read the newest state of the shard."""
        await self.only.refresh()
        return self.state

    async def register(self, shard: Shard) -> Frontier:
        """Do nothing: the shard of a direct table is not registered."""
        return Frontier.at(self.state.upper)

    def seen(self) -> dict[str, int]:
        """Return nothing, because no commit waits for the shard."""
        return {}

    async def decide(self, decide: Callable[[TransactionState], Decided]) -> AppendResult:
        """Decide a commit on the shard's state, and append its parts."""
        shard = self.only
        schema = shard.written_schema().encoded

        def decided(state: State) -> Decision[Diff, AppendResult]:
            found = decide(as_transactions(shard.id, state))
            if found.diff is None:
                return Decision(found.result)
            return decide_append(state, _append_of(found.diff, shard, state, schema))

        return await shard.machine.commit(decided)


def as_transactions(shard: str, state: State) -> TransactionState:
    """Return the state of transactions that have only this shard.

    Shape: the shard is missing if it was dropped, or if nothing was written or read yet. ``moved``
        is empty, so each move of upper counts as a write.
    """
    is_there = bool(state.schema) and not state.is_dropped
    tables = {shard: RegisteredShard(_UNREGISTERED, 0, state.write_epoch)}
    return TransactionState(
        upper=state.upper or 0,
        tables=tables if is_there else {},
        commits=tuple(
            Committed(one.writer, one.number, one.lower, one.upper or 0) for one in state.commits
        ),
        commits_forgotten=state.commits_forgotten,
        # Without a digest, the rows of a retry are not compared.
        writers={
            name: LastCommit(last.number, 0, last.upper or 0, b"")
            for name, last in state.writers.items()
        },
    )


def _append_of(
    diff: TransactionDiff, shard: Shard, state: State, schema: bytes
) -> CompareAndAppend:
    """Return the append of a commit; its token was checked before."""
    assert diff.upper is not None
    assert diff.token is not None
    write = diff.writes.get(shard.id)
    return CompareAndAppend(
        schema=schema,
        parts=() if write is None else unpacked(write.packed),
        expected_upper=state.upper_frontier,
        upper=Frontier.at(diff.upper),
        token=diff.token,
        named=diff.named,
        fresh=True,
        first_holds=shard.first_holds,
    )
