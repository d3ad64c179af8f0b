"""A log as a source: its records by their positions, in either protocol.

A cursor in the log, whose name begins with ``source_``, holds the records that are not in the
collection yet. It exists since the creation of the source, and moves with each tick. A binding has
the setsum of the fragments that hold its records. So a reader detects that the log was set back or
created again.
Shape: rows have ``position`` (int64), ``time``, ``stream`` (binary, in logs that have streams) and
    ``body`` (binary). Control records are skipped.
Source: design page 6, "Raw sources"; docs/guides/sources.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import pyarrow as pa

from tidelog.collection.source.kind import ADDRESS, BODY, Frontier, OpenedWith, RowRange, SourceKind
from tidelog.core.ids import check_name
from tidelog.core.setsum import Setsum
from tidelog.errors import (
    BusyError,
    CursorMoved,
    NoSuchCursor,
    PositionCollected,
    SourceRewritten,
    UsageError,
)
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.store.urls import split_query
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.gc.cursors import Witness
from tidelog.wal.log import LOG_RECORDS, Log
from tidelog.wal.logs import log_folder
from tidelog.wal.opening import open_log

OLDEST, NEXT = "oldest", "next"
WINDOW_ROWS: Final = 65_536
_TIME: Final = pa.timestamp("us", tz="UTC")
_NOTHING: Final = LOG_RECORDS.empty_table()
_NOT_IN_CURSORS: Final = re.compile(r"[^A-Za-z0-9_]")
_NAME_MAX: Final = 80


class LogRecords(SourceKind):
    """The records of one log: in this location by name, or in another by the URL of its folder."""

    name = "log"
    knows = {  # noqa: RUF012 - a class variable of the port, and no field
        "log": "the log's name in this location, or the URL of its folder elsewhere",
        "from": "oldest, next (only records appended from now), or a position",
    }
    row_bytes = 256

    def __init__(self, opening: OpenedWith) -> None:
        super().__init__(opening)
        self.where = opening.text("log")
        self.is_url = "/" in self.where
        if not self.is_url:
            check_name(self.where, of="name of a log")
        begin = opening.settings.get("from", OLDEST)
        self.begin = NEXT if begin == "newest" else begin  # An earlier name of the same position.
        if self.begin not in (OLDEST, NEXT) and not self.begin.isdecimal():
            raise UsageError(
                f"settings['from']={self.begin!r} must be {OLDEST}, {NEXT} or a position"
            )
        self.path = split_query(self.where)[0].rstrip("/")
        self._opened: Log | None = None
        self._witness: Witness | None = None
        self._is_weighed = False
        self._is_unheld = False

    @property
    def cursor(self) -> str:
        """Return the name of the cursor that holds the records not yet in the collection."""
        info = self.opening.info
        return f"source_{_NOT_IN_CURSORS.sub('_', info.name[:_NAME_MAX])}_{info.id}"

    async def columns(self) -> pa.Schema:
        return _rows((await self._log()), []).drop_columns([ADDRESS]).schema

    async def settle(self) -> Mapping[str, str]:
        log = await self._log()
        bounds = await log.bounds()
        begin = {OLDEST: bounds.oldest, NEXT: bounds.next}.get(self.begin) or int(self.begin)
        if not bounds.oldest <= begin <= bounds.next:
            raise UsageError(
                f"settings['from']={begin} is not a position of the log: its oldest position is "
                f"{bounds.oldest}, and its next is {bounds.next}"
            )
        where = log.store.url if log.store.url.startswith("file:") and self.is_url else self.where
        return {"log": where, "from": str(begin)}

    async def head(self) -> Frontier:
        log = await self._log()
        if not self._is_weighed:
            found = await log.describe()
            self.row_bytes = max(1, found.bytes // max(1, found.next - 1)) or self.row_bytes
            self._is_weighed = True
            return {self.path: found.next}
        return {self.path: (await log.bounds()).next}

    async def plan(self, start: Frontier, limit: Frontier, *, bytes_max: int) -> Sequence[RowRange]:
        """Return ranges as `SourceKind.plan` does; each ends at the end of a fragment."""
        low, high = self._first(start), limit.get(self.path, 0)
        if low >= high:
            return []
        window = max(WINDOW_ROWS, 2 * bytes_max // self.row_bytes)
        size, reached = 0, low
        for fragment in await self._fragments(low, min(high, low + window)):
            if size and size + fragment.num_bytes > bytes_max:
                break
            size, reached = size + fragment.num_bytes, min(high, fragment.limit)
        return [RowRange(path=self.path, start=low, limit=reached, size_bytes=size)]

    async def proof(self, found: RowRange) -> str:
        fragments = await self._fragments(found.start, found.limit)
        return sum((one.setsum for one in fragments), Setsum.zero()).hex()

    async def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """See `SourceKind`."""
        log = await self._log()
        yield _rows(log, [])
        if found.start < found.limit:
            async with aclosing(log.scan(found.start, limit=found.limit)) as records:
                async for table in records:
                    yield _rows(log, [table])

    async def gone(self, start: Frontier) -> Sequence[RowRange]:
        low, oldest = self._first(start), (await (await self._log()).bounds()).oldest
        return [RowRange(path=self.path, start=low, limit=oldest)] if low < oldest else []

    async def hold(self, taken: Frontier, *, make: bool) -> None:
        position = self._first(taken)
        if self._witness is not None and self._witness.position >= position:
            return
        make = make or self._is_unheld
        try:
            log = await self._log()
            witness = self._witness or await self._cursor(log, position, make=make)
            if witness is not None and witness.position < position:
                witness = await log.move_cursor(witness, position)
            self._witness, self._is_unheld = witness, False
        except (CursorMoved, BusyError, UsageError, PositionCollected):
            # Another ingester moves the cursor too, or a collector reads it: the next tick tries
            # again. Or the log no longer has the position: the next plan reports that, and the tick
            # after a skip creates the cursor.
            self._witness, self._is_unheld = None, make

    async def _cursor(self, log: Log, position: int, *, make: bool) -> Witness | None:
        try:
            return await log.load_cursor(self.cursor)
        except NoSuchCursor:
            return await log.create_cursor(self.cursor, position) if make else None

    async def release(self) -> None:
        await (await self._log()).drop_cursor(self.cursor)

    def _first(self, frontier: Frontier) -> int:
        return frontier.get(self.path, int(self.begin) if self.begin.isdecimal() else 1)

    async def _log(self) -> Log:
        if self._opened is None:
            opening, store = self.opening, self._store()
            self._opened = await open_log(
                store, name=self.path, clock=opening.clock, writer=opening.info.name
            )
        return self._opened

    def _store(self) -> Store:
        if self.is_url:
            return self.opening.open_store(self.where)
        return Within(self.opening.store, log_folder(self.where))

    async def _fragments(self, start: int, limit: int) -> list[Fragment]:
        """Return the fragments that hold the positions ``[start, limit)``.

        Raises:
            PositionCollected: some records were collected.
            SourceRewritten: the log ends before ``limit``, so another log has replaced it.
        """
        log = await self._log()
        try:
            found = await log.fragments(start, limit=limit)
        except (UsageError, PositionCollected):
            found = []  # The log ends before ``limit``, or begins after ``start``.
        if found and found[0].start <= start and limit <= found[-1].limit:
            return found
        bounds = await log.bounds()
        if bounds.next < limit:
            raise SourceRewritten(
                f"the source has read the log {self.path!r} up to {limit}, and the log now ends at "
                f"{bounds.next}: an older copy or a new log replaced it. Restore it, or drop the "
                "source and create it again"
            )
        source = self.opening.info.name
        raise PositionCollected(
            f"records {start} to {bounds.oldest - 1} of the log {self.path!r} were collected "
            f"before the source {source!r} ingested them, and are lost. Its rows stay. Continue "
            f"without the lost records: tidelog source skip {source} {shlex.quote(self.path)}",
            oldest=bounds.oldest,
        )


def _rows(log: Log, tables: Sequence[pa.Table]) -> pa.Table:
    """Return records of the log as rows of the source."""
    records = tables[0] if tables else _NOTHING
    positions = records.column("position")
    columns: dict[str, Any] = {
        "position": positions,
        "time": records.column("timestamp_us").cast(_TIME),
        "stream": records.column("stream"),
        BODY: records.column("body"),
        ADDRESS: positions,
    }
    if log.protocol != "slot":
        del columns["stream"]
    return pa.table(columns)
