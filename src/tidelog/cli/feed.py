"""Input of the append verbs: files or standard input, read as they arrive; concurrent appends.

A reader waits for input in the event loop, not in a thread. A thread that waits for a pipe cannot
be cancelled, so the command could not end before the process that writes to the pipe.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final, Generic, TypeVar

import typer

from tidelog.cli.output import count_text, say, show
from tidelog.errors import Fenced, TidelogError, UsageError

T = TypeVar("T")
READ_BYTES: Final = 1024 * 1024
AT_ONCE: Final = 16  # Appends under way.

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Files of lines. The default is standard input."),
]

_URL: Final = re.compile(r"[a-z][a-z0-9+]+:/")  # A path has single slashes.
ROW_FORMATS: Final = ("json", "csv", "parquet", "arrow")
_ENDINGS: Final = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}
RowFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="json|csv|parquet|arrow",
        help="The format of the files. The default follows from their endings, else JSON lines.",
    ),
]


def row_format_of(files: Sequence[Path], given: str | None) -> str:
    """Return the format of files of rows: the one given, or the one of their endings.

    Raises:
        UsageError: the format is unknown, or the endings differ.
    """
    if given is not None and given not in ROW_FORMATS:
        raise UsageError(f"--format must be one of {', '.join(ROW_FORMATS)}, not {given!r}")
    from tidelog.collection.formats.packed.packed import codec_of

    plain = [Path(file.stem) if codec_of(str(file)) else file for file in files]
    formats = {_ENDINGS.get(file.suffix.lower(), "json") for file in plain}
    if given is None and len(formats) > 1:
        raise UsageError(
            f"the files have several formats, {' and '.join(sorted(formats))}: pass those of "
            "one format at a time, or pass --format"
        )
    return given or next(iter(formats), "json")


async def read_lines(files: Sequence[Path]) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of files, or of standard input, in batches of the lines now available.

    Raises:
        UsageError: a line is too long for a record.
        OSError: a file cannot be read.
    """
    if not files:
        async for batch in _lines_of(sys.stdin.fileno()):
            yield batch
    for path in files:
        with opened(path) as descriptor:
            async for batch in _lines_of(descriptor):
                yield batch


async def read_whole(files: Sequence[Path]) -> AsyncGenerator[list[bytes], None]:
    """Yield each file as one record.

    Reading stops at the greatest size of a record, so a huge file does not fill the memory.

    Raises:
        UsageError: a file is too long for a record.
        OSError: a file cannot be read.
    """
    from tidelog.wal.append.bodies import RECORD_BYTES_MAX

    for path in files:
        body = bytearray()
        with opened(path) as descriptor:
            async for chunk in chunks_of(descriptor):
                body += chunk
                if len(body) > RECORD_BYTES_MAX:
                    raise _too_long(f"the file {str(path)[:300]!r}", RECORD_BYTES_MAX)
        yield [bytes(body)]


async def _lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield batches of lines without their newlines."""
    from tidelog.wal.append.bodies import RECORD_BYTES_MAX

    kept: list[bytes] = []
    size = 0
    async for chunk in chunks_of(descriptor):
        if b"\n" not in chunk:
            kept.append(chunk)
            if (size := size + len(chunk)) > RECORD_BYTES_MAX + 1:  # The last byte may be a CR.
                # Without this limit, a line that does not end would fill the memory.
                raise _too_long("a line", RECORD_BYTES_MAX)
            continue
        lines: list[bytes] = b"".join([*kept, chunk]).split(b"\n")
        rest = lines.pop()
        yield [line.removesuffix(b"\r") for line in lines]
        kept, size = ([rest] if rest else []), len(rest)
    if kept:
        yield [b"".join(kept).removesuffix(b"\r")]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor of the file, opened without blocking."""
    # On a pipe, a blocking open() would wait for a writer; this way only reads wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def chunks_of(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a descriptor until its end; the caller waits in the event loop."""
    while True:
        await _until_readable(descriptor)
        try:
            chunk = os.read(descriptor, READ_BYTES)
        except BlockingIOError:  # Another process reads the same pipe, and took the bytes first.
            continue
        if not chunk:
            return
        yield chunk


async def _until_readable(descriptor: int) -> None:
    """Wait until a read of a file, a pipe or a terminal returns without blocking."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, is_readable.set)
    except PermissionError:  # The loop cannot watch a regular file; its reads never block.
        return
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)


def _too_long(what: str, most: int) -> UsageError:
    return UsageError(
        f"{what} is too long for a record, which has at most {most} bytes: store large values "
        "elsewhere, and append references to them"
    )


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


def check_input(files: Sequence[Path]) -> None:
    """Raise unless the files can be read, or without files the standard input.

    Raises:
        UsageError: they cannot.
    """
    for file in files:
        check_file(file)
    if not files and sys.stdin is None:
        raise UsageError("standard input is closed, so there is nothing to read: name files")


def check_row_input(files: Sequence[Path]) -> None:
    """Raise unless the files of rows can be read; ``-`` is standard input. See `check_input`."""
    named = [file for file in files if str(file) != "-"]
    if named:
        check_input(named)
    if len(named) < max(1, len(files)):
        check_input([])


def check_file(path: Path) -> None:
    """Raise unless the path is readable as a file; pipes and devices are.

    Raises:
        UsageError: the path does not exist, or is a directory.
    """
    try:
        is_there, is_directory = path.exists(), path.is_dir()
    except OSError:
        is_there = is_directory = False  # The file system permits no such name.
    if not is_there:
        shown = f"no such file: {str(path)[:300]!r}"
        if _URL.match(str(path)):
            shown += "; files are read by their paths: fetch a file from a URL first, or pipe it in"
        raise UsageError(shown)
    if is_directory:
        raise UsageError(f"{str(path)[:300]!r} is a directory: name the files in it")


async def feed_all(
    feed: Feed[T],
    files: Sequence[Path],
    log: object,
    name: str,
    *,
    kind: str = "log",
    places: str = "positions",
    whole: bool = False,
) -> FeedResult:
    """Append the whole input to a log; before an error, report the acknowledged records.

    Raises:
        Fenced: another process became the log's writer.
        TidelogError: an append failed.
    """
    try:
        return await (feed.whole if whole else feed.lines)(files)
    except TidelogError as error:
        say(_done_before_it_failed(feed.done, places))
        if isinstance(error, Fenced):
            raise Fenced(
                f"another process took over the {kind} {name!r}: to continue, append only the "
                "records that the log lacks; a full repeat would store records twice",
                outcome=error.outcome,
                **error.facts,
            ) from error
        raise
    finally:
        _say_taken_from(log, name)


def _say_taken_from(log: object, name: str) -> None:
    """Name the writer that this append fenced, if that writer did not close the log."""
    from tidelog.wal.slot_log import SlotLog

    if isinstance(log, SlotLog) and log.taken_from:
        say(
            f"The log {name!r} was open for the writer {log.taken_from}: "
            "this command fenced that writer"
        )


def _done_before_it_failed(done: FeedResult, what: str) -> str:
    """Return a message with the acknowledged records, so that the user does not repeat them."""
    told = f"{count_text(done.records, 'record')} appended before the failure"
    if not done.records:
        return told
    where = f"{what} {done.first} to {done.last}"
    return f"{told}, {where}: to continue, append only the records after them"


def show_appended(name: str, found: FeedResult, places: str, *, as_json: bool) -> None:
    """Show the number of appended records and their places: positions or sequences."""
    told = f"{count_text(found.records, 'record')} appended, {places} {found.first} to {found.last}"
    empty = "The input is empty: nothing was appended."
    show({"log": name, **asdict(found)}, told if found.records else empty, as_json=as_json)
