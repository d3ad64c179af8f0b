"""T75 for schemas: columns are added and dropped among writers, retries and merges.

The model is a list of rows as dicts. A reader of some columns sees these fields of each row, or
null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kit.bad_store import OnBadStore, must_fail
from kit.clocks import OneThread
from kit.shards import ALREADY, COMMITTED, MISMATCH, heard
from sim.canaries.builds import Canary, commit_forgets_tokens
from sim.canaries.schemas import merges_lose_added_columns, retries_ask_only_for_columns
from tidelog.consensus.store import StoreConsensus
from tidelog.core.frontier import Frontier
from tidelog.errors import LocationError, SchemaEvolved, SchemaIncompatible, UsageError
from tidelog.persist.format import part
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.evolution import EvolveVerdict
from tidelog.testing.models import Row, Update, accumulate, consolidate, contents_of

HANDLES = st.integers(0, 1)
_COLUMNS: dict[str, pa.DataType] = {"k": pa.string(), "v": pa.int64()}
FIRST = pa.schema(_COLUMNS)
TYPES: list[pa.DataType] = [pa.int64(), pa.string(), pa.float64()]
VALUES: dict[pa.DataType, list[Hashable]] = {
    pa.int64(): [None, 0, 1],
    pa.string(): [None, "x", ""],
    pa.float64(): [None, 0.5, 1.0],
}
DRAWN = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 8), st.sampled_from([1, 1, -1])), max_size=4
)
OFTEN = st.sampled_from([True, True, True, False])
Stored = tuple[dict[str, Hashable], int, int]


def table_of(columns: pa.Schema, rows: list[Stored]) -> pa.Table:
    given = [{**values, TIME: time, DIFF: diff} for values, time, diff in rows]
    return pa.Table.from_pylist(given, schema=ShardSchema(columns, 0).updates)


class EvolvingShard(OnBadStore):
    """Two handles that follow the schema, and others that bring their own."""

    def __init__(self) -> None:
        super().__init__()
        self.known = [FIRST]
        self.rows: list[Stored] = []
        self.upper = self.since = self.number = 0
        self.handles = [self.handle(who) for who in range(2)]
        self.patched = patch.object(part, "INLINE_BYTES", 300)
        self.patched.start()

    def teardown(self) -> None:
        self.patched.stop()
        super().teardown()

    def handle(self, who: int, columns: pa.Schema | None = None) -> Shard:
        store, clock = self.bad_store(), OneThread()
        consensus = StoreConsensus(store=store, clock=clock, attempts=1 + who)
        schema = None if columns is None else shard_schema(columns, key=["k"])
        shard = self.place.shard(store=store, clock=clock, consensus=consensus, schema=schema)
        shard.machine.rollup_every = 3
        return shard

    def observer(self) -> Shard:
        return self.place.shard(clock=OneThread(), schema=None)

    @property
    def newest(self) -> pa.Schema:
        return self.known[-1]

    def updates(self, names: list[str]) -> list[Update]:
        return [Update(tuple(row.get(n) for n in names), time, d) for row, time, d in self.rows]

    @initialize()
    def first(self) -> None:
        self.tried(lambda: self.handle(0, FIRST).hold("history", 0))

    def drawn_rows(self, columns: pa.Schema, drawn: list[Any], lower: int) -> list[Stored]:
        """Return rows for the columns. Each drawn number selects the values."""
        return [
            (
                {
                    "k": k,
                    **{f.name: VALUES[f.type][n % 3] for f in columns if f.name != "k"},
                },
                lower + n % 3,
                diff,
            )
            for k, n, diff in drawn
        ]

    @rule(who=HANDLES, drawn=DRAWN)
    def write(self, who: int, drawn: list[Any]) -> None:
        """Write in the newest columns, whatever schema the handle knew before."""
        lower, rows = self.upper, self.drawn_rows(self.newest, drawn, self.upper)
        self.number += 1
        token = ("w", self.number)
        table = table_of(self.newest, rows)
        shard = self.handles[who]
        self.tried(shard.refresh)
        done = self.tried(
            lambda: shard.try_compare_and_append(table, lower, lower + 3, token=token)
        )
        assert done.verdict in (COMMITTED, ALREADY)
        self.landed(rows)

    def landed(self, rows: list[Stored]) -> None:
        self.rows += rows
        self.upper += 3

    @rule(who=HANDLES, drawn=DRAWN, own=st.booleans(), change=OFTEN, looks=OFTEN)
    def ask_again_after_a_change(
        self, who: int, drawn: list[Any], own: bool, change: bool, looks: bool
    ) -> None:
        """T18, T20: a retry of a landed write gets ALREADY, even if its rows no longer fit."""
        lower, columns = self.upper, self.newest
        rows = self.drawn_rows(columns, drawn, lower)
        table = table_of(columns, rows)
        self.number += 1
        token = ("again", self.number)
        shard = self.handle(who, columns) if own else self.handles[who]
        self.tried(shard.refresh)

        def call() -> Any:
            return shard.try_compare_and_append(table, lower, lower + 3, token=token)

        with suppress(LocationError):
            self.run(call())
        landed = self.calmly(self.observer().upper()) == Frontier.at(lower + 3)
        if landed:
            self.landed(rows)
        if change:
            self.calmly(self.observer().evolve_schema(self.with_another()))
            self.known.append(self.with_another())
        mine: list[Stored] = [({"k": "o"}, self.upper, 1)]
        work = self.observer().try_compare_and_append(
            table_of(self.newest, mine), self.upper, self.upper + 3
        )
        self.calmly(work)
        self.landed(mine)
        self.arrive_all()
        if looks:
            self.tried(shard.refresh)
        try:
            done = self.tried(call)
        except (SchemaEvolved, UsageError):
            assert change
            assert not landed
            return
        assert done.verdict is (ALREADY if landed else MISMATCH)

    def with_another(self) -> pa.Schema:
        number = len(self.known)
        return self.newest.append(pa.field(f"c{number}", TYPES[number % 3]))

    @rule(who=HANDLES, expected=st.booleans())
    def add_column(self, who: int, expected: bool) -> None:
        wanted, newest_id = self.with_another(), len(self.known) - 1
        given = newest_id if expected else None
        done = self.tried(lambda: self.handles[who].evolve_schema(wanted, expected=given))
        assert done.verdict in (EvolveVerdict.EVOLVED, EvolveVerdict.ALREADY)
        assert done.schema_id == newest_id + 1
        self.known.append(wanted)

    @rule(who=HANDLES, at=st.integers(0, 3))
    def drop_column(self, who: int, at: int) -> None:
        loose = [name for name in self.newest.names if name != "k"]
        if not loose:
            return
        name = loose[at % len(loose)]
        wanted = self.newest.remove(self.newest.get_field_index(name))
        done = self.tried(lambda: self.handles[who].evolve_schema(wanted))
        assert done.schema_id == len(self.known)
        self.known.append(wanted)

    @rule(who=HANDLES, at=st.integers(0, 3))
    def take_a_name_again(self, who: int, at: int) -> None:
        ever = {name for schema in self.known for name in schema.names}
        gone = sorted(ever - set(self.newest.names))
        if gone:
            wanted = self.newest.append(pa.field(gone[at % len(gone)], TYPES[at % 3]))
            with pytest.raises(SchemaIncompatible):
                self.tried(lambda: self.handles[who].evolve_schema(wanted))

    @rule(who=HANDLES, at=st.integers(0, 5), drawn=DRAWN)
    def write_by_an_earlier_schema(self, who: int, at: int, drawn: list[Any]) -> None:
        columns = self.known[at % len(self.known)]
        table = table_of(columns, self.drawn_rows(columns, [("a", 0, 1), *drawn], self.upper))
        if columns.names == self.newest.names:
            return
        shard = self.handle(who, columns)
        with pytest.raises(SchemaEvolved):
            self.tried(lambda: shard.try_compare_and_append(table, self.upper, self.upper + 3))

    @rule(who=HANDLES, drawn=DRAWN)
    def named_appender(self, who: int, drawn: list[Any]) -> None:
        rows = self.drawn_rows(self.newest, drawn, self.upper)
        table = table_of(self.newest, rows)
        writer = self.tried(lambda: self.handles[who].appender("n"))
        self.tried(lambda: writer.append(table, self.upper + 3))
        self.landed(rows)

    @rule(who=HANDLES, back=st.integers(0, 5), at=st.integers(0, 6))
    def snapshot(self, who: int, back: int, at: int) -> None:
        """Read in the columns of any schema. A dropped column raises SchemaEvolved."""
        as_of = self.upper - 1 - back
        if as_of < self.since:
            return
        columns = (*self.known, None)[at % (len(self.known) + 1)]
        shard = self.handles[who] if columns is None else self.handle(who, columns)
        names = self.newest.names if columns is None else columns.names
        try:
            snapshot = self.tried(lambda: shard.snapshot(as_of))
            table = self.tried(lambda: snapshot.to_arrow(consolidated=True))
        except SchemaEvolved:
            assert set(names) - set(self.newest.names)
            return
        assert table.column_names == [*names, DIFF]
        assert contents_of(table) == accumulate(self.updates(names), as_of)

    @rule(who=HANDLES, back=st.integers(1, 5))
    def listen(self, who: int, back: int) -> None:
        as_of = self.upper - 1 - back
        if as_of < self.since:
            return
        told = self.tried(lambda: heard(self.handles[who].listen(as_of), self.upper))
        assert consolidate(told) == consolidate(self.updates(self.newest.names), after=as_of)

    @rule(who=HANDLES, by=st.integers(0, 4))
    def retain(self, who: int, by: int) -> None:
        to = min(self.since + by, self.upper)
        self.tried(lambda: self.handles[who].move_hold("history", to))
        self.since = to

    @rule(who=HANDLES, full=st.booleans())
    def compact(self, who: int, full: bool) -> None:
        self.tried(lambda: self.handles[who].compact(full=full))

    @rule(who=HANDLES)
    def sweep(self, who: int) -> None:
        self.tried(lambda: self.handles[who].machine.collect(after_us=0))
        self.tried(self.handles[who].sweep)

    @rule(who=HANDLES)
    def another_process(self, who: int) -> None:
        self.handles[who] = self.handle(who)

    @invariant()
    def whoever_comes_new_sees_the_model(self) -> None:
        async def look() -> None:
            shard = self.observer()
            assert [schema.names for schema in await shard.schemas()] == [
                schema.names for schema in self.known
            ]
            if self.upper > self.since:
                held: Counter[Row] = contents_of(
                    await (await shard.snapshot(self.upper - 1)).to_arrow(consolidated=True)
                )
                assert held == accumulate(self.updates(self.newest.names), self.upper - 1)

        if self.number:
            self.calmly(look())


@pytest.mark.parametrize(
    "canary", [commit_forgets_tokens, retries_ask_only_for_columns, merges_lose_added_columns]
)
def test_a_broken_build_is_caught(canary: Canary) -> None:
    """The machine must find the fault of a broken build. Otherwise its success proves nothing."""
    with canary():
        must_fail(EvolvingShard)


TestEvolving = EvolvingShard.TestCase
TestEvolving.settings = settings(max_examples=25, stateful_step_count=40)
