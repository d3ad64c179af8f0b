"""The clock of a simulated client: virtual time, and randomness that the seed decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

START_US: Final = 1_700_000_000_000_000


class SimClock:
    """A `tidelog.clock.Clock` on a `SimLoop`; ``check_alive`` raises once its owner is dead.

    Units: ``skew_us`` is how far its wall time stands off the world's.
    """

    def __init__(
        self, seed: int | str, *, skew_us: int = 0, check_alive: Callable[[], None] | None = None
    ) -> None:
        self._random = random.Random(f"clock {seed}")
        self._skew_us = skew_us
        self._check_alive = check_alive or (lambda: None)

    def now_us(self) -> int:
        return START_US + self._skew_us + self.monotonic_us()

    def monotonic_us(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6)

    async def sleep(self, duration_us: int) -> None:
        self._check_alive()
        await asyncio.sleep(duration_us / 1e6)
        self._check_alive()

    def uniform(self) -> float:
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    async def offload(self, work: Callable[[], T]) -> T:
        # The loop may let others go first, as a thread would.
        self._check_alive()
        await asyncio.sleep(0)
        self._check_alive()
        return work()
