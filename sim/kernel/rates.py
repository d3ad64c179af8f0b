"""Rates: how often each kind of fault strikes in a run, drawn from its seed. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

MINUTE_US: Final = 60_000_000
STORMS: Final = (0.0, 0.02, 0.06, 0.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rate of each fault among all requests, and how long a request takes.

    Units: ``.._us``: microseconds; the delay of a slow request is below ``slow_us``.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RarerRates:
    """The rates of rarer faults, among the requests that they can strike.

    ``busy``: a put gets a 409. ``short``: a get returns a prefix, with or without an error.
    ``denied``: the store refuses the client. ``cut``: a deletion of several keys is done in part.
    ``stops``: the client pauses. ``gone``: a client loses the store at a put, which may have
    happened; later requests do not happen. ``dies_late``: among deaths at a change, those whose
    change still lands later. ``cancels``: the share of appends and closes that are cancelled.
    ``spells``: among busy, denied and gone, the faults that last.

    Units: microseconds, each an upper limit: a spell, a pause, the delay after a death, a jump of
    the clocks, and the time within which they jump.
    """

    busy: float = 0.0
    short: float = 0.0
    denied: float = 0.0
    gone: float = 0.0
    cut: float = 0.0
    stops: float = 0.0
    dies_late: float = 0.0
    cancels: float = 0.0
    spells: float = 0.0
    stops_max: int = 0
    spell_us: int = MINUTE_US
    stop_us: int = MINUTE_US
    late_us: int = 10 * MINUTE_US
    jump_us: int = 0
    jumps_within_us: int = MINUTE_US


CALM: Final = RarerRates()

# The kinds of days: a failure under a single added fault is easier to understand.
DAYS: Final[dict[str, RarerRates]] = {
    "as before": CALM,
    "busy": RarerRates(busy=0.1, spells=0.1),
    "short": RarerRates(short=0.1),
    "denied": RarerRates(denied=0.03, spells=0.3),
    "gone": RarerRates(gone=0.1, spells=1.0),
    "cut": RarerRates(cut=0.5, dies_late=0.5),
    "stops": RarerRates(stops=0.02, stops_max=3, dies_late=0.5),
    "cancels": RarerRates(cancels=0.3),
    "jumps": RarerRates(jump_us=60 * MINUTE_US, jumps_within_us=2_000_000),
    "all": RarerRates(
        busy=0.02,
        short=0.02,
        denied=0.01,
        gone=0.01,
        cut=0.2,
        stops=0.005,
        dies_late=0.5,
        cancels=0.1,
        spells=0.1,
        stops_max=2,
        jump_us=MINUTE_US,
    ),
}


def rates_of(seed: int, *, storms: tuple[float, ...] = STORMS) -> Rates:
    """Return the rates of a seed: with some seeds, only the order of events is hostile."""
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


def day_of(seed: int) -> str:
    """Return the name of a seed's day, a key of `DAYS`."""
    return random.Random(f"day {seed}").choice(tuple(DAYS))


def seeds_of(day: str, count: int, *, first: int = 0) -> list[int]:
    """Return the first ``count`` seeds of a day, starting at ``first``."""
    found: Iterator[int] = (seed for seed in itertools.count(first) if day_of(seed) == day)
    return list(itertools.islice(found, count))


def worse_of(seed: int) -> RarerRates:
    """Return the rarer faults of a seed's day; pauses and spells are short or last a minute."""
    worse = DAYS[day_of(seed)]
    if worse is CALM:
        return worse
    dice = random.Random(f"worse {seed}")
    return replace(
        worse,
        spell_us=dice.choice([300_000, 5_000_000, MINUTE_US]),
        stop_us=dice.choice([300_000, 3_000_000, MINUTE_US]),
        late_us=dice.choice([1, 10]) * MINUTE_US,
    )
