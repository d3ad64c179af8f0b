"""Records from files or standard input, as they come.

Whoever waits for input waits in the loop, not in a thread: a thread that waits for a pipe cannot be
told to stop, and the command would end only when whoever writes into the pipe does.
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
    """Yield the lines of files, or of standard input, as many at a time as there are just then.

    Raises:
        UsageError: one is too long for a record. OSError: a file cannot be read.
    """
    if not files:
        async for batch in _lines_of(sys.stdin.fileno()):
            yield batch
    for path in files:
        with opened(path) as descriptor:
            async for batch in _lines_of(descriptor):
                yield batch


async def read_whole(files: Sequence[Path]) -> AsyncGenerator[list[bytes], None]:
    """Yield each file as one record; of one that is too long, read just enough to know that it is.

    Raises:
        UsageError: one is too long for a record. OSError: a file cannot be read.
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
    """Yield lines without their ends."""
    from tidelog.wal.append.bodies import RECORD_BYTES_MAX

    kept: list[bytes] = []
    size = 0
    async for chunk in chunks_of(descriptor):
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


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a file's descriptor, which reading waits for and not opening."""
    # To open a pipe is else to wait for whoever writes into it; this way reading waits.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def chunks_of(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield what there is to read, until the end; whoever waits for it waits in the loop."""
    while True:
        await _until_readable(descriptor)
        try:
            chunk = os.read(descriptor, READ_BYTES)
        except BlockingIOError:  # Another process reads from it as well, and was first.
            continue
        if not chunk:
            return
        yield chunk


async def _until_readable(descriptor: int) -> None:
    """Wait until a read of a file, a pipe or a terminal has no more to wait for."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, is_readable.set)
    except PermissionError:  # What has no end to wait for, as a file on a disk, cannot be watched.
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
