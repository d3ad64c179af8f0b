"""Clocks for tests."""

from __future__ import annotations

import asyncio

from tidelog.clock import SystemClock


class SwiftClock(SystemClock):
    """The machine's clock, but a sleep takes no time: only this clock's own time goes on."""

    def __init__(self) -> None:
        self.slept_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.slept_us

    def monotonic_us(self) -> int:
        return super().monotonic_us() + self.slept_us

    async def sleep(self, duration_us: int) -> None:
        self.slept_us += duration_us
        await asyncio.sleep(0)


class StuckClock(SystemClock):
    """A clock whose wall time stands still, as a coarse one does, and can be set back."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.wall_us = now_us

    def now_us(self) -> int:
        return self.wall_us
