"""Records for a log, several appends at once; and a log's records, for people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.log.input import read_lines, read_whole
from tidelog.cli.output import Rows, open_rows, write_bytes
from tidelog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.wal.log import Log

AT_ONCE: Final = 16
BASE64: Final = "_base64"


@dataclass(slots=True)
class FeedResult:
    """What was acknowledged: so many records, from the first position to the last."""

    records: int = 0
    first: int | None = None
    last: int | None = None

    def note(self, position: int, count: int) -> None:
        self.records += count
        self.first = position if self.first is None else min(self.first, position)
        self.last = max(self.last or 0, position + count - 1)


@dataclass(slots=True)
class Feed:
    """Appends to one log, or one stream of it, several at once, in the order of reading."""

    log: Log
    stream: bytes | None = None
    done: FeedResult = field(default_factory=FeedResult)

    async def lines(self, files: Sequence[Path]) -> FeedResult:
        """Append the lines of files, or of standard input, each a record."""
        await self._all(read_lines(files))
        return self.done

    async def whole(self, files: Sequence[Path]) -> FeedResult:
        """Append each file as one record."""
        await self._all(read_whole(files))
        return self.done

    async def _all(self, batches: AsyncGenerator[list[bytes], None]) -> None:
        room = asyncio.Semaphore(AT_ONCE)
        failed: list[Exception] = []

        async def one(batch: list[bytes]) -> None:
            try:
                position = await self.log.append(batch, stream=self.stream)
                self.done.note(position, len(batch))
            except Exception as error:  # noqa: BLE001 - raised below, once the others are done
                failed.append(error)
                reading.cancel()  # It may be waiting for a line that is long in coming.
            finally:
                room.release()

        async def read() -> None:
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        await room.acquire()
                        group.create_task(one(batch))
            except UsageError as error:  # What was read before is appended all the same.
                failed.append(error)
            except OSError as error:
                failed.append(UsageError("a file cannot be read to its end", reason=error.strerror))

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
        if failed:
            raise failed[0]


async def write_records(tables: AsyncIterator[pa.Table], format: str) -> int:
    """Write records to standard output as they come; return how many there were.

    In the format ``raw`` there are bodies alone, a line each.
    """
    count = 0
    rows: Rows | None = None
    names: list[str] = []
    async for table in tables:
        count += table.num_rows
        if format == "raw":
            bodies: list[Any] = table.column("body").to_pylist()
            write_bytes(b"".join(body + b"\n" for body in bodies))
            continue
        for shown in _shown_alike(table, format):
            if rows is None or (format == "table" and shown.column_names != names):
                # Records in streams have a column more: a new table begins.
                if rows is not None:
                    rows.close()
                rows, names = open_rows(format, shown.schema), shown.column_names
            rows.write(shown)
    if rows is not None:
        rows.close()
    return count


def _shown_alike(table: pa.Table, format: str) -> Iterator[pa.Table]:
    """Yield records as they are written, in parts of which all are text or none is.

    How a record is shown in JSON is not to depend on which others were read with it.
    """
    shown = shown_records(table, format)
    if not any(name.endswith(BASE64) for name in shown.column_names):
        yield shown
        return
    begin = 0
    kinds = zip(*(map(_is_text, table.column(name)) for name in ("stream", "body")), strict=True)
    for _, run in groupby(kinds):
        count = sum(1 for _ in run)
        yield shown_records(table.slice(begin, count), format)
        begin += count


def _is_text(value: pa.BinaryScalar) -> bool:
    try:
        (value.as_py() or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def shown_records(table: pa.Table, format: str) -> pa.Table:
    """Return records as they are written.

    JSON has ``body`` and ``stream`` as text where all of a table's are UTF-8, else as base64 under
    ``body_base64`` and ``stream_base64``; elsewhere they are cut to what text can show. Times are
    ISO 8601 but in JSON.
    """
    import pyarrow as pa

    from tidelog.cli.values import text_values

    for name in ("stream", "body"):
        column, shown = table.column(name), name
        try:
            column = column.cast(pa.string())
        except pa.ArrowInvalid:
            if format == "json":
                shown = f"{name}{BASE64}"
            else:
                values = [v for chunk in column.chunks for v in text_values(chunk)]
                column = pa.chunked_array([pa.array(values, pa.string())])
        table = table.set_column(table.schema.get_field_index(name), shown, column)
    if format != "json":
        times = table.column("timestamp_us").cast(pa.timestamp("us", "UTC"))
        table = table.set_column(1, "timestamp", times)
    has_streams = any(chunk.is_valid().true_count for chunk in table.column(2).chunks)
    return table if has_streams or format == "csv" else table.remove_column(2)
