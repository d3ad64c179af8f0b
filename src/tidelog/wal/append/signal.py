"""A signal that wakes the few tasks of a log after a change that they may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """A notice of a change, after which each waiter checks its condition. For a few waiters."""

    def __init__(self) -> None:
        # Ordered, so that simulated runs repeat exactly.
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wake all waiters."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until ``predicate`` returns True; it is called again after each `notify`."""
        while not predicate():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
