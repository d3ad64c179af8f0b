"""T75 for transactions: all operations in any order, with models of their shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kit.bad_store import OnBadStore, must_fail
from kit.clocks import OneThread
from kit.shards import ALREADY, COMMITTED, heard, rows
from sim.canaries.transactions import (
    Canary,
    commit_forgets_transactions_tokens,
    retries_ask_only_for_shards,
)
from tidelog.consensus.store import StoreConsensus
from tidelog.core.frontier import Frontier
from tidelog.errors import ContentionError, LocationError, NotRegistered, ShardRegistered
from tidelog.persist.format import part
from tidelog.persist.handle.shard import Shard
from tidelog.persist.transactions.transactions import Transactions
from tidelog.testing.models import Row, ShardModel, consolidate, contents_of, updates_of

NAMES = ("a", "b", "c")
NAMED = st.sampled_from(NAMES)
HANDLES = st.integers(0, 1)
UPDATES = st.dictionaries(
    NAMED,
    st.lists(
        st.tuples(
            st.sampled_from("xy"),
            st.none() | st.integers(0, 1),
            st.integers(0, 2),
            st.sampled_from([1, 1, -1]),
        ),
        max_size=4,
    ),
)


class TransactedShards(OnBadStore):
    """Two handles of transactions over up to three shards, each like a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.models = {name: ShardModel() for name in NAMES}
        self.registered: set[str] = set()
        self.upper = 0
        self.number = 0
        self.handles = [self.handle(who) for who in range(2)]
        self.patched = patch.object(part, "INLINE_BYTES", 200)
        self.patched.start()

    def teardown(self) -> None:
        self.patched.stop()
        super().teardown()

    def handle(self, who: int) -> Transactions:
        store, clock = self.bad_store(), OneThread()
        consensus = StoreConsensus(store=store, clock=clock, attempts=1 + who)
        found = Transactions(name="t", store=store, consensus=consensus, clock=clock)
        found.machine.rollup_every = 3
        return found

    def shard(self, name: str) -> Shard:
        """Return a new handle of a shard on the bad store."""
        store, clock = self.bad_store(), OneThread()
        consensus = StoreConsensus(store=store, clock=clock, attempts=2)
        shard = self.place.shard(name=name, store=store, consensus=consensus, clock=clock)
        shard.machine.rollup_every = 3
        return shard

    def observer(self) -> Transactions:
        shard = self.place.shard(clock=OneThread())
        return Transactions(
            name="t", store=self.inner, consensus=shard.consensus, clock=OneThread()
        )

    @initialize()
    def first(self) -> None:
        for name in NAMES[:2]:
            self.register(0, name)

    @rule(who=HANDLES, name=NAMED)
    def register(self, who: int, name: str) -> None:
        """Register a shard at its own upper. A second registration changes nothing."""
        self.tried(lambda: self.handles[who].register(self.shard(name)))
        if name not in self.registered:
            self.registered.add(name)
            self.upper = max(self.upper, self.models[name].upper or 0)
        self.see(self.upper, self.registered)

    def see(self, upper: int, names: Iterable[str]) -> None:
        """Complete all registered shards up to one time."""
        for name in names:
            self.models[name].upper = upper

    @rule(who=HANDLES, name=NAMED)
    def forget(self, who: int, name: str) -> None:
        """Forget a shard. It keeps everything up to the upper of the transactions."""
        if name not in self.registered:
            return
        found = self.tried(lambda: self.handles[who].forget(name))
        assert found == Frontier.at(self.upper)
        self.registered.discard(name)

    def tables(self, drawn: dict[str, list[Any]]) -> dict[str, pa.Table]:
        return {
            name: rows(*((k, v, self.upper + at, d) for k, v, at, d in some))
            for name, some in drawn.items()
        }

    @rule(who=HANDLES, drawn=UPDATES, off=st.sampled_from([0, 0, 0, 1]), dies=st.booleans())
    def commit(self, who: int, drawn: dict[str, list[Any]], off: int, dies: bool) -> None:
        """Commit until the outcome is known. A committer that dies leaves the rest to others."""
        lower, tables = self.upper + off, self.tables(drawn)
        if off:
            tables = {}
        self.number += 1
        token = ("w", self.number)

        async def dead(_: Transactions) -> int:
            raise LocationError("it died")

        def call() -> Any:
            return self.handles[who].try_compare_and_append(tables, lower, lower + 3, token=token)

        try:
            if dies:
                with patch.object(Transactions, "_apply_known", dead):
                    done = self.tried(call)
                self.handles[who] = self.handle(who)
            else:
                done = self.tried(call)
        except NotRegistered:
            assert any(t.num_rows for n, t in tables.items() if n not in self.registered)
            return
        assert (done.verdict in (COMMITTED, ALREADY)) == (not off)
        if not off:
            assert all(n in self.registered for n, t in tables.items() if t.num_rows)
            self.landed(tables)

    @rule(who=HANDLES, drawn=UPDATES, forget=st.booleans(), looks=st.booleans())
    def ask_again_long_after(
        self, who: int, drawn: dict[str, list[Any]], forget: bool, looks: bool
    ) -> None:
        """A retry of a commit gets ALREADY, also if its shards were forgotten since."""
        tables = {n: t for n, t in self.tables(drawn).items() if n in self.registered}
        lower = self.upper
        self.number += 1
        token = ("again", self.number)

        def call() -> Any:
            return self.handles[who].try_compare_and_append(tables, lower, lower + 3, token=token)

        with suppress(LocationError, ContentionError):
            self.run(call())
        landed = self.calmly(self.observer().upper()) == Frontier.at(lower + 3)
        if landed:
            self.landed(tables)
        for name in tables if forget else ():
            self.calmly(self.observer().forget(name))
            self.registered.discard(name)
        self.calmly(self.observer().try_compare_and_append({}, self.upper, self.upper + 1))
        self.upper += 1
        self.see(self.upper, self.registered)
        self.arrive_all()
        if looks:
            self.tried(self.handles[who].refresh)
        try:
            done = self.tried(call)
        except NotRegistered:
            assert forget
            assert not landed
            return
        assert (done.verdict is ALREADY) == landed

    def landed(self, tables: dict[str, pa.Table]) -> None:
        for name, table in tables.items():
            self.models[name].updates += updates_of(table)
        self.upper += 3
        self.see(self.upper, self.registered)

    @rule(name=NAMED)
    def outsider(self, name: str) -> None:
        """Write directly: a registered shard refuses the write, and another one takes it."""
        shard, model = self.shard(name), self.models[name]
        upper, table = model.upper or 0, rows(("o", 1, model.upper or 0, 1))
        self.number += 1
        token = ("o", self.number)
        try:
            done = self.tried(
                lambda: shard.try_compare_and_append(table, upper, upper + 1, token=token)
            )
        except ShardRegistered:
            assert name in self.registered
            return
        assert name not in self.registered
        assert done.verdict in (COMMITTED, ALREADY)
        model.compare_and_append(updates_of(table), upper, upper + 1)

    @rule(who=HANDLES)
    def apply(self, who: int) -> None:
        self.tried(self.handles[who].apply)

    @rule(who=HANDLES)
    def tidy(self, who: int) -> None:
        self.tried(self.handles[who].tidy)

    @rule(name=NAMED, what=st.sampled_from(["compact", "collect", "sweep"]))
    def maintenance(self, name: str, what: str) -> None:
        """Maintain a shard through a handle that knows nothing of transactions."""
        shard = self.shard(name)
        calls = {
            "compact": lambda: shard.compact(full=True),
            "collect": lambda: shard.machine.collect(after_us=0),
            "sweep": shard.sweep,
        }
        self.tried(calls[what])

    @rule(who=HANDLES)
    def another_process(self, who: int) -> None:
        self.handles[who] = self.handle(who)

    @rule(who=HANDLES, name=NAMED, back=st.integers(1, 5))
    def listen(self, who: int, name: str, back: int) -> None:
        model = self.models[name]
        if name not in self.registered or self.upper - 1 - back < 0:
            return
        as_of = self.upper - 1 - back
        told = self.tried(lambda: heard(self.handles[who].listen(name, as_of), self.upper))
        assert consolidate(told) == model.changes(as_of)

    @rule(who=HANDLES, name=NAMED, back=st.integers(0, 5))
    def snapshot(self, who: int, name: str, back: int) -> None:
        as_of = (self.models[name].upper or 0) - 1 - back
        if name not in self.registered or as_of < 0:
            return
        snapshot = self.tried(lambda: self.handles[who].snapshot(name, as_of))
        found = contents_of(self.tried(partial(snapshot.to_arrow, consolidated=True)))
        assert found == self.models[name].contents(as_of)

    @invariant()
    def who_comes_new_sees_all_or_nothing(self) -> None:
        """Check that a new handle sees whole transactions, also by the shard's own name."""

        async def look() -> None:
            found = self.observer()
            assert await found.upper() == Frontier.at(self.upper)
            assert set(await found.tables()) == self.registered
            for name in NAMES:
                upper = self.models[name].upper or 0
                if not upper:
                    continue
                shard = self.place.shard(name=name, clock=OneThread())
                held: Counter[Row] = contents_of(
                    await (await shard.snapshot(upper - 1)).to_arrow(consolidated=True)
                )
                assert held == self.models[name].contents(upper - 1), name

        if self.number % 2:  # A look applies commits, so only half of the steps look.
            self.calmly(look())


@pytest.mark.parametrize(
    "canary", [commit_forgets_transactions_tokens, retries_ask_only_for_shards]
)
def test_transactions_that_forget_tokens_are_caught(canary: Canary) -> None:
    """The machine must find the fault of a broken build. Otherwise its success proves nothing."""
    with canary():
        must_fail(TransactedShards)


TestTransacted = TransactedShards.TestCase
TestTransacted.settings = settings(max_examples=20, stateful_step_count=30)
