"""Records from files or standard input, read as they arrive.

A reader waits for input in the event loop, not in a thread. A thread that waits for a pipe cannot
be cancelled, so the command could not end before the process that writes to the pipe.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.errors import UsageError

READ_BYTES: Final = 1024 * 1024


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
        f"{what} is too long for a record, which has at most {most} bytes: keep large values "
        "elsewhere and name them"
    )
