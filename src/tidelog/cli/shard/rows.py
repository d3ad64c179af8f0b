"""Reads of one shard for the command line: selected rows and columns, in pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, decode_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.opened import PartOpener
from tidelog.persist.read.pieces import SnapshotQuery, changes_in_pieces, opener_names
from tidelog.persist.read.reader import parts_between
from tidelog.persist.read.rereading import reread
from tidelog.persist.read.selection import each_row
from tidelog.persist.read.sweep import pieces_by_key

if TYPE_CHECKING:
    from tidelog.errors import PartMissing
    from tidelog.persist.read.selection import CheckedSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """Reads of selected rows and columns of a shard, whose state the caller has read."""

    shard: Shard
    wanted: CheckedSelection
    consolidated: bool = False

    @property
    def _whole(self) -> ShardSchema:
        return decode_schema(self.shard.state.schema)

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of contents."""
        return self._narrow.updates.remove(len(self.wanted.columns))

    @property
    def change_schema(self) -> pa.Schema:
        """Return the schema of changes: ``_time`` and ``_diff``, then the columns."""
        fields = {field.name: field for field in self._narrow.updates}
        return pa.schema([fields[name] for name in (TIME, DIFF, *self.wanted.columns)])

    @property
    def _narrow(self) -> ShardSchema:
        data = self._whole.data
        return ShardSchema(pa.schema([data.field(name) for name in self.wanted.columns]), 0)

    def contents(self, as_of: int) -> AsyncGenerator[pa.Table, None]:
        """Yield the contents as of a complete time; concurrent merges do not change the rows.

        Raises:
            UsageError: the condition fails on a row.
            CorruptionError: stored data is wrong.
            ReadOvertaken: a merge replaced parts that were not read yet, and they were deleted.
            LocationError: the store failed.
        """
        return reread(lambda: self._contents(as_of), partial(self._check, as_of))

    def changes(self, since: int, until: int) -> AsyncGenerator[pa.Table, None]:
        """Yield the updates after ``since``, up to and including ``until``; see `contents`."""
        return reread(lambda: self._changes(since, until), partial(self._check, since))

    async def _check(self, time: int, error: PartMissing) -> None:
        (await self.shard.check_replaced(error)).check_readable(time)

    async def _contents(self, as_of: int) -> AsyncGenerator[pa.Table, None]:
        found = self.shard.snapshot_of(self.shard.state, as_of)
        with self.wanted.sandbox() as sandbox:
            box = self.wanted.box
            wanted = SnapshotQuery(
                as_of=as_of, columns=self.wanted.needed, box=box, is_grouped=True
            )
            pieces = pieces_by_key(found.parts, wanted, self._opener(wanted))
            left = self.wanted.limit
            async with aclosing(pieces):
                async for piece in pieces:
                    chosen = self.wanted.matching(piece, sandbox).select(self.schema.names)
                    for block in [chosen] if self.consolidated else each_row(chosen):
                        shown = block.slice(0, left)
                        if shown.num_rows:
                            yield shown
                        if left is not None and (left := left - shown.num_rows) == 0:
                            return

    async def _changes(self, since: int, until: int) -> AsyncGenerator[pa.Table, None]:
        parts = parts_between(self.shard.state, since, until)
        with self.wanted.sandbox() as sandbox:
            box = self.wanted.box
            wanted = SnapshotQuery(as_of=until, after=since, columns=self.wanted.needed, box=box)
            async with aclosing(changes_in_pieces(parts, wanted, self._opener(wanted))) as pieces:
                async for piece in pieces:
                    data = self._whole.data
                    chosen = self.wanted.chosen_changes(piece, sandbox, data=data)
                    if chosen.num_rows:
                        yield chosen.select(self.change_schema.names)

    def _opener(self, wanted: SnapshotQuery) -> PartOpener:
        schema = self._whole
        return PartOpener(
            store=self.shard.store,
            clock=self.shard.clock,
            schema=schema,
            names=opener_names(schema, wanted.box),
        )
