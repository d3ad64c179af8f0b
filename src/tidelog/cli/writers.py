"""The destination and the format of rows: standard output, or a file.

A file appears only when it is complete: until then it has another name in the same directory.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, Protocol

import typer

from tidelog.cli.output import (
    FORMATS,
    SHOWN_MAX,
    Rows,
    ShownRows,
    choose_format,
    count_text,
    open_rows,
    say,
    unwritten,
    write_bytes,
)
from tidelog.core.arguments import split_names
from tidelog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.cli.encoded_rows import Out
    from tidelog.core.clock import Clock
    from tidelog.persist.read.selection import RowSelection

AHEAD_MAX: Final = 4  # Tables in memory: one is written while threads prepare the others.
BINARY: Final = ("parquet", "arrow")
_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}

Format = Annotated[
    str | None,
    typer.Option(
        metavar="table|json|csv|parquet|arrow",
        help="The output format. The default follows from the file's ending; else a table on a "
        "terminal, or JSON lines. arrow: the stream format on standard output, the file format "
        "in a file.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to a file, which appears when it is complete; - is standard output.",
    ),
]
# Lists, so that a repeated option does not silently replace the first one.
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Only these columns, with commas between them; may be repeated."
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(metavar="SQL", help="A condition on the columns, in DuckDB's dialect."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="At most N rows. On a terminal, the default is 100 rows."
    ),
]


def _format_of(path: Path) -> str:
    """Return the format of a file from the ending of its name; without an ending, json.

    Raises:
        UsageError: the ending is unknown.
    """
    if not path.suffix:
        return "json"
    told = _SUFFIXES.get(path.suffix.lower())
    if told is None:
        known = ", ".join(_SUFFIXES)
        raise UsageError(
            f"no format has the ending {path.suffix!r}: use one of {known}, or pass --format"
        )
    return told


def check_follow(until: str | None, output: str | None) -> None:
    """Check the options of a command with --follow.

    Raises:
        UsageError: an option does not apply.
    """
    if until is not None:
        raise UsageError("--follow and --until exclude each other: pass one")
    if output not in (None, "-"):
        raise UsageError(
            "--output writes a file that is complete, and --follow never completes one: pass "
            f"--until, or redirect standard output (> {output})"
        )


class PreparedRows(Protocol):
    """A writer of rows of one schema in two steps: conversion, then output."""

    def prepare(self, table: pa.Table) -> Callable[[], None]:
        """Convert rows, and return the function that writes them.

        Threads may prepare several tables at a time. The caller writes them in order.
        """
        ...

    def close(self) -> None:
        """Write the rows that are still buffered, if any."""
        ...


class Destination:
    """The destination of rows and their selection; a ``path`` of None is standard output."""

    def __init__(
        self,
        format: str | None,
        output: str | None,
        *,
        as_json: bool,
        columns: list[str] | None,
        where: list[str] | None,
        limit: int | None,
    ) -> None:
        """Choose the format, and check that the destination is writable.

        Raises:
            UsageError: the format or the folder does not exist, or a terminal cannot show the
                format. Or a column's name is empty, or ``where`` has several conditions.
        """
        self.limit = limit
        self._where = where[0] if where else None
        self._columns = [name for part in columns or () for name in split_names(part)]
        self.path = None if output in (None, "-") else Path(output)
        told = format
        if told is None and not as_json and self.path is not None:
            told = _format_of(self.path)
        if told in BINARY:
            if as_json:
                raise UsageError(f"--json and --format {told} exclude each other: pass one")
            self.format = told
            if self.path is None and is_terminal():
                raise UsageError(
                    f"{told} is binary, and standard output is a terminal: "
                    "write it to a file with -o FILE"
                )
        elif told is None or told in FORMATS:
            self.format = choose_format(told, as_json=as_json)
        else:
            known = ", ".join((*FORMATS, *BINARY))
            raise UsageError(f"--format must be one of {known}, not {told!r}")
        if output is not None and self.path is not None:
            _check_place(self.path, output)
        if where and len(where) > 1:
            raise UsageError("--where is given more than once: join the conditions with AND")
        if not all(self._columns):
            given = ",".join(self._columns)
            raise UsageError("--columns must be names separated by commas", given=given)

    def selection(self) -> RowSelection:
        """Return the selection of rows and columns in the type of the read functions."""
        from tidelog.persist.read.selection import RowSelection

        columns = self._columns or None
        return RowSelection(columns=columns, where=self._where, limit=self.limit, what="--")

    @property
    def is_for_people(self) -> bool:
        """Return True if the rows become a table on a terminal."""
        return self.format == "table" and self.path is None and is_terminal()

    @contextmanager
    def opened(self, schema: pa.Schema) -> Iterator[PreparedRows]:
        """Yield a writer of rows; at the end, write buffered rows and give a file its name.

        Raises:
            OutputClosed: the reader of standard output closed the pipe.
            OutputFailed: the write failed.
        """
        if self.path is None:
            rows = self._rows(schema, _Stdout())
            yield rows
            rows.close()
            return
        with _whole_file(self.path) as file:
            rows = self._rows(schema, file)
            yield rows
            rows.close()

    def _rows(self, schema: pa.Schema, out: Out) -> PreparedRows:
        if self.format in BINARY:
            from tidelog.cli.encoded_rows import ArrowRows, ParquetRows

            if self.format == "parquet":
                return ParquetRows(schema, out)
            return ArrowRows(schema, out, is_file=self.path is not None)
        if self.format in ("json", "csv"):
            from tidelog.cli.encoded_rows import LineRows

            return LineRows(schema, out.write, is_csv=self.format == "csv")
        if self.path is None:
            return _AsTheyCome(open_rows("table", schema))
        from tidelog.cli.grid import GridRows

        return _AsTheyCome(GridRows(schema, lambda text: out.write(text.encode()), width=None))


class _Stdout:
    closed = False

    def write(self, data: bytes | memoryview, /) -> None:
        write_bytes(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _File:
    closed = False

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path

    def write(self, data: bytes | memoryview, /) -> None:
        with _told(self._path):
            self._file.write(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _AsTheyCome:
    """A writer of rows without a separate conversion."""

    def __init__(self, rows: Rows) -> None:
        self._write, self.close = rows.write, rows.close

    def prepare(self, table: pa.Table) -> Callable[[], None]:
        return partial(self._write, table)


def is_terminal() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout.isatty()


def _check_place(path: Path, given: str) -> None:
    # Path drops a trailing slash, which means a folder, so this checks the text given.
    if not given:
        raise UsageError("-o '' has no name: name a file")
    if path.is_dir() or os.path.basename(given) in ("", ".", ".."):
        raise UsageError(f"-o {given} is a folder: name a file")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: no folder {path.parent}: create it first")


@contextmanager
def _whole_file(path: Path) -> Iterator[_File]:
    """Yield a file that gets its name when the block succeeds, and is deleted if it fails."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        # A device or a pipe cannot be replaced, so it is written directly.
        with _told(path):
            file = path.open("wb")
        with _closed(file, path):
            yield _File(file, path)
        return
    path = Path(os.path.realpath(path))  # Replace the target of a symbolic link, not the link.
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _told(path):
            file = beside.open("wb")
        with _closed(file, path):
            yield _File(file, path)
        with _told(path):
            beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def _closed(file: IO[bytes], path: Path) -> Iterator[None]:
    """Close a file at the end; the last bytes are written then."""
    try:
        yield
    finally:
        with _told(path):
            file.close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritten(str(path), error) from error


async def write_all(
    tables: AsyncGenerator[pa.Table, None],
    schema: pa.Schema,
    destination: Destination,
    *,
    clock: Clock,
    unit: str,
    told: str,
    is_endless: bool = False,
) -> None:
    """Write rows as they arrive; reads and conversions run ahead.

    `AHEAD_MAX` bounds the tables in memory. A table on a terminal ends after `SHOWN_MAX` rows with
    the count of the others, unless the user gives a limit or the rows are ``is_endless``. A message
    below a table has the number of rows, their ``unit``, and ``told``.
    """
    import pyarrow as pa

    from tidelog.core.lookahead import in_order

    # The system allocator returns memory sooner than Arrow's default pool, at equal speed here.
    pa.set_memory_pool(pa.system_memory_pool())
    count = 0
    is_cut = destination.is_for_people and destination.limit is None and not is_endless
    cut = ShownRows(SHOWN_MAX if is_cut else None)

    async def pieces() -> AsyncGenerator[_Piece, None]:
        async with aclosing(tables):
            async for table in tables:
                shown = cut.shown(table)
                if shown.num_rows or not table.num_rows:
                    yield _Piece([shown], shown.num_rows, shown.nbytes)
                if cut.is_done:
                    return

    async def prepare(piece: _Piece) -> Callable[[], None]:
        # pop() removes the last reference to the table, so that its memory is free once converted.
        return await clock.offload(lambda: rows.prepare(piece.tables.pop()))

    def size_of(piece: _Piece) -> int:
        return piece.size_bytes

    with destination.opened(schema) as rows:
        ready = in_order(pieces(), prepare, size_of=size_of, at_once=AHEAD_MAX)
        async with aclosing(ready):
            async for piece, write in ready:
                count += piece.rows
                await clock.offload(write)
    cut.report()
    if destination.format == "table":
        say(f"{count_text(count, unit)} {told}".rstrip())


@dataclass(frozen=True, slots=True)
class _Piece:
    """A table that waits to be written; ``tables`` is empty after the conversion."""

    tables: list[pa.Table]
    rows: int
    size_bytes: int
