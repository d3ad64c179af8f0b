"""Concurrent appends of records to a log, and output of a log's records."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from tidelog.cli.log.input import read_lines, read_whole
from tidelog.cli.output import Rows, open_rows, print_json, write_bytes
from tidelog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

AT_ONCE: Final = 16
BASE64: Final = "_base64"
ISO_MAX_US: Final = 253_402_300_799_999_999  # The end of the year 9999, Python's last.


@dataclass(slots=True)
class FeedResult:
    """The acknowledged appends: the number of records, their first and their last position."""

    records: int = 0
    first: int | None = None
    last: int | None = None

    def note(self, position: int, count: int) -> None:
        self.records += count
        self.first = position if self.first is None else min(self.first, position)
        self.last = max(self.last or 0, position + count - 1)


def as_they_are(lines: list[bytes]) -> list[bytes]:
    """Return the lines unchanged: each line is a record."""
    return lines


@dataclass(slots=True)
class Feed(Generic[T]):
    """An appender of several batches at once, in the order of reading.

    ``read`` turns lines into records.
    """

    append: Callable[[list[T]], Awaitable[int]]
    read: Callable[[list[bytes]], list[T]]
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

        async def one(batch: list[T]) -> None:
            try:
                position = await self.append(batch)
                self.done.note(position, len(batch))
            except Exception as error:  # noqa: BLE001 - raised after the other appends end
                failed.append(error)
                reading.cancel()  # The reader may wait for its next line for a long time.
            finally:
                room.release()

        async def read() -> None:
            try:
                async with aclosing(batches):
                    async for lines in batches:
                        if batch := self.read(lines):
                            await room.acquire()
                            group.create_task(one(batch))
            except UsageError as error:  # The lines before the bad one are still appended.
                failed.append(error)
            except OSError as error:
                failed.append(UsageError("a file cannot be read to its end", reason=error.strerror))

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
        if failed:
            raise failed[0]


async def write_records(tables: AsyncIterator[pa.Table], format: str) -> int:
    """Write records to standard output, table by table, and return their number.

    The format ``raw`` writes only bodies, one per line. The text of a record never depends on the
    other records of its table, so the sizes of reads do not change the output.
    """
    count = 0
    rows: Rows | None = None
    names: list[str] = []
    async for table in tables:
        count += table.num_rows
        if format == "raw":
            bodies: list[Any] = table.column("body").to_pylist()
            write_bytes(b"".join(body + b"\n" for body in bodies))
        elif format == "json":
            print_json(*map(_json_fields, table.to_pylist()))
        else:
            shown = _csv_columns(table) if format == "csv" else _table_columns(table)
            if rows is None or shown.column_names != names:
                # Records with streams or keys need more columns, so a new table begins.
                if rows is not None:
                    rows.close()
                rows, names = open_rows(format, shown.schema), shown.column_names
            rows.write(shown)
    if rows is not None:
        rows.close()
    return count


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return bytes as a JSON field: text if they are UTF-8, else base64 as ``NAME_base64``."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}{BASE64}": base64.b64encode(value).decode()}


def escaped(value: bytes) -> str:
    r"""Return bytes as text for tables; bytes that are not UTF-8 become ``\xff``."""
    return value.decode(errors="backslashreplace")


def _json_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON fields of a record, without an absent ``stream`` or ``key``."""
    beside = [(name, record[name]) for name in ("stream", "key") if record[name] is not None]
    return {
        "position": record["position"],
        "timestamp_us": record["timestamp_us"],
        **{name: text for one in beside for name, text in text_or_base64(*one).items()},
        **text_or_base64("body", record["body"]),
    }


def _csv_columns(table: pa.Table) -> pa.Table:
    """Return the csv columns of records: each text column, then its base64 column.

    In each row one of the two is null: base64 holds only bytes that are not UTF-8.
    """
    import pyarrow as pa

    columns: dict[str, pa.ChunkedArray[Any]] = {
        "position": table.column("position"),
        "timestamp": _times(table.column("timestamp_us")),
    }
    for name in ("stream", "key", "body"):
        found = [{} if v is None else text_or_base64(name, v) for v in _values(table, name)]
        for shown in (name, f"{name}{BASE64}"):
            texts = pa.array([one.get(shown) for one in found], pa.string())
            columns[shown] = pa.chunked_array([texts])
    return pa.table(columns)


def _table_columns(table: pa.Table) -> pa.Table:
    """Return the table columns of records, without ``stream`` or ``key`` if no record has one."""
    import pyarrow as pa

    columns: dict[str, pa.ChunkedArray[Any]] = {
        "position": table.column("position"),
        "timestamp": _times(table.column("timestamp_us")),
    }
    for name in ("stream", "key", "body"):
        texts = [None if v is None else escaped(v) for v in _values(table, name)]
        if name == "body" or any(text is not None for text in texts):
            columns[name] = pa.chunked_array([pa.array(texts, pa.string())])
    return pa.table(columns)


def _values(table: pa.Table, name: str) -> list[bytes | None]:
    values: list[bytes | None] = table.column(name).to_pylist()
    return values


def _times(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Return times in ISO 8601; after the year 9999 as numbers, the only form --since reads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.cli.values import iso_text

    times = column.cast(pa.timestamp("us", "UTC"))
    is_past = pc.greater(column, pa.scalar(ISO_MAX_US, pa.int64()))
    if not pc.any(is_past).as_py():
        return times
    texts = pa.chunked_array([iso_text(chunk) for chunk in times.chunks], pa.string())
    told = pc.if_else(is_past, column.cast(pa.string()), texts)
    return cast("pa.ChunkedArray[Any]", told)
