"""T75: all operations of shards in any order, with several handles, a bad store and a model.

Hypothesis chooses the calls and the faults of their requests, and shrinks each failure. An outcome
that stays unknown is tried on the model both ways, and a read decides.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from kit.bad_store import OnBadStore, must_fail
from kit.clocks import OneThread
from kit.shards import ALREADY, COMMITTED, MISMATCH, contents, heard, rows
from sim.canaries.builds import commit_forgets_tokens
from tidelog.consensus.store import StoreConsensus
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    AsOfBeforeSince,
    DataDiffers,
    HoldExpired,
    LocationError,
    Outcome,
    OutcomeUnknown,
    PartsSwept,
    UsageError,
    require,
)
from tidelog.persist.format import part
from tidelog.persist.handle.leasing import LeasedReader
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.sweeper import usage_of_shard
from tidelog.persist.read.splits import Split, read_split
from tidelog.testing.models import Row, ShardModel, consolidate, contents_of, updates_of

HANDLES = st.integers(0, 2)
DRAWN = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.none() | st.integers(0, 1),
        st.integers(0, 2),
        st.sampled_from([1, 1, -1, 2]),
    ),
    max_size=5,
)
OFF = st.sampled_from([0, 0, 0, 0, -1, 1])
LEASE_US = 60_000_000


@dataclass(slots=True)
class PlannedRead:
    """The plan of a leased reader, and the rows that it must read."""

    reader: LeasedReader
    splits: list[Split]
    wanted: Counter[Row]
    is_over: bool = False


class Shards(OnBadStore):
    """Three handles of a shard on stores with faults, next to a model."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.model = ShardModel()
        self.since: int | None = 0
        self.holds: dict[str, int] = {}
        self.number = 0
        self.planned: list[PlannedRead] = []
        self.shards = [self.handle(who) for who in range(3)]
        self.patched = patch.object(part, "INLINE_BYTES", 200)
        self.patched.start()

    def teardown(self) -> None:
        self.patched.stop()
        super().teardown()

    def handle(self, who: int) -> Shard:
        store, clock = self.bad_store(), OneThread()
        # With few attempts, callers see unknown outcomes. Two of the three handles first try to
        # resolve them.
        consensus = StoreConsensus(store=store, clock=clock, attempts=1 + (who > 0))
        shard = self.place.shard(store=store, clock=clock, consensus=consensus)
        shard.machine.rollup_every = 3
        return shard

    def observer(self) -> Shard:
        """Return a handle without faults."""
        return self.place.shard(clock=OneThread())

    @property
    def upper(self) -> int:
        return self.model.upper or 0

    @property
    def is_dropped(self) -> bool:
        return self.since is None

    @initialize()
    def first(self) -> None:
        self.tried(lambda: self.shards[0].hold("history", 0))
        self.holds["history"] = 0

    @rule(
        who=HANDLES, drawn=DRAWN, off=st.sampled_from([0, 0, 0, 0, -1, 1]), more=st.integers(0, 2)
    )
    def compare_and_append(self, who: int, drawn: list[Any], off: int, more: int) -> None:
        """Append with a token until the outcome is known, as a caller that must know it."""
        lower = max(0, self.upper + off)
        until = lower + 1 + more
        table = rows(*((k, v, min(lower + at, until - 1), d) for k, v, at, d in drawn))
        self.number += 1
        token = ("w", self.number)
        landed = self.model.upper == lower
        try:
            done = self.tried(
                lambda: self.shards[who].try_compare_and_append(table, lower, until, token=token)
            )
        except (OutcomeUnknown, PartsSwept) as error:
            raise AssertionError("its token is among the newest") from error
        assert (done.verdict in (COMMITTED, ALREADY)) == landed, done
        self.model.compare_and_append(updates_of(table), lower, until)
        if done.verdict is MISMATCH:
            assert done.upper == Frontier.of(self.model.upper)

    @rule(who=HANDLES, drawn=DRAWN)
    def append_without_a_token(self, who: int, drawn: list[Any]) -> None:
        """Append once without a token.

        An error must be true about its outcome, and a read settles the rest.
        """
        lower, until = self.upper, self.upper + 3
        if self.model.upper is None:
            return
        table = rows(*((k, v, lower + at, d) for k, v, at, d in drawn))
        try:
            done = self.run(self.shards[who].try_compare_and_append(table, lower, until))
            landed = done.verdict is COMMITTED
            assert landed
        except LocationError as error:
            self.arrive_all()
            reached = self.run(self.observer().upper())
            landed = reached == Frontier.at(until)
            is_denied = error.outcome is Outcome.NOT_APPLIED
            require(not (landed and is_denied), "it landed, and was said not to have")
        if landed:
            self.model.compare_and_append(updates_of(table), lower, until)

    @rule(who=HANDLES, drawn=DRAWN, named=st.booleans(), others=st.booleans())
    def ask_again_long_after(self, who: int, drawn: list[Any], named: bool, others: bool) -> None:
        """T17 to T21: a late retry gets ALREADY if and only if the write landed."""
        if self.model.upper is None:
            return
        lower, until = self.upper, self.upper + 3
        table = rows(*((k, v, lower + at, d) for k, v, at, d in drawn))
        self.number += 1
        token = (f"again {self.number}", 0)

        def call() -> Any:
            return self.shards[who].try_compare_and_append(
                table, lower, until, token=token, named=named
            )

        with suppress(LocationError):
            self.run(call())
        landed = self.calmly(self.observer().upper()) == Frontier.at(until)
        if landed:
            self.model.compare_and_append(updates_of(table), lower, until)
        if others:
            mine, upper = rows(("o", 1, self.upper, 1)), self.upper
            self.calmly(self.observer().try_compare_and_append(mine, upper, upper + 1))
            self.model.compare_and_append(updates_of(mine), upper, upper + 1)
            self.arrive_all()
        done = self.tried(call)
        if landed:
            assert done.verdict is ALREADY
        elif others:
            assert done.verdict is MISMATCH
        else:
            assert done.verdict in (COMMITTED, ALREADY)  # It may have landed by itself, late.
            self.model.compare_and_append(updates_of(table), lower, until)

    @rule(who=HANDLES, drawn=DRAWN, cut=st.integers(1, 3))
    def append_as_replicas(self, who: int, drawn: list[Any], cut: int) -> None:
        """Two replicas append the same data with other boundaries, and it is stored once."""
        if self.model.upper is None:
            return
        lower, until = self.upper, self.upper + 4
        data = [(k, v, lower + at, d) for k, v, at, d in drawn]

        def between(first: int, last: int) -> pa.Table:
            return rows(*(u for u in data if first <= u[2] < last))

        one, other = self.shards[who], self.shards[(who + 1) % 3]
        middle = lower + cut
        self.tried(lambda: one.append(between(lower, middle), lower, middle))
        self.tried(lambda: other.append(between(lower, until), lower, until))
        self.tried(lambda: one.append(between(middle, until), middle, until))
        self.model.compare_and_append(updates_of(rows(*data)), lower, until)

    @rule(who=HANDLES, drawn=DRAWN)
    def other_data_for_the_same_times(self, who: int, drawn: list[Any]) -> None:
        if self.model.upper is None:
            return
        lower = self.upper
        mine = rows(("a", 0, lower, 1))
        other = rows(("zzz", 0, lower, 1))
        self.tried(lambda: self.shards[who].append(mine, lower, lower + 1))
        self.model.compare_and_append(updates_of(mine), lower, lower + 1)
        try:
            self.tried(lambda: self.shards[(who + 1) % 3].append(other, lower, lower + 1))
        except DataDiffers:
            return
        raise AssertionError("other data was taken")

    @rule(who=HANDLES, name=st.sampled_from(["n", "m"]), drawn=DRAWN, beat=st.booleans())
    def named_appender(self, who: int, name: str, drawn: list[Any], beat: bool) -> None:
        """Append with a new appender of an old name: updates, then progress."""
        if self.model.upper is None:
            return
        lower, until = self.upper, self.upper + 3
        table = rows(*((k, v, lower + at, d) for k, v, at, d in drawn))
        heartbeat_us = 10_000_000 if beat else 0
        writer = self.tried(lambda: self.shards[who].appender(name, heartbeat_us=heartbeat_us))
        assert writer.upper == Frontier.at(lower)
        self.tried(lambda: writer.append(table, until))
        self.tried(lambda: writer.advance(until + 1))
        self.tried(writer.close)
        self.model.compare_and_append(updates_of(table), lower, until + 1)

    @rule(who=HANDLES, name=st.sampled_from(["n", "m"]))
    def drop_writer(self, who: int, name: str) -> None:
        self.tried(lambda: self.shards[who].drop_writer(name))
        assert name not in self.run(self.observer().refresh()).writers

    @rule(who=HANDLES, name=st.sampled_from(["h", "i"]), at=st.integers(-1, 6))
    def hold(self, who: int, name: str, at: int) -> None:
        since = None if at < 0 else at
        wrong = name not in self.holds and (
            self.is_dropped or (since is not None and not (self.since or 0) <= since <= self.top)
        )
        try:
            found = self.tried(lambda: self.shards[who].hold(name, since))
        except UsageError:
            assert wrong
            return
        if self.is_dropped:
            assert since is None
            assert found == Frontier.empty()
            self.run(self.observer().drop_hold(name))
            return
        assert not wrong
        kept = self.holds.setdefault(name, (self.since or 0) if since is None else since)
        assert found == Frontier.at(kept)

    @property
    def top(self) -> int:
        return 2**62 if self.model.upper is None else self.model.upper

    @rule(who=HANDLES, name=st.sampled_from(["history", "h", "i"]), by=st.integers(0, 3))
    def move_hold(self, who: int, name: str, by: int) -> None:
        """Move a hold, as retention and other holders do."""
        if name not in self.holds:
            return
        to = min(self.holds[name] + by, self.top)
        self.tried(lambda: self.shards[who].move_hold(name, to))
        self.holds[name] = to
        self.see_since()

    @rule(who=HANDLES, name=st.sampled_from(["h", "i"]))
    def release(self, who: int, name: str) -> None:
        self.tried(lambda: self.shards[who].drop_hold(name))
        self.holds.pop(name, None)

    def see_since(self) -> None:
        """Check T32: since never moves back, and never passes a hold."""
        state = self.run(self.observer().refresh())
        if self.is_dropped:
            assert state.since is None
            return
        assert state.since is not None
        assert state.since >= (self.since or 0)
        assert all(state.since <= at for at in self.holds.values())
        self.since = state.since

    @rule(target=leases, who=HANDLES, fixed=st.booleans(), count=st.integers(1, 3))
    def lease(self, who: int, fixed: bool, count: int) -> Any:
        """Plan a snapshot under a lease. Its parts stay until the lease is over."""
        if self.is_dropped or self.top <= (self.since or 0) or not self.upper:
            return multiple()
        as_of = max(self.since or 0, self.upper - 1)
        reader = self.tried(lambda: self.shards[who].lease(lease_us=LEASE_US, fixed=fixed))
        self.run(reader.stop())
        snapshot = self.tried(lambda: reader.snapshot(as_of))
        found = PlannedRead(reader, snapshot.splits(count), self.model.contents(as_of))
        self.planned.append(found)
        return found

    @rule(planned=leases)
    def read_under_lease(self, planned: PlannedRead) -> None:
        """Check T28: after merges, collections and sweeps, the plan still reads all its rows."""

        async def read() -> Counter[Row]:
            found: Counter[Row] = Counter()
            for split in planned.splits:
                table = await read_split(split, store=self.inner, clock=OneThread())
                for update in updates_of(table):
                    found[update.row] += update.diff
            return Counter({row: n for row, n in found.items() if n})

        if not planned.is_over and not self.is_dropped:
            assert self.run(read()) == planned.wanted

    @rule(planned=leases)
    def renew(self, planned: PlannedRead) -> None:
        try:
            self.tried(planned.reader.renew)
            assert not planned.is_over
        except HoldExpired:
            assert planned.is_over or self.is_dropped or planned.reader.until_us is not None
        except UsageError:
            assert planned.reader.until_us is not None

    @rule(planned=consumes(leases))
    def close_lease(self, planned: PlannedRead) -> None:
        self.run(planned.reader.close())
        planned.is_over = True

    @rule()
    def leases_end(self) -> None:
        """End all leases after their term, as a watching collector does."""
        watcher, clock = self.observer(), OneThread()
        watcher.clock = clock
        self.run(watcher.end_leases())
        clock.slept_us += LEASE_US + 1
        self.run(watcher.end_leases())
        for planned in self.planned:
            planned.is_over = True

    @rule(who=HANDLES, full=st.booleans())
    def compact(self, who: int, full: bool) -> None:
        self.tried(lambda: self.shards[who].compact(full=full))

    @rule(who=HANDLES)
    def collect(self, who: int) -> None:
        self.tried(lambda: self.shards[who].machine.collect(after_us=0))

    @rule(who=HANDLES)
    def sweep(self, who: int) -> None:
        self.tried(self.shards[who].sweep)

    @rule(who=HANDLES, back=st.integers(0, 4), count=st.integers(1, 4))
    def snapshot(self, who: int, back: int, count: int) -> None:
        """Check T29: the read returns the model's contents, or raises a typed error."""
        as_of = self.upper - 1 - back
        if as_of < 0:
            return
        shard = self.shards[who]
        try:
            snapshot = self.tried(lambda: shard.snapshot(as_of))
            found = contents_of(self.tried(partial(snapshot.to_arrow, consolidated=True)))
        except AsOfBeforeSince:
            assert self.is_dropped or as_of < self.run(self.observer().since()).time
            return
        assert found == self.model.contents(as_of)
        assert len(snapshot.splits(count)) == count

    @rule(who=HANDLES, back=st.integers(1, 4))
    def listen(self, who: int, back: int) -> None:
        """Check T23: a listener returns each later update once, at its own time."""
        as_of = self.upper - 1 - back
        if as_of < 0 or self.model.upper is None:
            return
        shard = self.shards[who]
        try:
            told = self.tried(lambda: heard(shard.listen(as_of), self.model.upper))
        except AsOfBeforeSince:
            assert as_of < self.run(self.observer().since()).time
            return
        assert consolidate(told) == self.model.changes(as_of)

    @rule(who=HANDLES)
    def another_process(self, who: int) -> None:
        """Replace a handle by a new one, as after the death of its process."""
        self.shards[who] = self.handle(who)

    @precondition(lambda self: self.model.upper is not None and len(self.model.updates) > 8)
    @rule(who=HANDLES)
    def finish(self, who: int) -> None:
        lower = self.upper
        self.number += 1
        token = ("w", self.number)
        done = self.tried(
            lambda: self.shards[who].try_compare_and_append(None, lower, None, token=token)
        )
        assert done.verdict in (COMMITTED, ALREADY)
        self.model.compare_and_append([], lower, None)

    @precondition(lambda self: self.model.upper is None)
    @rule(who=HANDLES)
    def bury(self, who: int) -> None:
        self.tried(self.shards[who].drop)
        self.holds.clear()
        self.since = None

    @invariant()
    def whoever_comes_new_sees_the_model(self) -> None:
        """Check T46, T53 and T56: the state, objects and usage are consistent for a new handle."""

        async def look() -> None:
            shard = self.observer()
            state = await shard.refresh()
            assert state.upper_frontier == Frontier.of(self.model.upper)
            named = {one.path for b in state.batches for one in b.parts if one.path is not None}
            assert named <= set(self.inner.objects)
            usage = await usage_of_shard(shard)
            listed = [key for key in self.inner.objects if key.startswith("shard/")]
            assert sum(usage.objects.values()) == len(listed)
            as_of = self.upper - 1
            if state.since is not None and state.since <= as_of:
                assert await contents(shard, as_of) == self.model.contents(as_of)

        self.calmly(look())


def test_a_shard_that_forgets_tokens_is_caught() -> None:
    """The machine must find the fault of a broken build. Otherwise its success proves nothing."""
    with commit_forgets_tokens():
        must_fail(Shards)


TestShards = Shards.TestCase
TestShards.settings = settings(max_examples=30, stateful_step_count=40)
