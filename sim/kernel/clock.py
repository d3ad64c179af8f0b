"""The clock of a simulated client: virtual time, and randomness that the seed decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sim.kernel.faults import Jump

T = TypeVar("T")

START_US: Final = 1_700_000_000_000_000


class SimClock:
    """A `tidelog.core.clock.Clock` on a `SimLoop`; ``check_alive`` raises once its owner is dead.

    ``on_jump`` is called at the first look after a jump. Units: ``skew_us`` is how far its wall
    time differs from the world's.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        skew_us: int = 0,
        check_alive: Callable[[], None] | None = None,
        jumps: Sequence[Jump] = (),
        on_jump: Callable[[], None] | None = None,
    ) -> None:
        self._random = random.Random(f"clock {seed}")
        self._wall_us = skew_us
        self._monotonic_us = 0
        self._check_alive = check_alive or (lambda: None)
        self._jumps = list(jumps)
        self._on_jump = on_jump or (lambda: None)

    def now_us(self) -> int:
        return START_US + self._world_us() + self._wall_us

    def monotonic_us(self) -> int:
        return self._world_us() + self._monotonic_us

    def boot(self) -> str:
        self._world_us()
        return f"sim {self._monotonic_us}"

    async def sleep(self, duration_us: int) -> None:
        self._check_alive()
        await asyncio.sleep(duration_us / 1e6)
        self._check_alive()

    def uniform(self) -> float:
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    async def offload(self, work: Callable[[], T]) -> T:
        # The loop may run other tasks first, as a thread would.
        self._check_alive()
        await asyncio.sleep(0)
        self._check_alive()
        return work()

    def _world_us(self) -> int:
        now_us = round(asyncio.get_running_loop().time() * 1e6)
        while self._jumps and self._jumps[0].at_us <= now_us:
            jump = self._jumps.pop(0)
            self._wall_us += jump.wall_us
            self._monotonic_us += jump.monotonic_us
            self._on_jump()
        return now_us
