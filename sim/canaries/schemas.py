"""Canaries of schemas that evolve: builds that accept, confuse or lose rows of other columns.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from tidelog.errors import PartMissing
from tidelog.machine.language import Decision
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema, fitted
from tidelog.persist.handle import appending, listening, shard
from tidelog.persist.maintenance import merging
from tidelog.persist.maintenance.merge_rows import RowMerger
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.persist.states import evolution, transition
from tidelog.persist.states.evolution import newest_schema
from tidelog.persist.states.state import Diff, State

Read = Callable[[ShardSnapshot], Awaitable[pa.Table]]


@contextmanager
def writers_of_earlier_schemas_are_let_in() -> Iterator[None]:
    """A commit does not check that its rows have the newest columns."""

    def lax(*_: object) -> None:
        return None

    with patch.object(transition, "check_newest", lax):
        yield


@contextmanager
def names_are_used_again() -> Iterator[None]:
    """A column may be added under the name of a dropped one."""
    check = evolution.check_successor

    def forgetful(old: ShardSchema, new: ShardSchema) -> None:
        check(replace(old, known=()), new)

    with patch.object(evolution, "check_successor", forgetful):
        yield


@contextmanager
def who_evolves_does_not_compare() -> Iterator[None]:
    """A schema change does not compare: a client that adds a column drops another client's."""
    decide = evolution.decide_evolve

    def careless(state: State, wanted: pa.Schema, expected: int | None) -> Decision[Diff, Any]:
        del expected
        return decide(state, wanted, state.schema_id)

    with patch.object(shard, "decide_evolve", careless):
        yield


@contextmanager
def readers_get_dropped_columns_as_nulls() -> Iterator[None]:
    """A reader whose column was dropped gets nulls instead of an error."""
    serve = evolution.served_schema

    def lenient(state: State, wanted: ShardSchema | None) -> ShardSchema:
        if wanted is None or not state.schema:
            return serve(state, wanted)
        return replace(wanted, known=newest_schema(state).known)

    with (
        patch.object(shard, "served_schema", lenient),
        patch.object(listening, "served_schema", lenient),
    ):
        yield


@contextmanager
def merges_lose_added_columns() -> Iterator[None]:
    """A merge has only the shard's first columns, and its sums are not checked."""
    load = RowMerger.load

    async def narrow(self: RowMerger, part: Part) -> pa.Table:
        table = await load(self, part)
        there = [name for name in table.column_names if name in self.schema.known[0].names]
        kept = fitted(table, [*there, *table.column_names[-2:]], self.schema.updates)
        return fitted(kept, self.schema.updates.names, self.schema.updates)

    def believe(*_: object) -> None:
        return None

    with (
        patch.object(RowMerger, "load", narrow),
        patch.object(merging, "_check_merged", believe),
    ):
        yield


@contextmanager
def retries_ask_only_for_columns() -> Iterator[None]:
    """A retry whose rows no longer fit is refused, without a look at the first try."""
    append = appending._append

    with patch.object(appending, "compare_and_append", append):
        yield


@contextmanager
def who_reads_again_knows_no_newer_schema() -> Iterator[None]:
    """A snapshot reads merged parts of newer schemas by the schemas it knew before."""
    current = ShardSnapshot._current

    async def stubborn(self: ShardSnapshot, read: Read) -> pa.Table:
        async def again(error: PartMissing) -> ShardSnapshot:
            return replace(await self.again(error), schema=self.schema)

        return await current(replace(self, again=again), read)

    with patch.object(ShardSnapshot, "_current", stubborn):
        yield


Canary = Callable[[], AbstractContextManager[None]]
FOR_SCHEMAS: Final[tuple[Canary, ...]] = (
    writers_of_earlier_schemas_are_let_in,
    names_are_used_again,
    who_evolves_does_not_compare,
    readers_get_dropped_columns_as_nulls,
    merges_lose_added_columns,
    who_reads_again_knows_no_newer_schema,
)
