"""Lines for a log, from files or standard input, as they come; and a log's records, for people."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.output import Rows, open_rows, write_bytes
from tidelog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.wal.log import Log

READ_BYTES: Final = 1024 * 1024
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

        async def bodies() -> AsyncIterator[list[bytes]]:
            for file in files:
                yield [await asyncio.to_thread(_read_whole, file)]

        await self._all(bodies())
        return self.done

    async def _all(self, batches: AsyncIterator[list[bytes]]) -> None:
        room = asyncio.Semaphore(AT_ONCE)
        failed: list[Exception] = []

        async def one(batch: list[bytes]) -> None:
            try:
                position = await self.log.append(batch, stream=self.stream)
                self.done.note(position, len(batch))
            except Exception as error:  # noqa: BLE001 - raised below, once the others are done
                failed.append(error)
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            try:
                async for batch in batches:
                    await room.acquire()
                    if failed:
                        break
                    group.create_task(one(batch))
            except UsageError as error:  # What was read before is appended all the same.
                failed.append(error)
            except OSError as error:
                failed.append(UsageError("a file cannot be read to its end", reason=error.strerror))
        if failed:
            raise failed[0]


async def read_lines(files: Sequence[Path]) -> AsyncIterator[list[bytes]]:
    """Yield lines without their ends, as many at a time as there are to read just then."""
    if not files:
        async for batch in _lines_of(sys.stdin.fileno()):
            yield batch
    for path in files:
        # To open a pipe is to wait for whoever writes into it.
        with await asyncio.to_thread(path.open, "rb") as file:
            async for batch in _lines_of(file.fileno()):
                yield batch


def _read_whole(path: Path) -> bytes:
    """Read a file, or of one that is too long just enough to know that it is.

    Raises:
        UsageError: it is too long for a record.
    """
    from tidelog.wal.append.bodies import RECORD_BYTES_MAX

    with path.open("rb") as file:
        body = file.read(RECORD_BYTES_MAX + 1)
    if len(body) > RECORD_BYTES_MAX:
        raise _too_long(f"the file {str(path)[:300]!r}", RECORD_BYTES_MAX)
    return body


def _too_long(what: str, most: int) -> UsageError:
    return UsageError(
        f"{what} is too long for a record, which has at most {most} bytes: keep large values "
        "elsewhere and name them"
    )


async def _lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    from tidelog.wal.append.bodies import RECORD_BYTES_MAX

    kept: list[bytes] = []
    size = 0
    while chunk := await asyncio.to_thread(os.read, descriptor, READ_BYTES):
        if b"\n" not in chunk:
            kept.append(chunk)
            if (size := size + len(chunk)) > RECORD_BYTES_MAX + 1:  # One may be a CR.
                # A line that does not end would else fill the memory.
                raise _too_long("a line", RECORD_BYTES_MAX)
            continue
        lines: list[bytes] = b"".join([*kept, chunk]).split(b"\n")
        rest = lines.pop()
        yield [line.removesuffix(b"\r") for line in lines]
        kept, size = ([rest] if rest else []), len(rest)
    if kept:
        yield [b"".join(kept).removesuffix(b"\r")]


async def write_records(tables: AsyncIterator[pa.Table], format: str) -> None:
    """Write records to standard output as they come; ``raw`` is bodies alone, a line each."""
    rows: Rows | None = None
    names: list[str] = []
    async for table in tables:
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
