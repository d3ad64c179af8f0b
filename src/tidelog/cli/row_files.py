"""Input of rows: files or standard input in json, csv, parquet or arrow, decoded table by table.

Json is lines or one array. Text in files that end in ``.gz`` or ``.zst`` is compressed.
Text is decoded like the text of sources (docs/guides/ingest-json.md, docs/guides/ingest-csv.md).
But a record that does not fit stops the command, because the target cannot store bad rows.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

import pyarrow as pa

from tidelog.cli.binary_rows import arrow_rows, parquet_rows
from tidelog.cli.feed import chunks_of, opened
from tidelog.collection.formats.csv.decode import header_names, header_of
from tidelog.collection.formats.csv.guess import NULLS, CsvOptions, guess_csv
from tidelog.collection.formats.foreign import is_wide, why_foreign
from tidelog.collection.formats.json.arrays import array_lines, array_mark
from tidelog.collection.formats.lines import CsvDialect, record_ends
from tidelog.collection.formats.packed.inflate import open_inflater
from tidelog.collection.formats.packed.packed import Codec, codec_of
from tidelog.collection.formats.packed.text import TORN_MEMBER
from tidelog.collection.formats.types import sql_type_of
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import decode_range
from tidelog.collection.table.inputs import fitting
from tidelog.core.temporary import temporary_file, temporary_files
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.format.foreign_rows import check_index
from tidelog.persist.format.schema import ShardSchema

READ_BYTES: Final = 8 * 1024 * 1024
RECORD_BYTES_MAX: Final = 4 * READ_BYTES
SAMPLE_BYTES: Final = 2 * 1024 * 1024
STDIN: Final = "standard input"
_JSON_ENDINGS: Final = (".json", ".jsonl", ".ndjson")
_TO_UTF8: Final = "convert the file, for example with iconv -f LATIN1 -t UTF-8"
_OF_TIMES: Final = re.compile(r"does not fit its type (DATE|TIMESTAMPTZ|TIMESTAMP|TIME)$")
_ISO: Final = {
    "DATE": "2026-01-31",
    "TIME": "12:00:00",
    "TIMESTAMP": "2026-01-31T12:00:00",
    "TIMESTAMPTZ": "2026-01-31T12:00:00Z",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFiles:
    """A reader of rows. Each table has the columns ``wanted``; an absent value is null.

    Shape: a file may lack the columns ``optional``. ``dialect`` is that of csv; None means that
        each file's own is guessed, with ``csv``. The columns ``required`` must not be null.
        ``owner`` and ``undone`` are words for errors: the target of the rows, and the state after
        an error.
    """

    wanted: pa.Schema
    optional: frozenset[str]
    dialect: CsvDialect | None = None
    csv: CsvOptions = field(default_factory=CsvOptions)
    required: Sequence[str] = ()
    owner: str = "shard"
    undone: str = "nothing was appended"

    async def tables(self, files: Sequence[Path], format: str) -> AsyncGenerator[pa.Table, None]:
        """Yield the rows of the files in order; standard input for ``-``, or without files.

        Raises:
            UsageError: a file cannot be read, or one of its records does not fit.
        """
        for path in files or (Path("-"),):
            is_stdin = str(path) == "-"
            name, first = STDIN if is_stdin else _shown(path), 0
            with self._named(name), ExitStack() as stack:
                descriptor = sys.stdin.fileno() if is_stdin else stack.enter_context(opened(path))
                spooled = stack.enter_context(temporary_file())
                codec = codec_of(name)
                if format in ("json", "csv"):
                    pieces = _pieces(descriptor, codec, spooled)
                    found = self._text(pieces, name, is_csv=format == "csv")
                elif codec is not None:
                    raise UsageError(
                        f"{name}: only json and csv are read from compressed files: decompress it "
                        f"first; {self.undone}"
                    )
                else:
                    source = await _seekable(descriptor, spooled)
                    file = stack.enter_context(pa.PythonFile(cast("Any", source)))
                    found = _each(self._binary(file, name, is_parquet=format == "parquet"))
                async with aclosing(found):
                    async for table in found:
                        self._check_required(table, name, first)
                        first += table.num_rows
                        yield table

    def _check_required(self, table: pa.Table, name: str, first: int) -> None:
        for column in self.required:
            if table.column(column).null_count:
                row = first + table.column(column).is_null().index(True).as_py()
                raise UsageError(
                    f"{name}: the key column {column!r} is null or missing in row {row}, counted "
                    f"from 0: each row needs a whole key; {self.undone}"
                )

    async def _text(
        self, pieces: AsyncGenerator[bytes, None], name: str, *, is_csv: bool
    ) -> AsyncGenerator[pa.Table, None]:
        held, at, header, line = b"", 0, b"", 1
        dialect = self.dialect if is_csv else None
        is_array, last = False, b""
        async for chunk, is_last in _large(pieces):
            if not at and not held:
                self._check_text(chunk, name)
            held += chunk
            if is_csv and not header and held.strip():
                dialect = dialect or self._guessed(held, name, is_cut=not is_last)
                header = self._header(held if not is_last else held + b"\n", name, dialect)
            is_array = is_array or not (at or is_csv or array_mark(held) == b"")
            lines = array_lines(held, inside=at > 0) if is_array else held
            ends = record_ends(lines, dialect, final=is_last)
            cut = len(held) if is_last else int(ends[-1]) if len(ends) else 0
            last = held.rstrip()[-1:] or last
            if is_array and is_last and last != b"]":
                raise UsageError(
                    f"{name} begins with [, but is not one json array: its last ] is missing; "
                    f"{self.undone}"
                )
            if cut and not (is_csv and held.strip() == b""):
                where = (at, None if is_array else line)
                yield self._decoded(lines[:cut], name, where, header, dialect)
                line += lines.count(b"\n", 0, cut)
            held, at = held[cut:], at + cut
            if len(held) > RECORD_BYTES_MAX:
                raise UsageError(
                    f"{name}: the record at byte {at} has no end within {RECORD_BYTES_MAX} bytes: "
                    "check --format"
                )

    def _check_text(self, begin: bytes, name: str) -> None:
        if is_wide(begin):
            raise UsageError(
                f"{name} must be UTF-8, not UTF-16 or UTF-32: convert it, for example with "
                f"iconv -f UTF-16 -t UTF-8; {self.undone}"
            )
        if (why := why_foreign(begin)) is not None:
            raise UsageError(f"{name} is not text: {why}; {self.undone}")

    def _guessed(self, held: bytes, name: str, *, is_cut: bool) -> CsvDialect:
        """Return the csv dialect of a file, guessed from its beginning."""
        sample = held[:SAMPLE_BYTES]
        try:
            is_cut = is_cut or len(sample) < len(held)
            return guess_csv(sample, self.csv, self.wanted, cut=is_cut)[0]
        except ValueError as error:
            raise self._not_csv(name, error) from error

    def _header(self, held: bytes, name: str, dialect: CsvDialect) -> bytes:
        """Return the header line of a csv file; check that its columns are the wanted ones."""
        header = (header_of(held, dialect) or b"") if dialect.has_header else b""
        if header:
            try:
                names = header_names(header, dialect)
                if not {*names} & {*self.wanted.names}:
                    raise UsageError(
                        f"{name}: the first line has the name of no column "
                        f"({', '.join(self.wanted.names)}): write the names there; {self.undone}"
                    )
                self._there(names, name)
            except UsageError:
                raise
            except ValueError as error:
                raise self._not_csv(name, error) from error
        elif not dialect.has_header:
            self._there(dialect.names, name)
        return header

    def _not_csv(self, name: str, error: ValueError) -> UsageError:
        reason = "some bytes are not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        remedy = f": {_TO_UTF8}" if isinstance(error, UnicodeDecodeError) else ""
        return UsageError(
            f"{name} cannot be read as csv: error in its first line: {reason}{remedy}; "
            f"{self.undone}"
        )

    def _decoded(
        self,
        data: bytes,
        name: str,
        where: tuple[int, int | None],
        header: bytes,
        dialect: CsvDialect | None,
    ) -> pa.Table:
        """Return the rows of some text; ``where`` is its byte and its line in the file.

        Raises:
            UsageError: a record does not fit, or has an unknown column.
        """
        at, line = where
        found = decode_range(
            data,
            FileRange(path=name, start=at, limit=at + len(data), header=header),
            self.wanted,
            format="json" if dialect is None else "csv",
            dialect=dialect or CsvDialect(),
        )
        if found.dropped:
            raise self._unknown(sorted(found.dropped), name)
        if found.errors.num_rows:
            first = found.errors.slice(0, 1).to_pylist()[0]
            before = data.count(b"\n", 0, first["offset"] - at)
            place = "" if line is None else f" (line {line + before})"
            hint = self._remedy(first["reason"], first["text"], name, dialect)
            raise UsageError(
                f"{name}: the record at byte {first['offset']}{place} does not fit: "
                f"{first['reason']}: "
                f"{first['text'][:200]!r}; {self.undone}{hint}"
            )
        return found.rows.select(self.wanted.names)

    def _remedy(self, reason: str, text: str, name: str, dialect: CsvDialect | None) -> str:
        """Return what the user can do about a record that does not fit, as the end of a sentence.

        Only writes of tables have the options of csv.
        """
        is_no_json = dialect is None and reason.startswith("the line is not")
        if is_no_json and not any(one in name.lower() for one in _JSON_ENDINGS):
            return "; the rows were read as json: pass another --format"
        if "is not UTF-8" in reason:
            return f"; {_TO_UTF8}"
        if is_no_json:
            return "; write each row on one line, or all rows as one array"
        has_options = dialect is not None and self.owner == "table"
        null = _null_in(text, dialect) if dialect is not None and has_options else None
        if null is not None and "its type" in reason:
            return f"; if {null} means null, pass --null '{null}'"
        kind = _OF_TIMES.search(reason)
        if kind is None:
            return ""
        option = "--date-format" if kind[1] == "DATE" else "--timestamp-format"
        can_pass = has_options and kind[1] != "TIME"
        return f"; write it as {_ISO[kind[1]]}" + (f", or pass {option}" if can_pass else "")

    def _binary(self, source: pa.PythonFile, name: str, *, is_parquet: bool) -> Iterator[pa.Table]:
        """Yield the rows of a parquet or arrow file."""
        found = (parquet_rows if is_parquet else arrow_rows)(source)
        self._check_index(found.schema, name)
        names = self._there(found.schema.names, name)
        first = 0
        for table in found.tables(names):
            yield self._fitted(table, name, first)
            first += table.num_rows

    def _check_index(self, schema: pa.Schema, name: str) -> None:
        try:
            check_index(schema)
        except UsageError as error:
            raise UsageError(f"{name}: {error}; {self.undone}") from error

    def _there(self, given: Sequence[str], name: str) -> list[str]:
        """Return the wanted columns that the file has.

        Raises:
            UsageError: a column is missing, unknown or repeated.
        """
        there, known = set(given), set(self.wanted.names)
        missing = [n for n in self.wanted.names if n not in there and n not in self.optional]
        if missing:
            found = f"the file's columns are {', '.join(given)}" if given else "the file has none"
            raise UsageError(
                f"{name}: missing column {', '.join(map(repr, missing))}: {found}; {self.undone}"
            )
        unknown = [n for n in given if n not in known]
        if unknown:
            raise self._unknown(unknown, name)
        if len(there) < len(given):
            twice = [n for n, count in Counter(given).items() if count > 1]
            raise UsageError(
                f"{name} has the column {twice[0]!r} twice: rename or remove one; {self.undone}"
            )
        return [n for n in self.wanted.names if n in there]

    def _unknown(self, names: Sequence[str], name: str) -> UsageError:
        shown = " or ".join(map(repr, names[:5]))
        return UsageError(
            f"{name}: the {self.owner} has no column {shown}; its columns are "
            f"{', '.join(self.wanted.names)}: rename or remove it in the file; {self.undone}"
        )

    def _fitted(self, table: pa.Table, name: str, first: int) -> pa.Table:
        columns = {}
        for wanted in self.wanted:
            if wanted.name not in table.column_names:
                columns[wanted.name] = pa.nulls(table.num_rows, wanted.type)
                continue
            try:
                one = fitting(
                    table.select([wanted.name]), ShardSchema(pa.schema([wanted]), 0), first=first
                )
            except UsageError as error:
                why, kind = str(error).splitlines()[0][:250], sql_type_of(wanted)
                raise UsageError(f"{name}: {why} ({kind}); {self.undone}") from error
            columns[wanted.name] = one.column(0)
        return pa.table(columns, schema=self.wanted)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Raise errors of libraries as errors that name the file."""
        try:
            yield
        except (pa.ArrowException, UnicodeDecodeError, OSError, CorruptionError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise UsageError(f"{name} cannot be read: {reason}; {self.undone}") from error


def _null_in(text: str, dialect: CsvDialect) -> str | None:
    """Return the first field of a record that is a usual text for null, if one is."""
    return next((one for one in text.split(dialect.delimiter) if one in NULLS), None)


def _shown(path: Path) -> str:
    """Return the name of a file as text; a byte that is not UTF-8 becomes a question mark."""
    return os.fsencode(path).decode(errors="replace").replace("\ufffd", "?")


async def _pieces(
    descriptor: int, codec: Codec | None, spooled: IO[bytes]
) -> AsyncGenerator[bytes, None]:
    """Yield the text of an input; the bytes of a compressed pipe are copied into ``spooled``."""
    if codec is None:
        async with aclosing(chunks_of(descriptor)) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    with await _seekable(descriptor, spooled) as source:
        inflater = open_inflater(cast("BinaryIO", source), codec, at=0, text_at=0)
        while piece := inflater.read(READ_BYTES):
            yield piece
        if inflater.torn:
            raise CorruptionError(TORN_MEMBER)


async def _large(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[tuple[bytes, bool], None]:
    """Yield the input in large chunks, each with True if it is the last."""
    kept: list[bytes] = []
    size = 0
    async with aclosing(pieces) as chunks:
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
            with temporary_files():
                spooled.write(chunk)
    with temporary_files():
        spooled.seek(0)
    return spooled


async def _each(tables: Iterator[pa.Table]) -> AsyncGenerator[pa.Table, None]:
    for table in tables:
        yield table
