"""The synchronous API of transactions: the same names, for notebooks, drivers and scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from tidelog.arguments import check_kind
from tidelog.frontier import Frontier
from tidelog.persist.handle.listening import Progress
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import Appended
from tidelog.persist.transactions import begun as aio_begun
from tidelog.persist.transactions import transactions as aio_transactions
from tidelog.portal import Blocking, documented_as
from tidelog.sync_shard import Shard, ShardSnapshot


@documented_as(aio_begun.Transaction)
class Transaction(Blocking[aio_begun.Transaction]):
    """An open transaction; see `tidelog.persist.transactions.begun.Transaction`."""

    @property
    def at(self) -> int:
        """Return the time that it writes; it reads as of the time before."""
        return self._inner.at

    def snapshot(self, name: str) -> ShardSnapshot:
        return ShardSnapshot(self._portal, self._portal.run(self._inner.snapshot(name)))

    def write(self, name: str, rows: pa.Table) -> None:
        self._inner.write(name, rows)

    def commit(self) -> Appended:
        return self._portal.run(self._inner.commit())


@documented_as(aio_transactions.Transactions)
class Transactions(Blocking[aio_transactions.Transactions]):
    """Atomic writes of several shards at one time; see `tidelog.aio.Transactions`."""

    def __repr__(self) -> str:
        return repr(self._inner)

    def upper(self) -> Frontier:
        return self._portal.run(self._inner.upper())

    def tables(self) -> list[str]:
        return self._portal.run(self._inner.tables())

    def register(self, shard: Shard) -> Frontier:
        check_kind(shard, Shard, "shard must be a Shard, such as lake.shard(name)")
        return self._portal.run(self._inner.register(shard._inner))

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
        work = self._inner.snapshot(name, as_of, wait=wait, timeout_us=timeout_us)
        return ShardSnapshot(self._portal, self._portal.run(work))

    def listen(self, name: str, as_of: int, *, wait: bool = False) -> Iterator[Progress]:
        return self._portal.iterate(self._inner.listen(name, as_of, wait=wait))
