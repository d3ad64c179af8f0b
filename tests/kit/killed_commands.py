"""Commands on locations in memory, each killed at one request to a store."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import patch

from kit.clocks import OneThread
from tidelog.cli.main import main
from tidelog.store.keys import Within
from tidelog.store.local.store import LocalStore
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object, Store

DAY_US = 86_400_000_000


class ProcessKilled(Exception):
    """The process is dead, and its requests reach no store."""


@dataclass
class MortalStore:
    """A store whose process dies at a request: before it, or after it ``landed``.

    The request never returns, and the loop stops. No handler of the process reaches a store.
    """

    inner: MemoryStore
    dies_at: int | None = None
    landed: bool = False
    requests: int = 0
    writes: int = 0
    is_dead: bool = False

    @property
    def url(self) -> str:
        return self.inner.url

    async def _die(self, *, landed: bool) -> None:
        if self.is_dead:
            raise ProcessKilled
        if self.requests - 1 == self.dies_at and self.landed == landed:
            self.is_dead = True
            loop = asyncio.get_running_loop()
            loop.stop()
            await loop.create_future()

    async def _begin(self, *, writes: bool = False) -> None:
        self.requests += 1
        self.writes += writes
        await self._die(landed=False)

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        await self._begin()
        return await self.inner.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        await self._begin()
        return await self.inner.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await self._begin(writes=True)
        e_tag = await self.inner.put(key, data, if_absent=if_absent, if_match=if_match)
        await self._die(landed=True)
        return e_tag

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:  # A process may die after some of the deletions.
            await self._begin(writes=True)
            await self.inner.delete([key])
            await self._die(landed=True)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        await self._begin()
        async for entry in self.inner.list(prefix, after=after):
            yield entry


@dataclass(frozen=True)
class CommandResult:
    """The result of a command; ``status`` is None if it was killed."""

    status: int | None
    out: str
    err: str
    requests: int
    writes: int


@dataclass
class World:
    """Stores in memory, at the folders below ``root``; ``days`` sets the clock ahead."""

    root: Path
    objects: MemoryStore = field(default_factory=lambda: MemoryStore(name="memory://"))
    days: int = 0

    def copy(self) -> World:
        made = MemoryStore(name="memory://", objects=dict(self.objects.objects))
        made.puts_count = self.objects.puts_count
        return World(self.root, made, self.days)

    def run(
        self, line: str, *, given: bytes = b"", dies_at: int | None = None, landed: bool = False
    ) -> CommandResult:
        """Run a command on the location ``lake``; ``OUT`` stands for the URL of ``out``."""
        mortal = MortalStore(self.objects, dies_at=dies_at, landed=landed)
        words = [word.replace("OUT", str(self.root / "out")) for word in shlex.split(line)]
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with (
            self._stores(mortal),
            redirect_stdout(out),
            redirect_stderr(err),
            TemporaryFile("w+b") as typed,
        ):
            typed.write(given)
            typed.seek(0)
            with io.TextIOWrapper(typed) as stdin, patch("sys.stdin", stdin):
                status = main(["--location", str(self.root / "lake"), *words])
        out.flush()
        text = out.buffer.getvalue().decode()
        return CommandResult(
            None if mortal.is_dead else status, text, err.getvalue(), mortal.requests, mortal.writes
        )

    @contextmanager
    def _stores(self, mortal: MortalStore) -> Iterator[None]:
        def opened(root: Path, **options: Any) -> Store:
            if root.parent == self.root and root.name.startswith(("lake", "out")):
                return Within(mortal, root.name)
            return LocalStore(root, **options)

        def clock() -> OneThread:
            made = OneThread()
            made.slept_us = self.days * DAY_US
            return made

        with (
            patch("tidelog.store.urls.LocalStore", opened),
            patch("tidelog.location.location.SystemClock", clock),
        ):
            yield

    def keys(self) -> Counter[str]:
        """Return the keys of the location, without ids and numbers."""
        keys = (key for key in self.objects.objects if key.startswith("lake/"))
        return Counter(re.sub(r"[0-9a-f]{8,}", "#", key) for key in keys)
