"""Writes of a table that depend on its rows: read them, plan, commit, and plan again if needed.

The commit names the upper at which the rows were read. If another commit came first, the writer
reads only the updates in between. If none of them is of a row that the write depends on, the same
parts are committed at the newer upper. Otherwise the write is planned again.

Writes of one handle run one after the other. Otherwise the state would refuse each later one once.
Source: design page 6, "Tables".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.collection.table.changes import SpooledMerge, TableChange, check_absent, unread_keys
from tidelog.collection.table.lookups import Lookup
from tidelog.collection.table.placement import placed
from tidelog.collection.table.reader import TableReader, TableView
from tidelog.core.clock import Clock, backoff_us, run_all
from tidelog.core.frontier import Frontier, check_time
from tidelog.errors import (
    ContentionError,
    DataDiffers,
    DeletesAllRows,
    NotRegistered,
    PartsSwept,
    SchemaEvolved,
    UsageError,
)
from tidelog.persist.format.part import int64_of
from tidelog.persist.format.schema import DIFF
from tidelog.persist.handle.argument_checks import check_write_token
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import Verdict
from tidelog.persist.transactions.committing import (
    NextTime,
    commit_written,
    next_time,
    rows_at,
    write_parts,
)
from tidelog.persist.transactions.next_time import Reads, joined, named_result
from tidelog.persist.transactions.transition import TableParts

PLANS_MAX: Final = 50
COMMITS_MAX: Final = 50
WRITES_AT_ONCE: Final = 8
Stage = Callable[[pa.Table], Awaitable[Mapping[str, TableParts]]]
NOTHING_STAGED: Final[Mapping[str, TableParts]] = {}
AT_MAX: Final = 253_402_300_799_999  # The last millisecond of the year 9999.


def check_at(at: int | None) -> None:
    """Check the earliest time of a write: all later writes of all tables get greater times.

    Raises:
        UsageError: it is no time, or after the year 9999.
    """
    if at is not None and check_time(at, "at=, in milliseconds since 1970,") > AT_MAX:
        raise UsageError(
            "at= is after the year 9999: pass milliseconds since 1970, not microseconds", at=at
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The updates of a write, by shard, and the rows on which they depend, as of a view.

    ``staged`` are the parts that the write has already, by shard. ``is_guarded`` states that the
    updates are right for this view only.
    """

    view: TableView
    lookups: tuple[Lookup, ...]
    updates: Mapping[str, pa.Table]
    staged: Mapping[str, TableParts]
    is_guarded: bool


@dataclass(slots=True, kw_only=True)
class TableWriter:
    """Writes one table. Each write is visible as of one time, as a whole or not at all."""

    reader: TableReader
    _turn: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def write(
        self,
        change: TableChange,
        *,
        at: int | None = None,
        token: Token | None = None,
        staged: Mapping[str, TableParts] = NOTHING_STAGED,
        stage: Stage | None = None,
        all_rows_max: int | None = None,
    ) -> int:
        """Commit a change; return the time in milliseconds as of which it is visible.

        ``staged`` are parts of further rows by shard, which are committed with the change. Or
        ``stage`` writes these parts, for each plan, on top of the rows of the change's lookup.

        With ``all_rows_max``, a delete of all rows is refused if they are more than this. That
        holds for the rows that the table has at the commit.

        The time is the first one that is not before ``at`` (default: the clock) and past all
        earlier commits. With the ``token`` of an earlier call that was committed, nothing is
        written, and the time of that commit is returned; the rows are not compared.

        Raises:
            KeyExists, UsageError: see `TableChange.updates`. NOT_APPLIED.
            DeletesAllRows: see ``all_rows_max``. NOT_APPLIED.
            NotRegistered, SchemaEvolved: see `TableReader.view`. NOT_APPLIED.
            ContentionError: other writers kept changing the same rows. NOT_APPLIED.
            OutcomeUnknown: the writer of the token has used a greater number.
            PartsSwept: a sweep may have deleted staged parts. NOT_APPLIED.
            LocationError: the store failed.
        """
        check_write_token(token)
        transactions = self.reader.transactions
        request = next_time(transactions, at, token)
        async with self._turn:
            known = await self._committed(token)
            if known is not None:
                return known
            try:
                return await self._write(change, request, stage or staged, all_rows_max)
            except (UsageError, DataDiffers, SchemaEvolved):
                # Another process may have committed the token after the check above.
                known = await self._committed(token)
                if known is None:
                    raise
                return known

    async def _committed(self, token: Token | None) -> int | None:
        """Return the time of the commit of a token; None if it was not committed."""
        if token is None:
            return None
        done = named_result(await self.reader.transactions.refresh(), token)
        return None if done is None else done.upper.time - 1

    async def _write(
        self,
        change: TableChange,
        request: NextTime,
        staged: Stage | Mapping[str, TableParts],
        all_rows_max: int | None,
    ) -> int:
        clock = self.reader.transactions.clock
        is_fresh = False
        for attempt in range(PLANS_MAX):
            try:
                plan = await self._planned(change, staged, all_rows_max, fresh=is_fresh)
            except UsageError:
                if is_fresh:
                    raise
                is_fresh = True  # The known states may be old, and no longer a reason to refuse.
                continue
            try:
                time = await self._commit(plan, request)
                if time is not None:
                    return time
            except (PartsSwept, NotRegistered):
                if isinstance(staged, Mapping) and staged:
                    raise  # Only the processes that staged the parts can write them again.
            is_fresh = True
            await clock.sleep(backoff_us(attempt, clock))
        raise ContentionError(
            f"gave up after {PLANS_MAX} tries: other writers kept changing rows of the table "
            f"{self.reader.name!r} that this write reads; try again"
        )

    async def _planned(
        self,
        change: TableChange,
        staged: Stage | Mapping[str, TableParts],
        all_rows_max: int | None,
        *,
        fresh: bool,
    ) -> _Plan:
        """Read the rows that a change depends on, and return its updates."""
        reader, lookup = self.reader, change.lookup
        is_guarded = all_rows_max is not None
        shards = reader.shards if is_guarded else reader.shards_of(lookup)
        view = await reader.view(shards, fresh=fresh)
        found = await planned_updates(
            change, partial(reader.rows, view=view), reader.transactions.clock
        )
        if all_rows_max is not None:
            _check_left(found.old, view, all_rows_max)
        pieces = placed(found.updates, reader.stored, len(reader.shards))
        pairs = zip(reader.shards, pieces, strict=True)
        updates = {shard: piece for shard, piece in pairs if piece.num_rows}
        parts = staged if isinstance(staged, Mapping) else await staged(found.old)
        return _Plan(
            view=view,
            lookups=found.lookups,
            updates=updates,
            staged=parts,
            is_guarded=is_guarded,
        )

    async def _commit(self, plan: _Plan, request: NextTime) -> int | None:
        """Write and commit the parts; return the time, or None if the plan is no longer right."""
        reader, view = self.reader, plan.view
        clock = reader.transactions.clock
        writes = _merged(await self._written(plan), plan.staged)
        for attempt in range(COMMITS_MAX):
            reads = Reads(upper=view.upper, shards=frozenset(view.states))
            asked = replace(request, reads=reads, known_upper=view.upper)
            done = await commit_written(reader.transactions, writes, asked)
            if done.verdict is not Verdict.MISMATCH:
                return done.upper.time - 1
            if plan.is_guarded:
                return None  # Another writer may have deleted the rows that this write leaves.
            newer = await reader.view(list({**view.states, **writes}), fresh=False)
            for lookup in plan.lookups:
                if await reader.are_changed(lookup, view, newer):
                    return None
            view = newer
            await clock.sleep(backoff_us(attempt, clock))
        raise ContentionError(
            f"gave up after {COMMITS_MAX} tries: other commits to the table {reader.name!r} kept "
            "coming first; try again"
        )

    async def _written(self, plan: _Plan) -> dict[str, TableParts]:
        transactions, upper = self.reader.transactions, plan.view.upper
        span = Frontier.at(upper), Frontier.at(upper + 1)
        work = [
            partial(
                write_parts,
                transactions,
                shard,
                rows_at(piece, upper),
                *span,
                schema=self.reader.stored,
            )
            for shard, piece in plan.updates.items()
        ]
        return dict(zip(plan.updates, await run_all(work, at_once=WRITES_AT_ONCE), strict=True))


def _check_left(old: pa.Table, view: TableView, all_rows_max: int) -> None:
    """Refuse the delete of the rows ``old`` if they are all rows of the table, and too many.

    Raises:
        DeletesAllRows: they are.
    """
    rows = sum(state.totals.diffs for state in view.states.values())
    if rows > all_rows_max and int(int64_of(old, DIFF).sum()) == rows:
        raise DeletesAllRows(
            "the delete would leave no row in the table: check its condition or its keys, or pass "
            "all_rows_max=None to permit it",
            rows=rows,
        )


def _merged(
    written: Mapping[str, TableParts], staged: Mapping[str, TableParts]
) -> dict[str, TableParts]:
    """Return the parts of both, by shard."""
    return {
        shard: joined(shard, [one[shard] for one in (written, staged) if shard in one])
        for shard in {**written, **staged}
    }


@dataclass(frozen=True, slots=True)
class PlannedUpdates:
    """The updates of a change, the rows of its lookup, and the lookups of all rows that it read."""

    updates: pa.Table
    old: pa.Table
    lookups: tuple[Lookup, ...]


async def planned_updates(
    change: TableChange, rows: Callable[[Lookup], Awaitable[pa.Table]], clock: Clock
) -> PlannedUpdates:
    """Return the updates of a change; ``rows`` returns the rows of a lookup.

    Raises:
        KeyExists, UsageError: see `TableChange.updates`.
    """
    lookup = change.lookup
    old = change.schema.contents.empty_table() if lookup is None else await rows(lookup)
    updates = await clock.offload(lambda: change.updates(old))
    keyed = change.key_updates(old) if isinstance(change, SpooledMerge) else updates
    new = unread_keys(change, keyed)
    if new is not None:
        check_absent(new, await rows(new))
    lookups = tuple(one for one in (lookup, new) if one is not None)
    return PlannedUpdates(updates, old, lookups)
