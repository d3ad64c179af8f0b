"""Updates from files or standard input, decoded table by table into the columns of a shard.

Text is decoded like the text of sources (docs/guides/ingest-json.md, docs/guides/ingest-csv.md).
But a record that does not fit stops the command, because a shard cannot store bad rows.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.cli.log.input import chunks_of, opened
from tidelog.collection.formats.csv.decode import header_names, header_of
from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.foreign import is_wide
from tidelog.collection.formats.lines import record_ends
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import decode_range
from tidelog.errors import UsageError
from tidelog.persist.format.conform import conform
from tidelog.persist.format.schema import DIFF, TIME

READ_BYTES: Final = 8 * 1024 * 1024
RECORD_BYTES_MAX: Final = 4 * READ_BYTES
ROWS: Final = 131_072
STDIN: Final = "standard input"
_MAGIC: Final = b"ARROW1"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesInput:
    """A reader of updates. Each table has the columns ``wanted``; an absent value is null."""

    wanted: pa.Schema
    dialect: CsvDialect = field(default_factory=CsvDialect)

    async def tables(self, files: Sequence[Path], format: str) -> AsyncGenerator[pa.Table, None]:
        """Yield the rows of the files in order, or of standard input if no files are given.

        Raises:
            UsageError: a file cannot be read, or one of its records does not fit.
        """
        for path in files or (None,):
            name = STDIN if path is None else str(path)
            with _told(name), ExitStack() as stack:
                descriptor = (
                    sys.stdin.fileno() if path is None else stack.enter_context(opened(path))
                )
                if format in ("json", "csv"):
                    found = self._text(descriptor, name, is_csv=format == "csv")
                else:
                    spooled = stack.enter_context(tempfile.TemporaryFile())
                    source = await _seekable(descriptor, spooled)
                    read = self._parquet if format == "parquet" else self._arrow
                    found = _each(
                        read(stack.enter_context(pa.PythonFile(cast("Any", source))), name)
                    )
                async with aclosing(found):
                    async for table in found:
                        yield table

    async def _text(
        self, descriptor: int, name: str, *, is_csv: bool
    ) -> AsyncGenerator[pa.Table, None]:
        held, at, header = b"", 0, b""
        async for chunk, is_last in _large(descriptor):
            if not at and not held and is_wide(chunk):
                raise UsageError(
                    f"{name} must be UTF-8, not UTF-16 or UTF-32: convert it, for example with "
                    "iconv -f UTF-16 -t UTF-8; nothing was appended"
                )
            held += chunk
            if is_csv and not header and held.strip():
                header = header_of(held if not is_last else held + b"\n", self.dialect) or b""
                if header:
                    self._there(self._names(header, name), name)
            ends = record_ends(held, self.dialect if is_csv else None, final=is_last)
            cut = len(held) if is_last else int(ends[-1]) if len(ends) else 0
            if cut and not (is_csv and held.strip() == b""):
                yield self._decoded(held[:cut], name, at, header, is_csv=is_csv)
            held, at = held[cut:], at + cut
            if len(held) > RECORD_BYTES_MAX:
                raise UsageError(
                    f"{name}: the record at byte {at} has no end within {RECORD_BYTES_MAX} bytes: "
                    "check --format"
                )

    def _names(self, header: bytes, name: str) -> list[str]:
        try:
            return header_names(header, self.dialect)
        except ValueError as error:
            said = "some bytes are not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise UsageError(
                f"{name} cannot be read as csv: error in its first line: {said}; "
                "nothing was appended"
            ) from error

    def _decoded(self, data: bytes, name: str, at: int, header: bytes, *, is_csv: bool) -> pa.Table:
        found = decode_range(
            data,
            FileRange(path=name, start=at, limit=at + len(data), header=header),
            self.wanted,
            format="csv" if is_csv else "json",
            dialect=self.dialect,
        )
        if found.dropped:
            raise self._unknown(sorted(found.dropped), name)
        if found.errors.num_rows:
            first = found.errors.slice(0, 1).to_pylist()[0]
            raise UsageError(
                f"{name}: the record at byte {first['offset']} does not fit: {first['reason']}: "
                f"{first['text'][:200]!r}; nothing was appended"
            )
        return found.rows.select(self.wanted.names)

    def _parquet(self, source: pa.PythonFile, name: str) -> Iterator[pa.Table]:
        found = pq.ParquetFile(source)
        names = self._there(found.schema_arrow.names, name)
        for batch in found.iter_batches(ROWS, columns=names):
            yield self._fitted(pa.Table.from_batches([batch]), name)

    def _arrow(self, source: pa.PythonFile, name: str) -> Iterator[pa.Table]:
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        if is_file:
            found = pa.ipc.open_file(source)
            self._there(found.schema.names, name)
            batches = (found.get_batch(n) for n in range(found.num_record_batches))
        else:
            given = pa.ipc.open_stream(source)
            self._there(given.schema.names, name)
            batches = (batch for batch in given)
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for start in range(0, table.num_rows, ROWS):
                yield self._fitted(table.slice(start, ROWS), name)

    def _there(self, given: Sequence[str], name: str) -> list[str]:
        """Return the wanted columns that the file has; only ``_time`` and ``_diff`` may be absent.

        Raises:
            UsageError: a column is missing or unknown.
        """
        missing = [n for n in self.wanted.names if n not in given and n not in (TIME, DIFF)]
        if missing:
            raise UsageError(
                f"{name}: missing column {', '.join(map(repr, missing))}: the file's columns are "
                f"{', '.join(given)}; nothing was appended"
            )
        unknown = [n for n in given if n not in self.wanted.names]
        if unknown:
            raise self._unknown(unknown, name)
        return [n for n in self.wanted.names if n in given]

    def _unknown(self, names: Sequence[str], name: str) -> UsageError:
        told = ", ".join(map(repr, names[:5]))
        return UsageError(
            f"{name}: {told} is not a column of the shard, which has "
            f"{', '.join(self.wanted.names)}: remove it; nothing was appended"
        )

    def _fitted(self, table: pa.Table, name: str) -> pa.Table:
        columns = {}
        for wanted in self.wanted:
            if wanted.name not in table.column_names:
                columns[wanted.name] = pa.nulls(table.num_rows, wanted.type)
                continue
            try:
                one = conform(table.select([wanted.name]), pa.schema([wanted]))
            except UsageError as error:
                raise UsageError(
                    f"{name}: column {wanted.name!r} does not fit {wanted.type}: "
                    f"{str(error).splitlines()[0][:200]}; nothing was appended"
                ) from error
            columns[wanted.name] = one.column(0)
        return pa.table(columns, schema=self.wanted)


async def _large(descriptor: int) -> AsyncGenerator[tuple[bytes, bool], None]:
    """Yield the input in large chunks, each with True if it is the last."""
    kept: list[bytes] = []
    size = 0
    async with aclosing(chunks_of(descriptor)) as chunks:
        async for chunk in chunks:
            kept.append(chunk)
            if (size := size + len(chunk)) >= READ_BYTES:
                yield b"".join(kept), False
                kept, size = [], 0
    yield b"".join(kept), True


async def _seekable(descriptor: int, spooled: IO[bytes]) -> IO[bytes]:
    """Return a file that supports seek: a pipe is copied into ``spooled`` first."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(os.dup(descriptor), "rb")
    async with aclosing(chunks_of(descriptor)) as chunks:
        async for chunk in chunks:
            spooled.write(chunk)
    spooled.seek(0)
    return spooled


async def _each(tables: Iterator[pa.Table]) -> AsyncGenerator[pa.Table, None]:
    for table in tables:
        yield table


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UsageError(f"{name} cannot be read: {why}; nothing was appended") from error
