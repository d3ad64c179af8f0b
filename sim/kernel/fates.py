"""Fates: what becomes of each request of each client. Pure but for the dice they are given.

Two coins are tossed, did it happen and was the caller told; besides, a change can land after the
caller was told that it failed, an answer can be cut short, a deletion be done in part, a refusal go
on for a while, and the client can die there, or stand still for a minute.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Protocol

from sim.kernel.weather import CALM, Rates, Worse


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a client; ``index`` counts that client's requests from 0.

    ``size`` counts the keys of a deletion. Units: ``at_us`` is the world's time.
    """

    client: str
    index: int
    op: str
    key: str
    size: int = 1
    at_us: int = 0

    @property
    def changes(self) -> bool:
        return self.op in ("put", "delete")


class Told(enum.Enum):
    """What a caller is told that is not told what happened."""

    FAILED = "the network failed"
    BUSY = "others write this object under a condition: 409, and the put may have landed"
    GONE = "the network is gone, and was when it is asked again"
    DENIED = "the store refuses the credentials"
    SHORT = "other bytes came than were announced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a request.

    ``share`` is the part of a get's bytes that come, or of a deletion's keys that go. ``dies``:
    told, the client dies with the answer in its hands; not told, waiting.

    Units: ``late_us`` from when the caller was told that it failed to when it happens after all
    (None: never); ``stops_us`` for which the client stands still, once it has asked.
    """

    happened: bool = True
    told: bool = True
    late_us: int | None = None
    dies: bool = False
    error: Told = Told.FAILED
    share: float = 1.0
    stops_us: int = 0

    @property
    def kind(self) -> str:
        """Name it, for whoever counts; empty if nothing is wrong."""
        if self.dies:
            return "died_late" if self.late_us is not None else "died"
        if self.error is not Told.FAILED:
            return self.error.name.lower()
        if self.share < 1.0:
            return "cut"
        if self.late_us is not None:
            return "late"
        if not self.happened:
            return "failed" if self.told else "lost_before"
        return "" if self.told else "lost_after"


WELL: Final = Fate()


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump of a client's clocks at a moment of the world's time.

    Units: microseconds. Wall time jumps either way; monotonic time only forward.
    """

    at_us: int
    wall_us: int
    monotonic_us: int


class Fates(Protocol):
    """Who decides."""

    def of(self, request: Request) -> Fate: ...

    def delay_us(self, request: Request) -> int:
        """Return how long a request is on its way, in one direction."""
        ...

    def jumps_of(self, client: str) -> Sequence[Jump]:
        """Return how the clocks of a client will jump, in the order of time."""
        ...


@dataclass(frozen=True, slots=True)
class Spell:
    """A fault that goes on: every request that it meets fails so, until it is over."""

    fate: Fate
    ops: frozenset[str]
    client: str | None
    key: str | None
    until_us: int

    def meets(self, request: Request) -> bool:
        return (
            request.at_us < self.until_us
            and request.op in self.ops
            and self.client in (None, request.client)
            and self.key in (None, request.key)
        )


@dataclass(slots=True)
class Dice:
    """Fates tossed with `Rates`, and what is worse with `Worse`. Nothing goes wrong while ``calm``.

    What is worse has dice of its own: a run without it is what it was before there was any.
    """

    random: Random
    rates: Rates
    mortal: frozenset[str] = frozenset()
    calm: bool = False
    deaths_count: int = 0
    worse: Worse = CALM
    worse_random: Random = field(default_factory=lambda: Random(0))
    spells: list[Spell] = field(default_factory=list)
    stops_count: int = 0

    def of(self, request: Request) -> Fate:
        fate = self._of(request)
        if self.worse is CALM or self.calm:
            return fate
        if fate.dies:
            return self._die(request, fate)
        return fate if fate is not WELL else self._worse(request)

    def delay_us(self, request: Request) -> int:
        slow = self.random.random() < self.rates.slow
        return 1 + self.random.randrange(self.rates.slow_us if slow else self.rates.delay_us)

    def jumps_of(self, client: str) -> Sequence[Jump]:
        worse = self.worse
        if self.calm or not worse.jump_us:
            return ()
        dice = Random(f"jumps {self.worse_random.random()} {client}")
        times = sorted(dice.randrange(worse.jumps_within_us) for _ in range(dice.choice([0, 1, 3])))
        return [
            Jump(
                at_us,
                dice.randrange(-worse.jump_us, worse.jump_us),
                dice.choice([0, dice.randrange(worse.jump_us)]),
            )
            for at_us in times
        ]

    def _of(self, request: Request) -> Fate:
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

    def _die(self, request: Request, fate: Fate) -> Fate:
        """Let what a client leaves under way land in part, or when all think that it is over."""
        dice, worse = self.worse_random, self.worse
        if fate.happened and worse.cut and request.op == "delete":
            return replace(fate, share=dice.random())
        if not fate.happened and request.changes and dice.random() < worse.dies_late:
            return replace(fate, told=False, late_us=1 + dice.randrange(worse.late_us))
        return fate

    def _worse(self, request: Request) -> Fate:
        for spell in self.spells:
            if spell.meets(request):
                return spell.fate
        dice, worse = self.worse_random, self.worse
        toss = dice.random()
        if self.stops_count < worse.stops_max and toss < worse.stops:
            self.stops_count += 1
            return Fate(stops_us=1 + dice.randrange(worse.stop_us))
        toss = dice.random()
        if request.op == "put" and toss < worse.busy:
            fate = Fate(happened=dice.random() < 0.5, told=False, error=Told.BUSY)
            return self._begin(request, fate, client=None, key=request.key)
        if request.op == "get" and toss < worse.short:
            told = dice.random() < 0.5
            return Fate(told=told, error=Told.SHORT, share=dice.random())
        if request.op == "delete" and request.size > 1 and toss < worse.cut:
            return Fate(told=False, share=dice.random())
        if worse.gone and request.op == "put" and dice.random() < worse.gone:
            fate = Fate(happened=dice.random() < 0.5, told=False, error=Told.GONE)
            return self._begin(request, fate, client=request.client, key=None)
        if worse.denied and dice.random() < worse.denied:
            fate = Fate(happened=False, error=Told.DENIED)
            key = request.key if dice.random() < 0.5 else None
            return self._begin(request, fate, client=request.client, key=key)
        return WELL

    def _begin(self, request: Request, fate: Fate, *, client: str | None, key: str | None) -> Fate:
        """Return a fate that strikes once, or goes on for a while."""
        dice = self.worse_random
        if dice.random() < self.worse.spells:
            everything = frozenset({"get", "refresh", "put", "delete", "list"})
            alone = fate.error is Told.BUSY or (fate.error is Told.DENIED and dice.random() < 0.5)
            ops = frozenset({request.op}) if alone else everything
            until_us = request.at_us + 1 + dice.randrange(self.worse.spell_us)
            # A 409 that goes on is of others' writes: what it is told of has not landed, as has
            # nothing that is sent into a network that is gone.
            goes_on = replace(fate, happened=False)
            self.spells.append(Spell(goes_on, ops, client, key, until_us))
        return fate

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

    def jumps_of(self, client: str) -> Sequence[Jump]:
        return ()
