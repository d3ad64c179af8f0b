"""The port of transactions: the part of `Transactions` that commits, readers and begun ones use.

`tidelog.persist.transactions.transactions` imports these modules, so they cannot import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelog.core.clock import Clock
from tidelog.core.ids import ShardId
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.persist.states.transition import AppendResult
from tidelog.persist.transactions.applier import Applier
from tidelog.persist.transactions.state import TransactionState
from tidelog.persist.transactions.transition import Decided


class TransactionsHandle(Protocol):
    """A transaction shard: its state as last read, its handles of shards, and its commits."""

    name: str
    label: str
    clock: Clock
    applier: Applier

    @property
    def state(self) -> TransactionState: ...

    async def refresh(self) -> TransactionState: ...

    def id_of(self, name: str) -> ShardId: ...

    def shard(self, name: str) -> Shard: ...

    def seen(self) -> dict[str, int]: ...

    async def decide(self, decide: Callable[[TransactionState], Decided]) -> AppendResult: ...

    async def snapshot(self, name: str, as_of: int) -> ShardSnapshot: ...
