"""Writes to standard output and standard error: rows as JSON lines, csv or a table; messages.

JSON and csv are UTF-8, whichever encoding the terminal has. Csv has a header; null is an empty
field, the empty string is ``""``.
"""

from __future__ import annotations

import errno
import math
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from tidelog.errors import TidelogError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Field = tuple[str, str | Sequence[str]]  # A name, and its value in one or more lines.

WAITING_MAX: Final = 5
SHOWN_MAX: Final = 100  # Rows of a table on a terminal, unless the user gives a limit.
COUNTED_MAX: Final = 1_000_000  # Rows that are read on only to be counted.
FORMATS: Final = ("table", "json", "csv")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


class OutputClosed(Exception):
    """The reader of standard output closed the pipe."""


class OutputFailed(TidelogError):
    """Standard output, or an output file, cannot be written."""

    kind = "output"


class Rows(Protocol):
    """A writer of rows of one schema, table by table."""

    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None:
        """Write the rows that are still buffered, if any."""
        ...


def choose_format(given: str | None, *, as_json: bool = False) -> str:
    """Return the format given; by default a table on a terminal, and JSON lines elsewhere.

    Raises:
        UsageError: the format is unknown, or contradicts ``--json``.
    """
    if given is not None and given not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, not {given!r}")
    if as_json and given not in (None, "json"):
        raise UsageError(f"--json and --format {given} exclude each other: pass one")
    if as_json:
        return "json"
    return given or ("table" if sys.stdout.isatty() else "json")


def is_json(*, as_json: bool) -> bool:
    """Return True if a command prints JSON: with ``--json``, or if output is not a terminal."""
    return choose_format(None, as_json=as_json) == "json"


def open_rows(format: str, schema: pa.Schema) -> Rows:
    """Return a writer of rows to standard output."""
    if format == "json":
        return _JsonRows()
    if format == "csv":
        return _CsvRows(schema)
    from tidelog.cli.grid import GridRows, terminal_width

    return GridRows(schema, write_text, width=terminal_width())


class _JsonRows:
    def write(self, table: pa.Table) -> None:
        from tidelog.cli.values import json_values

        names = table.column_names
        for batch in table.to_batches():
            columns = [json_values(column) for column in batch.columns]
            rows = zip(*columns, strict=True)
            write_bytes(json_lines(dict(zip(names, row, strict=True)) for row in rows))

    def close(self) -> None:
        pass


class _CsvRows:
    def __init__(self, schema: pa.Schema) -> None:
        write_text(csv_line(schema.names))

    def write(self, table: pa.Table) -> None:
        from tidelog.cli.values import text_values

        for batch in table.to_batches():
            columns = [text_values(column) for column in batch.columns]
            write_text("".join(map(csv_line, zip(*columns, strict=True))))

    def close(self) -> None:
        pass


def csv_line(fields: Iterable[str | None]) -> str:
    """Return a line of csv."""
    # Csv readers skip an empty line, so a row of one null is written as the empty string.
    return (",".join(map(_csv_field, fields)) or '""') + "\n"


def _csv_field(text: str | None) -> str:
    if text is None:
        return ""
    if not text or any(c in text for c in ',"\r\n') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def json_lines(objects: Iterable[Mapping[str, object]]) -> bytes:
    """Return each object as a line of JSON."""
    import msgspec

    return msgspec.json.Encoder().encode_lines(list(objects))


def print_json(*objects: Mapping[str, object]) -> None:
    """Write objects to standard output, one a line."""
    write_bytes(json_lines(objects))


def print_fields(fields: Sequence[Field]) -> None:
    """Write a description for people: each field's name, and its value in one or more lines."""
    from tidelog.cli.grid import clean_text

    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        lines = [value] if isinstance(value, str) else value
        for number, line in enumerate(lines or ["none"]):
            write_text(f"{'' if number else name:<{width}}  {clean_text(line)}\n")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a listing: its name, the function of its cells, and its alignment.

    The grid never shortens a cell of a ``whole`` column, nor of a ``right`` one (a number).
    """

    name: str
    cell: Callable[[T], str]
    right: bool = False
    whole: bool = False


def show(
    result: Mapping[str, object] | Sequence[Mapping[str, object]],
    text: str | Sequence[Field] | Callable[[], None] | None,
    *,
    as_json: bool,
    is_said: bool = False,
) -> None:
    """Write the result of a verb: JSON lines, or a text for people.

    The text is a sentence (on standard error), the fields of a description, a function that writes
    it, or None. With ``is_said``, only ``--json`` leaves out the sentence: a pipe gets both.
    """
    is_for_programs = is_json(as_json=as_json)
    if is_for_programs:
        print_json(*([result] if isinstance(result, Mapping) else result))
    if as_json or (is_for_programs and not is_said):
        return
    if isinstance(text, str):
        say(text)
    elif callable(text):
        text()
    elif text is not None:
        print_fields(text)


def show_list(
    found: Sequence[T],
    columns: Sequence[Column[T]],
    *,
    fields: Callable[[T], Mapping[str, object]],
    as_json: bool,
    none_yet: str,
) -> None:
    """Write a list as JSON lines, or as a table for people; for an empty one say ``none_yet``."""
    text = partial(print_table, found, columns) if found else none_yet
    show(list(map(fields, found)), text, as_json=as_json)


def print_table(found: Sequence[T], columns: Sequence[Column[T]]) -> None:
    """Write a list as a table for people."""
    from tidelog.cli.grid import Grid, terminal_width

    names, right = [c.name for c in columns], [c.right for c in columns]
    whole = [c.right or c.whole for c in columns]
    grid = Grid(names, right=right, whole=whole, width=terminal_width(), out=write_text)
    grid.write([[column.cell(one) for column in columns] for one in found])


def write_text(text: str) -> None:
    """Write to standard output.

    Raises:
        OutputClosed: the reader closed the pipe.
        OutputFailed: the write failed.
    """
    write_bytes(text.encode("utf-8", "surrogateescape"))


def write_bytes(data: bytes | memoryview) -> None:
    """Write to standard output and flush it; see `write_text`."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        # Python flushes the buffer at its end: without this, the same error would come again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise unwritten("standard output", error) from error


def unwritten(what: str, error: OSError) -> OutputClosed | OutputFailed:
    """Return the error to raise if a write to ``what`` failed."""
    if isinstance(error, BrokenPipeError):
        return OutputClosed()
    advice = "free some space, or write elsewhere" if error.errno in _FULL else "write elsewhere"
    return OutputFailed(f"{what} cannot be written: {advice}", reason=error.strerror)


def say(message: str) -> None:
    """Write a line to standard error and flush it: another process may wait for it."""
    if sys.stderr is None:
        return  # The shell closed it. A message is not a result, so the command goes on.
    try:
        # Arguments from the shell may hold bytes that are not UTF-8.
        shown = message.encode(errors="backslashreplace").decode()
        print(shown, file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def say_json(line: Mapping[str, object]) -> None:
    """Write an object as a line to standard error; see `say`."""
    say(json_lines([line]).decode().rstrip("\n"))


def count_text(count: int, what: str) -> str:
    """Return a number and what it counts, such as ``1 row`` or ``12,345 rows``."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def bytes_text(count: int) -> str:
    """Return a number of bytes with a unit, such as ``1.25 MB``."""
    size, unit = float(count), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return (
        f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 99.5 else f"{size:.3g} {_UNITS[unit]}"
    )


def dollars_text(dollars: float) -> str:
    """Return a price: to the cent, or the first two digits of a price below one cent."""
    if dollars >= 0.01 or not dollars:
        return f"${dollars:,.2f}" if dollars else "$0"
    places = 1 - math.floor(math.log10(dollars))
    return f"${dollars:.{places}f}"


def time_text(time_us: int) -> str:
    """Return a wall time in ISO 8601, in UTC, to the second."""
    try:
        told = datetime.fromtimestamp(time_us / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"  # Another program stored a time outside every calendar.
    return told.strftime("%Y-%m-%dT%H:%M:%SZ")


def when_text(time: int | None, none: str) -> str:
    """Return a time of a collection as text; ``none`` if it has no such time."""
    from tidelog.collection.formats.times import format_time

    return none if time is None else format_time(time)


def waiting_lines(waiting: Mapping[str, str]) -> list[str]:
    """Return a line (path: reason) for each of the first waiting files, and a count of the rest."""
    few = list(waiting.items())[:WAITING_MAX]
    lines = [f"{path}: {why}" for path, why in few]
    more = len(waiting) - len(few)
    return [*lines, f"and {more:,} more"] if more else lines


class ShownRows:
    """The first rows of many, and the count of those left out; without a limit, all rows."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._shown = 0
        self.left = 0

    @property
    def is_done(self) -> bool:
        """Return True if the count of the others has reached its limit."""
        return self.left > COUNTED_MAX

    def shown(self, table: pa.Table) -> pa.Table:
        """Return the rows of the next table to show, and count the others."""
        if self._limit is None:
            return table
        shown = table.slice(0, max(0, self._limit - self._shown))
        self._shown += shown.num_rows
        self.left += table.num_rows - shown.num_rows
        return shown

    def report(self) -> None:
        """Say how many rows were left out, if any were."""
        if self.left:
            more = f"over {COUNTED_MAX:,}" if self.is_done else f"{self.left:,}"
            say(f"... {more} more rows: pass --limit N, or write to a file for all rows")


async def shown_rows(
    tables: AsyncIterator[pa.Table], format: str, limit: int | None
) -> AsyncGenerator[pa.Table, None]:
    """Yield the rows to write: the first ones for a table on a terminal without a limit, or all."""
    is_cut = format == "table" and limit is None and sys.stdout.isatty()
    cut = ShownRows(SHOWN_MAX if is_cut else None)
    try:
        async for table in tables:
            shown = cut.shown(table)
            if shown.num_rows or not table.num_rows:
                yield shown
            if cut.is_done:
                break
        cut.report()
    finally:
        if isinstance(tables, AsyncGenerator):
            await tables.aclose()


async def first_rows(
    tables: AsyncGenerator[pa.Table, None], limit: int | None
) -> AsyncGenerator[pa.Table, None]:
    """Yield the first rows of tables, at most ``limit``; all rows without a limit."""
    async with aclosing(tables):
        if limit == 0:
            return
        async for table in tables:
            yield table if limit is None else table.slice(0, min(limit, table.num_rows))
            limit = None if limit is None else max(0, limit - table.num_rows)
            if limit == 0:
                return
