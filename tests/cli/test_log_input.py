"""``tidelog log append`` while it waits for input: it can be interrupted, and reports failures."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cli.conftest import Cli
from kit.protocols import CLOCK
from tidelog.cli.feed import Feed, as_they_are, read_lines, read_whole
from tidelog.errors import LogSealed
from tidelog.store.memory import MemoryStore
from tidelog.wal.logs import Logs

COMMAND = (sys.executable, "-m", "tidelog.cli.main")
LONG_S = 120.0


@contextmanager
def typed_by(monkeypatch: pytest.MonkeyPatch, *, blocking: bool = True) -> Iterator[int]:
    """Make standard input a pipe; yield the end into which a user types."""
    reading, writing = os.pipe()
    os.set_blocking(reading, blocking)
    try:
        with open(reading) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            yield writing
    finally:
        os.close(writing)


def test_an_append_that_waits_for_input_is_interrupted(cli: Cli) -> None:
    """One Ctrl-C ends the wait, even if the pipe's writer neither writes nor closes."""
    cli.done("log", "create", "quiet")
    # A test run in the background ignores Ctrl-C, and its children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*COMMAND, "--location", cli.location, "log", "append", "quiet"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as waiting:
        assert waiting.stdin is not None
        assert waiting.stderr is not None
        waiting.stdin.write(b"one\n")
        waiting.stdin.flush()
        deadline = time.monotonic() + LONG_S
        while not cli.done("log", "scan", "quiet").objects:
            assert time.monotonic() < deadline, "what was written never came"
        waiting.send_signal(signal.SIGINT)
        try:
            assert waiting.wait(timeout=LONG_S) == 130
        finally:
            waiting.kill()
        assert waiting.stderr.read() == b"tidelog: interrupted\n"


@pytest.mark.parametrize("read", [read_lines, read_whole])
async def test_who_waits_for_a_pipe_waits_in_no_thread(
    tmp_path: Path, read: Callable[[Sequence[Path]], AsyncGenerator[list[bytes], None]]
) -> None:
    """A wait for a pipe uses no thread, since a thread cannot be stopped."""
    os.mkfifo(pipe := tmp_path / "pipe")
    before = threading.active_count()
    waiting = asyncio.ensure_future(anext(read([pipe])))
    await asyncio.wait({waiting}, timeout=0.01)
    try:
        assert not waiting.done()
        assert threading.active_count() == before
    finally:
        waiting.cancel()
        with suppress(OSError):  # No reader is left, unless it is in a thread.
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        await asyncio.wait({waiting})


async def test_what_comes_late_into_a_pipe_that_does_not_block_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A non-blocking pipe without data is no error; a later line is read."""
    with typed_by(monkeypatch, blocking=False) as writing:
        lines = read_lines([])
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.wait({waiting}, timeout=0.01)
        os.write(writing, b"late\n")

        assert await waiting == [b"late"]
        await lines.aclose()


async def test_an_append_that_fails_is_told_before_the_next_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed append is reported at once, although the next line may come hours later."""
    logs = Logs(store=MemoryStore(), clock=CLOCK, writer="me")
    log = await logs.create("a")
    await log.seal()
    with typed_by(monkeypatch) as writing:
        os.write(writing, b"one\n")
        feeding = asyncio.ensure_future(Feed(log.append, as_they_are).lines([]))
        done, _ = await asyncio.wait({feeding}, timeout=LONG_S)
        os.write(writing, b"two\n")

        assert done
        with pytest.raises(LogSealed):
            await feeding
