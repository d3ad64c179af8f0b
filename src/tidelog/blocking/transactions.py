"""The blocking API: transactions. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import Blocking, documented_as, unwrapped
from tidelog.blocking.shards import Shard
from tidelog.persist.transactions import begun as awaited_begun
from tidelog.persist.transactions import transactions as awaited_transactions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from tidelog.blocking.shards import ShardSnapshot
    from tidelog.core.frontier import Frontier
    from tidelog.persist.handle.listening import Progress
    from tidelog.persist.states.state import Token
    from tidelog.persist.states.transition import Appended


@documented_as(awaited_transactions.Transactions)
class Transactions(Blocking[awaited_transactions.Transactions]):
    """Transactions: writes to several shards at one time."""

    def __repr__(self) -> str:
        return repr(self._inner)

    def upper(self) -> Frontier:
        return self._portal.run(self._inner.upper())

    def tables(self) -> list[str]:
        return self._portal.run(self._inner.tables())

    def register(self, shard: Shard) -> Frontier:
        return self._portal.run(self._inner.register(unwrapped(shard, Shard)))

    def forget(self, name: str) -> Frontier:
        return self._portal.run(self._inner.forget(name))

    def begin(self) -> Transaction:
        return Transaction(self._portal, self._portal.run(self._inner.begin()))

    def compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> Appended:
        return self._portal.run(
            self._inner.compare_and_append(updates, expected_upper, upper, token=token)
        )

    def try_compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> Appended:
        return self._portal.run(
            self._inner.try_compare_and_append(updates, expected_upper, upper, token=token)
        )

    def apply(self) -> int:
        return self._portal.run(self._inner.apply())

    def tidy(self) -> int:
        return self._portal.run(self._inner.tidy())

    def snapshot(
        self, name: str, as_of: int, *, wait: bool = False, timeout_us: int | None = None
    ) -> ShardSnapshot:
        from tidelog.blocking.shards import ShardSnapshot

        return ShardSnapshot(
            self._portal,
            self._portal.run(self._inner.snapshot(name, as_of, wait=wait, timeout_us=timeout_us)),
        )

    def listen(self, name: str, as_of: int, *, wait: bool = False) -> Iterator[Progress]:
        return self._portal.iterate(self._inner.listen(name, as_of, wait=wait))


@documented_as(awaited_begun.Transaction)
class Transaction(Blocking[awaited_begun.Transaction]):
    """One transaction."""

    def snapshot(self, name: str) -> ShardSnapshot:
        from tidelog.blocking.shards import ShardSnapshot

        return ShardSnapshot(self._portal, self._portal.run(self._inner.snapshot(name)))

    def write(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        self._inner.write(name, rows)

    def commit(self) -> Appended:
        return self._portal.run(self._inner.commit())
