"""Faults: the outcome of each request of each client. Pure but for its random numbers.

Two independent draws decide whether a request happened and whether its caller got the answer. In
addition, a change can land after its caller got an error, an answer can be cut short, and a
deletion can be done in part. A refusal can last for a while. The client can die at the request, or
pause for a minute.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Protocol

from sim.kernel.rates import CALM, RarerRates, Rates


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


class ReportedError(enum.Enum):
    """The error that a caller gets if it does not get the outcome."""

    FAILED = "the network failed"
    BUSY = "others write this object under a condition: 409, and the put may have landed"
    GONE = "the network is gone, and was when it is asked again"
    DENIED = "the store refuses the credentials"
    SHORT = "other bytes came than were announced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The outcome of a request.

    ``share`` is the part of a get's bytes that arrive, or of a deletion's keys that are deleted.
    ``dies``: the client dies, with the answer if ``told``, else while it waits.

    Units: ``late_us`` runs from the caller's error until the change happens after all (None:
    never). ``stops_us``: how long the client pauses after it sent the request.
    """

    happened: bool = True
    told: bool = True
    late_us: int | None = None
    dies: bool = False
    error: ReportedError = ReportedError.FAILED
    share: float = 1.0
    stops_us: int = 0

    @property
    def kind(self) -> str:
        """Return the name under which the run counts this fault; empty without a fault."""
        if self.dies:
            return "died_late" if self.late_us is not None else "died"
        if self.error is not ReportedError.FAILED:
            return self.error.name.lower()
        if self.share < 1.0:
            return "cut"
        if self.late_us is not None:
            return "late"
        if not self.happened:
            return "failed" if self.told else "lost_before"
        return "" if self.told else "lost_after"


WELL: Final = Fault()


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump of a client's clocks at a moment of the world's time.

    Units: microseconds. Wall time jumps either way; monotonic time only forward.
    """

    at_us: int
    wall_us: int
    monotonic_us: int


class Schedule(Protocol):
    """The source of each request's fault."""

    def of(self, request: Request) -> Fault: ...

    def delay_us(self, request: Request) -> int:
        """Return how long a request travels in one direction."""
        ...

    def jumps_of(self, client: str) -> Sequence[Jump]:
        """Return the jumps of a client's clocks, in the order of time."""
        ...


@dataclass(frozen=True, slots=True)
class Spell:
    """A fault that lasts: every request that it meets fails in the same way until it ends."""

    fault: Fault
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
    """Faults drawn with `Rates`, and rarer ones with `RarerRates`. No fault strikes while ``calm``.

    Rarer faults have random numbers of their own, so a run without them stays the same.
    """

    random: Random
    rates: Rates
    mortal: frozenset[str] = frozenset()
    calm: bool = False
    deaths_count: int = 0
    worse: RarerRates = CALM
    worse_random: Random = field(default_factory=lambda: Random(0))
    spells: list[Spell] = field(default_factory=list)
    stops_count: int = 0

    def of(self, request: Request) -> Fault:
        fault = self._of(request)
        if self.worse is CALM or self.calm:
            return fault
        if fault.dies:
            return self._die(request, fault)
        return fault if fault is not WELL else self._worse(request)

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

    def _of(self, request: Request) -> Fault:
        toss = self.random.random()
        if self.calm:
            return WELL
        rates = self.rates
        if self._may_die(request.client) and toss < rates.dies:
            self.deaths_count += 1
            return Fault(happened=self._coin(), told=self._coin(), dies=True)
        toss = self.random.random()
        for rate, fault in (
            (rates.refused, Fault(happened=False)),
            (rates.lost_before, Fault(happened=False, told=False)),
            (rates.lost_after, Fault(told=False)),
            (rates.late, Fault(happened=False, told=False, late_us=self._late_us())),
        ):
            if toss < rate:
                return fault
            toss -= rate
        return WELL

    def _die(self, request: Request, fault: Fault) -> Fault:
        """Make the request of a dying client land in part, or long after its death."""
        dice, worse = self.worse_random, self.worse
        if fault.happened and worse.cut and request.op == "delete":
            return replace(fault, share=dice.random())
        if not fault.happened and request.changes and dice.random() < worse.dies_late:
            return replace(fault, told=False, late_us=1 + dice.randrange(worse.late_us))
        return fault

    def _worse(self, request: Request) -> Fault:
        for spell in self.spells:
            if spell.meets(request):
                return spell.fault
        dice, worse = self.worse_random, self.worse
        toss = dice.random()
        if self.stops_count < worse.stops_max and toss < worse.stops:
            self.stops_count += 1
            return Fault(stops_us=1 + dice.randrange(worse.stop_us))
        toss = dice.random()
        if request.op == "put" and toss < worse.busy:
            fault = Fault(happened=dice.random() < 0.5, told=False, error=ReportedError.BUSY)
            return self._begin(request, fault, client=None, key=request.key)
        if request.op == "get" and toss < worse.short:
            told = dice.random() < 0.5
            return Fault(told=told, error=ReportedError.SHORT, share=dice.random())
        if request.op == "delete" and request.size > 1 and toss < worse.cut:
            return Fault(told=False, share=dice.random())
        if worse.gone and request.op == "put" and dice.random() < worse.gone:
            fault = Fault(happened=dice.random() < 0.5, told=False, error=ReportedError.GONE)
            return self._begin(request, fault, client=request.client, key=None)
        if worse.denied and dice.random() < worse.denied:
            fault = Fault(happened=False, error=ReportedError.DENIED)
            key = request.key if dice.random() < 0.5 else None
            return self._begin(request, fault, client=request.client, key=key)
        return WELL

    def _begin(
        self, request: Request, fault: Fault, *, client: str | None, key: str | None
    ) -> Fault:
        """Return a fault that strikes once, or start a spell of it."""
        dice = self.worse_random
        if dice.random() < self.worse.spells:
            everything = frozenset({"get", "refresh", "put", "delete", "list"})
            alone = fault.error is ReportedError.BUSY or (
                fault.error is ReportedError.DENIED and dice.random() < 0.5
            )
            ops = frozenset({request.op}) if alone else everything
            until_us = request.at_us + 1 + dice.randrange(self.worse.spell_us)
            # During a spell of 409, the requests of other writers land, so these do not. In a spell
            # without a network, no request lands.
            goes_on = replace(fault, happened=False)
            self.spells.append(Spell(goes_on, ops, client, key, until_us))
        return fault

    def _may_die(self, client: str) -> bool:
        return client in self.mortal and self.deaths_count < self.rates.deaths_max

    def _coin(self) -> bool:
        return self.random.random() < 0.5

    def _late_us(self) -> int:
        return 1 + self.random.randrange(self.rates.late_us)


@dataclass(slots=True)
class Script:
    """Faults by client and index; other requests have none. ``seen`` holds every request."""

    faults: Mapping[tuple[str, int], Fault] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    way_us: int = 1_000

    def of(self, request: Request) -> Fault:
        self.seen.append(request)
        return self.faults.get((request.client, request.index), WELL)

    def delay_us(self, request: Request) -> int:
        return self.way_us

    def jumps_of(self, client: str) -> Sequence[Jump]:
        return ()
