"""The reader of a write: the rows that it depends on, and whether later commits changed them.

It reads as of the newest time that the handle of the transactions knows, which may not be the
newest one. That costs no request if the handle knows the states of the shards, too. A commit that
names this time is refused if such a row has changed since.

Parts that were read stay open, up to a number of bytes.
Source: design page 6, "Tables".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.collection.table.lookups import ByCondition, ByValues, Lookup
from tidelog.collection.table.placement import buckets_of
from tidelog.core.clock import run_all
from tidelog.core.threads import on_cores
from tidelog.errors import AsOfBeforeSince, PartMissing, SchemaEvolved
from tidelog.persist.format.bounds import box_of_part
from tidelog.persist.format.corrected import consolidated
from tidelog.persist.format.part import Part, int64_of
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.read.contents import ContentsReader
from tidelog.persist.read.opened import OpenPart, PartOpener
from tidelog.persist.read.reader import parts_between, parts_until
from tidelog.persist.read.rereading import READS_MAX, overtaken
from tidelog.persist.read.selection import CheckedSelection
from tidelog.persist.read.snapshot import require_replaced
from tidelog.persist.states.evolution import newest_schema
from tidelog.persist.states.registration import with_steps
from tidelog.persist.states.state import Registration, State
from tidelog.persist.transactions.applying import steps_of
from tidelog.persist.transactions.lost import check_has_commits
from tidelog.persist.transactions.port import TransactionsHandle
from tidelog.persist.transactions.state import TransactionState
from tidelog.persist.transactions.transition import table_of

OPEN_BYTES_MAX: Final = 64 * 1024 * 1024
READS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one upper of the transactions: the complete states of some of its shards."""

    upper: int
    states: Mapping[str, State]


@dataclass(frozen=True, slots=True)
class _Covered:
    """A moment at which a shard's own state and the pending commits had all its commits.

    Shape: ``upper`` is that of the transactions; ``next`` is the upper of the first commit that the
        shard's own state, with its upper ``own``, lacked.
    """

    upper: int
    own: int
    next: int | None


@dataclass(slots=True, kw_only=True)
class TableReader:
    """Reads rows of one table.

    Shape: ``schema`` has the table's key. ``stored`` is that of the shards: without a key, they are
        sorted by all columns of the table's creation. ``shards`` are ids.
    """

    name: str
    schema: ShardSchema
    stored: ShardSchema
    shards: Sequence[str]
    transactions: TransactionsHandle
    open_bytes_max: int = OPEN_BYTES_MAX
    _covered: dict[str, _Covered] = field(init=False, default_factory=dict)
    _open: OrderedDict[tuple[str, tuple[str, ...]], OpenPart] = field(
        init=False, default_factory=OrderedDict
    )

    def shards_of(self, lookup: Lookup | None) -> list[str]:
        """Return the shards that can have rows of a lookup."""
        if lookup is None:
            return []
        if isinstance(lookup, ByValues) and lookup.columns == self.schema.key:
            buckets = np.unique(buckets_of(lookup.values, self.schema, len(self.shards)))
            return [self.shards[number] for number in buckets.tolist()]
        return list(self.shards)

    async def view(self, shards: Sequence[str], *, fresh: bool) -> TableView:
        """Return the newest known states of shards; ``fresh`` reads the newest ones.

        Raises:
            NotRegistered: the table was dropped, or its creation was interrupted.
            SchemaEvolved: the table was altered. LocationError: the store failed.
        """
        known = self.transactions.state
        if fresh or not all(shard in known.tables for shard in self.shards):
            known = await self.transactions.refresh()
        for shard in self.shards:
            table_of(known, shard)
        found = await run_all(
            [partial(self._state_of, known, shard, fresh) for shard in shards],
            at_once=READS_AT_ONCE,
        )
        since = max((state.since or 0 for state in found), default=0)
        if since >= known.upper and not fresh:
            return await self.view(shards, fresh=True)
        return TableView(known.upper, dict(zip(shards, found, strict=True)))

    async def rows(self, lookup: Lookup, view: TableView) -> pa.Table:
        """Return the rows of a lookup, consolidated: the columns and ``_diff``.

        Raises:
            UsageError: a condition fails on a row. CorruptionError: stored bytes are wrong.
            LocationError: the store failed.
        """
        as_of = view.upper - 1
        for _ in range(READS_MAX):
            try:
                return await self._rows(lookup, view, as_of)
            except PartMissing as error:
                view = await self._replaced(view, error)
        raise overtaken()

    async def are_changed(self, lookup: Lookup, old: TableView, new: TableView) -> bool:
        """Return True if a commit between two views may have changed a row of a lookup.

        Raises:
            UsageError: a condition fails on a row. CorruptionError: stored bytes are wrong.
            LocationError: the store failed.
        """
        since, until = old.upper - 1, new.upper - 1
        try:
            for state in new.states.values():
                state.check_readable(max(since, 0))
            parts = [
                part
                for state in new.states.values()
                for part in parts_between(state, since, until)
                if lookup.reaches(box_of_part(part))
            ]
            opened = await self._opened(parts, new, lookup.columns)
        except (AsOfBeforeSince, PartMissing):
            return True  # Merges no longer keep these times apart.
        names = [*lookup.columns, TIME]

        def any_changed() -> bool:
            found = [one.read(range(len(one.groups)), names, as_of=until) for one in opened]
            recent = pa.concat_tables(
                one.filter(pa.array(int64_of(one, TIME) > since)) for one in found
            )
            return bool(recent.num_rows and lookup.mask(recent).any())

        return bool(opened) and await self.transactions.clock.offload(any_changed)

    async def _rows(self, lookup: Lookup, view: TableView, as_of: int) -> pa.Table:
        parts = [
            part
            for state in view.states.values()
            for part in parts_until(state, as_of)
            if lookup.reaches(box_of_part(part))
        ]
        empty = self.schema.contents.empty_table()
        if not parts:
            return empty
        if isinstance(lookup, ByCondition):
            found = await self._selected(lookup, parts, view, as_of)
        else:
            opened = await self._opened(parts, view, lookup.columns)
            found = await self.transactions.clock.offload(
                lambda: _matching(opened, lookup, self.schema, as_of)
            )
        tables = [one.select(empty.column_names).cast(empty.schema) for one in found]
        work = partial(consolidated, pa.concat_tables([empty, *tables]), key=self.schema.key)
        return await self.transactions.clock.offload(work)

    async def _selected(
        self, lookup: ByCondition, parts: Sequence[Part], view: TableView, as_of: int
    ) -> list[pa.Table]:
        columns = tuple(self.schema.names)
        contents = ContentsReader(
            schema=_stored(view),
            selection=CheckedSelection(columns=columns, predicate=lookup.predicate, limit=None),
            as_of=as_of,
            store=self.transactions.shard(self.shards[0]).store,
            clock=self.transactions.clock,
        )
        return [table async for table in contents.tables(parts)]

    async def _opened(
        self, parts: Sequence[Part], view: TableView, columns: Sequence[str]
    ) -> list[OpenPart]:
        """Open parts, unless they are open, with the bounds of some columns."""
        names = tuple(columns)
        if not parts:
            return []
        fields = _stored(view).data
        texts = {field.name for field in fields if pa.types.is_string(field.type)}
        opener = PartOpener(
            store=self.transactions.shard(self.shards[0]).store,
            clock=self.transactions.clock,
            schema=_stored(view),
            names=frozenset(names),
            packed=frozenset(texts - {*names}),  # Few of their values are needed.
        )
        missing = [part for part in parts if (part.path or "", names) not in self._open]
        opened = iter(await opener.open(missing))
        found = {id(part): next(opened) for part in missing}
        for part in parts:
            key = (part.path or "", names)
            if id(part) not in found:
                found[id(part)] = self._open[key]
        self._keep(names, found.values())
        return [found[id(part)] for part in parts]

    def _keep(self, names: tuple[str, ...], opened: Iterable[OpenPart]) -> None:
        """Keep open parts; close the ones that were used least recently."""
        for one in opened:
            if one.part.path is not None and one.part.size_bytes <= self.open_bytes_max:
                self._open[(one.part.path, names)] = one
                self._open.move_to_end((one.part.path, names))
        left = sum(one.part.size_bytes for one in self._open.values())
        while left > self.open_bytes_max:
            left -= self._open.popitem(last=False)[1].part.size_bytes

    async def _state_of(self, known: TransactionState, shard: str, fresh: bool) -> State:
        """Return the state of a shard, with all commits that the transactions ``known`` have."""
        handle, steps = self.transactions.shard(shard), steps_of(known, self._of, shard)
        registered = Registration(self._of, known.tables[shard].number)
        is_known = handle.state.registered == registered and self._is_covered(known, shard)
        if fresh or not is_known:
            await handle.refresh()
            check_has_commits(known, shard, handle.state)
        own = handle.state.upper or 0
        ahead = [step.upper for step in steps if step.upper > own]
        self._covered[shard] = _Covered(known.upper, own, ahead[0] if ahead else None)
        state = with_steps(handle.state, steps)
        if newest_schema(state).data != self.schema.data:
            raise altered(self.name)
        return state

    @property
    def _of(self) -> str:
        return self.transactions.name

    def _is_covered(self, known: TransactionState, shard: str) -> bool:
        """Return True if the shard's own state, as known, and the pending commits are complete.

        Pending commits of a shard are its newest ones. They are complete if the shard's own state
        has one of them, or if the first one follows the commits known before.
        """
        own = self.transactions.shard(shard).state.upper or 0
        pending = [(one.lower, one.upper) for one in known.pending if shard in one.writes]
        ahead = [(lower, upper) for lower, upper in pending if upper > own]
        moved = known.moved.get(shard, known.upper)
        if moved <= own or len(ahead) < len(pending):
            return True
        before = self._covered.get(shard)
        if before is None:
            return False
        if before.next is not None:
            return bool(ahead) and ahead[0][1] == before.next
        if not ahead:
            return moved <= before.upper
        return ahead[0][0] == before.upper

    async def _replaced(self, view: TableView, error: PartMissing) -> TableView:
        """Return a view whose states name other parts than the missing one.

        Raises:
            PartMissing: the newest state names the part, so it is lost.
            AsOfBeforeSince: the time of the view is no longer readable.
        """
        fresh = await self.view(list(view.states), fresh=True)
        require_replaced(fresh.states.values(), error)
        for state in fresh.states.values():
            state.check_readable(view.upper - 1)
        return TableView(view.upper, fresh.states)


def altered(name: str) -> SchemaEvolved:
    """Return the error of a handle whose table has other columns now."""
    return SchemaEvolved(
        f"the table {name!r} was altered after this process opened it: open it again"
    )


def _stored(view: TableView) -> ShardSchema:
    """Return the schema of the table's shards, with all earlier ones."""
    return newest_schema(next(iter(view.states.values())))


def _matching(
    opened: Sequence[OpenPart], lookup: Lookup, schema: ShardSchema, as_of: int
) -> list[pa.Table]:
    """Return the rows of a lookup in some parts, with ``_diff``; each core decodes a share."""
    groups = [
        (one, number)
        for one in opened
        for number, group in enumerate(one.groups)
        if lookup.reaches(group.bounds)
    ]
    # Groups take very different times: parts that few rows reach are small.
    decoded = partial(_matching_in, lookup=lookup, schema=schema, as_of=as_of)
    return on_cores([partial(decoded, *group) for group in groups])


def _matching_in(
    opened: OpenPart, group: int, *, lookup: Lookup, schema: ShardSchema, as_of: int
) -> pa.Table:
    """Return the rows of a lookup in a row group; other columns are decoded only for such rows."""
    keys = opened.read([group], list(lookup.columns), as_of=as_of)
    places = np.flatnonzero(lookup.mask(keys))
    if not len(places):
        return schema.contents.empty_table()
    # The two reads omit the same rows, those of later times.
    rest = [name for name in (*schema.names, DIFF) if name not in lookup.columns]
    others = opened.read([group], rest, as_of=as_of)
    for name in lookup.columns:
        others = others.append_column(name, keys.column(name))
    return others.take(places).select(schema.contents.names).cast(schema.contents)
