"""Turns: the sources that one process ingests get fair shares of it.

A source takes a turn for each tick, and then waits behind the sources that wait already. So a
source with much data delays another one by a few ticks at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

TICKS_AT_ONCE: Final = 4  # Below the number of threads of any event loop: a Spark job blocks one.
SMALL_BYTES: Final = 8 * 1024 * 1024


@dataclass(slots=True)
class Turns:
    """The turns of the sources of one process.

    Units: at most ``at_once`` sources tick at one time. At most one of them has more than
        ``SMALL_BYTES`` left to read in this process, because its tick needs much memory.
    """

    at_once: int = TICKS_AT_ONCE
    merging: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _ticking: asyncio.Semaphore = field(init=False)
    _large: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._ticking = asyncio.Semaphore(self.at_once)

    @asynccontextmanager
    async def tick(self, size_bytes: int = 0) -> AsyncIterator[None]:
        """Wait for a turn; ``size_bytes`` are left for this process to read."""
        async with AsyncExitStack() as stack:
            if size_bytes > SMALL_BYTES:
                # Taken first, so that a large tick that waits for another one blocks no small one.
                await stack.enter_async_context(self._large)
            await stack.enter_async_context(self._ticking)
            yield
