"""Waking the few tasks that serve a log, whenever something has changed that they may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """Something has changed: look again. For a handful of waiters, all of which are woken."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []  # In order: runs are to be alike.

    def notify(self) -> None:
        """Wake all who wait."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until ``predicate`` holds; it is asked again after each `notify`."""
        while not predicate():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
