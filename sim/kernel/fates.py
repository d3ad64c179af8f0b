"""Fates: what becomes of each request of each client. Pure but for the dice they are given.

Two coins are tossed, did it happen and was the caller told; besides, a change can land after the
caller was told that it failed, and the client can die there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a client; ``index`` counts that client's requests from 0."""

    client: str
    index: int
    op: str
    key: str

    @property
    def changes(self) -> bool:
        return self.op in ("put", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a request.

    Units: ``late_us`` from when the caller was told that it failed to when it happens after all
    (None: never). ``dies``: told, the client dies with the answer in its hands; not told, waiting.
    """

    happened: bool = True
    told: bool = True
    late_us: int | None = None
    dies: bool = False


WELL: Final = Fate()


class Fates(Protocol):
    """Who decides."""

    def of(self, request: Request) -> Fate: ...

    def delay_us(self, request: Request) -> int:
        """Return how long a request is on its way, in one direction."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often things go wrong, of all requests; and how long a way takes.

    Units: ``.._us`` microseconds; a slow way is one of ``slow_us``.
    """

    refused: float = 0.0
    lost_before: float = 0.0
    lost_after: float = 0.0
    late: float = 0.0
    dies: float = 0.0
    slow: float = 0.0
    delay_us: int = 5_000
    slow_us: int = 1_500_000
    late_us: int = 5_000_000
    deaths_max: int = 0


@dataclass(slots=True)
class Dice:
    """Fates tossed with `Rates`. Nothing goes wrong while ``calm``."""

    random: random.Random
    rates: Rates
    mortal: frozenset[str] = frozenset()
    calm: bool = False
    deaths_count: int = 0

    def of(self, request: Request) -> Fate:
        toss = self.random.random()
        if self.calm:
            return WELL
        rates = self.rates
        if self._may_die(request.client) and toss < rates.dies:
            self.deaths_count += 1
            return Fate(happened=self._coin(), told=self._coin(), dies=True)
        toss = self.random.random()
        for rate, fate in (
            (rates.refused, Fate(happened=False)),
            (rates.lost_before, Fate(happened=False, told=False)),
            (rates.lost_after, Fate(told=False)),
            (rates.late, Fate(happened=False, told=False, late_us=self._late_us())),
        ):
            if toss < rate:
                return fate
            toss -= rate
        return WELL

    def delay_us(self, request: Request) -> int:
        slow = self.random.random() < self.rates.slow
        return 1 + self.random.randrange(self.rates.slow_us if slow else self.rates.delay_us)

    def _may_die(self, client: str) -> bool:
        return client in self.mortal and self.deaths_count < self.rates.deaths_max

    def _coin(self) -> bool:
        return self.random.random() < 0.5

    def _late_us(self) -> int:
        return 1 + self.random.randrange(self.rates.late_us)


@dataclass(slots=True)
class Script:
    """Fates by client and index; all others are well. ``seen`` holds every request."""

    fates: Mapping[tuple[str, int], Fate] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    way_us: int = 1_000

    def of(self, request: Request) -> Fate:
        self.seen.append(request)
        return self.fates.get((request.client, request.index), WELL)

    def delay_us(self, request: Request) -> int:
        return self.way_us


STORMS: Final = (0.0, 0.02, 0.06, 0.15)


def rates_of(seed: int, *, storms: tuple[float, ...] = STORMS) -> Rates:
    """Return a seed its weather: on some days only the order of things goes against you."""
    dice = random.Random(f"weather {seed}")
    storm = dice.choice(storms)
    return Rates(
        refused=storm * dice.random(),
        lost_before=storm * dice.random(),
        lost_after=storm * dice.random(),
        late=storm * dice.random(),
        dies=dice.choice([0.0, 0.01, 0.04]),
        slow=dice.choice([0.0, 0.05, 0.3]),
        delay_us=dice.choice([10, 5_000, 50_000]),
        late_us=dice.choice([10_000, 1_000_000, 20_000_000]),
        deaths_max=dice.choice([0, 1, 2, 3]),
    )
