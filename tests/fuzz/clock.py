"""A clock for repeatable cases: nothing that it returns comes from the machine."""

from __future__ import annotations

import asyncio
import random

from kit.clocks import OneThread


class IdleFollower(Exception):
    """A follower of a log has waited often enough."""


class StillClock(OneThread):
    """A clock that advances only by sleeps, in no real time, with ids from a seed."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._dice = random.Random(seed)
        self.sleeps_left: int | None = None

    def now_us(self) -> int:
        return 1_750_000_000_000_000 + self.slept_us

    def monotonic_us(self) -> int:
        return self.slept_us

    def uniform(self) -> float:
        return self._dice.random()

    def unique(self) -> str:
        return f"{self._dice.getrandbits(128):032x}"

    async def sleep(self, duration_us: int) -> None:
        if self.sleeps_left is not None:
            self.sleeps_left -= 1
            if self.sleeps_left < 0:
                raise IdleFollower
        self.slept_us += max(duration_us, 1)
        await asyncio.sleep(0)
