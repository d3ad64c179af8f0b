"""The world of `sim.models.slot_commit`: slots, the manifest, and the state of each agent.

A slot holds one record, so a slot's number is its record's position. A record is named by its epoch
and its slot, because only the epoch's one writer puts data there. A log is therefore the tuple of
its records' epochs, and nothing can be in it twice.

A place is dead once the manifest proves that no agent needs it. It stays dead. A collector may
erase it at any moment, and any put ever sent there may land later, repeatedly. An agent that looks
at a dead place may thus find nothing, or any of those puts, whatever it found before. `sees`
returns all of these, and a dead place is no part of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from sim.models.slot_bursts import BurstOpener

# The content of a slot, unless it is the epoch that a fence opens.
DATA: Final = -1
SEAL: Final = -2

AGENTS_MAX: Final = 8


class Slot(NamedTuple):
    """An object in a slot, or the put of one."""

    epoch: int
    slot: int
    holds: int


Slots = frozenset[Slot]
NONE: Final[Slots] = frozenset()


class Manifest(NamedTuple):
    """The rolled-up part of the log: each epoch with its first slot, and the tail.

    A sealed log's last epoch is SEAL. Nothing holds collection back here, so the collected start is
    the tail. ``is_closed``: the last epoch's writer claims that it put nothing at or past the tail.
    No field ever goes back, so equal manifests are the same manifest: comparing them is comparing
    e_tags.
    """

    epochs: tuple[tuple[int, int], ...]
    tail: int
    is_closed: bool = False

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    @property
    def number(self) -> int:
        """Return the number of the last epoch; a seal has no number of its own."""
        return max(number_of(epoch) for epoch, _ in self.epochs)

    def end_of(self, epoch: int) -> tuple[int, int] | None:
        """Return the recorded end of an epoch: the next epoch, and the fence's slot."""
        for (each, _), after in pairwise(self.epochs):
            if each == epoch:
                return after
        return None

    def keeps(self, epoch: int, slot: int) -> bool:
        """Return True if a record has been rolled up."""
        log = self.log()
        return slot < len(log) and log[slot] == epoch

    def log(self) -> tuple[int, ...]:
        limits = [first for _, first in self.epochs[1:]] + [self.tail]
        runs = zip(self.epochs, limits, strict=True)
        return tuple(epoch for (epoch, first), limit in runs for _ in range(first, limit))


@lru_cache(maxsize=1 << 16)
def has_passed(manifest: Manifest, fence: Slot, *, named: int, unknown_passed: bool) -> bool:
    """Return True if the log passed a slot without this fence, which then is a stray.

    The manifest names its ``named`` newest epochs. For an older epoch it does not know the end, and
    takes the slot as passed; so it does for an unknown epoch of an old number.
    """
    epochs = manifest.epochs[-named:]
    if fence.epoch == epochs[-1][0]:
        return manifest.tail > fence.slot
    for (epoch, _), end in pairwise(epochs):
        if epoch == fence.epoch:
            return end != (fence.holds, fence.slot)
    if number_of(fence.epoch) > manifest.number:
        return manifest.tail > fence.slot
    return unknown_passed


@lru_cache(maxsize=1 << 16)
def is_dead(manifest: Manifest, epoch: int, slot: int) -> bool:
    """Return True if the manifest proves that no agent needs the content of a place.

    This covers the place of each record rolled up, and each place past an epoch's recorded end. In
    addition, a sweep erases epochs that the manifest does not know if it knows one of that number
    or a later one: fences of openers that walked into a stray.
    """
    if epoch == manifest.epoch:
        return slot < manifest.tail
    end = manifest.end_of(epoch)
    if end is not None:
        return slot != end[1]
    return number_of(epoch) <= manifest.number


@dataclass(frozen=True, slots=True)
class WritingAgent:
    """A writer that appends to its epoch from slot ``base``; ``issued`` limits its slots.

    ``done``: slots whose put succeeded. ``over``: the lowest fence that it met; nothing at or after
    it was applied. ``closed``: the writer closed and puts nothing more. ``before``: its writing in
    an epoch that it held earlier.
    """

    epoch: int
    base: int
    issued: int
    done: frozenset[int] = frozenset()
    over: int | None = None
    closed: bool = False
    before: WritingAgent | None = None

    @property
    def acknowledged(self) -> range:
        limit = self.base
        while limit in self.done:
            limit += 1
        return range(self.base, limit)

    @property
    def denied(self) -> range:
        return range(0) if self.over is None else range(self.over, self.issued)


@dataclass(frozen=True, slots=True)
class IdleAgent:
    """An agent about to open the log. ``held``: its writing in an epoch that it held, if any."""

    held: WritingAgent | None = None


@dataclass(frozen=True, slots=True)
class ListingAgent:
    """An agent about to look for the first free slot of an epoch, from ``slot``."""

    epoch: int
    slot: int
    known: Slots = NONE
    held: WritingAgent | None = None


@dataclass(frozen=True, slots=True)
class FencingAgent:
    """An agent that sent fences and looks at the manifest next; ``known`` as in `WalkingAgent`."""

    epoch: int
    known: Slots = NONE
    held: WritingAgent | None = None


@dataclass(frozen=True, slots=True)
class WalkingAgent:
    """An agent that walks by a manifest that may be outdated; it asks for this slot next.

    ``known``: fences that it knew of before it read that manifest.
    """

    epoch: int
    slot: int
    known: Slots = NONE
    held: WritingAgent | None = None


@dataclass(frozen=True, slots=True)
class RecheckingAgent:
    """An agent that met a fence after its look at the manifest, and looks again."""

    fence: Slot
    known: Slots = NONE
    held: WritingAgent | None = None


@dataclass(frozen=True, slots=True)
class FinishedAgent:
    """An agent that gave up or finished. ``told_sealed``: it reported that the log is sealed."""

    told_sealed: bool = False
    held: WritingAgent | None = None


Agent = (
    IdleAgent
    | ListingAgent
    | BurstOpener
    | FencingAgent
    | WalkingAgent
    | RecheckingAgent
    | WritingAgent
    | FinishedAgent
)


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """A read so far. ``must``: records acknowledged before it began.

    ``missed``: the slot held nothing, so it looks at the manifest. ``ended``: it reported the end
    of the log.
    """

    epoch: int
    slot: int
    records: tuple[int, ...]
    must: frozenset[tuple[int, int]]
    missed: bool = False
    ended: bool = False


class Roll(NamedTuple):
    """A roll-up between its read and its replacement."""

    seen: Manifest
    wanted: Manifest


class World(NamedTuple):
    """A state. ``slots``: the content of places that are not dead.

    ``puts``: all puts ever sent, each of which may land at any later moment.
    """

    slots: Slots
    manifest: Manifest
    agents: tuple[Agent, ...]
    puts: Slots
    reader: ReadProgress | None = None
    roll: Roll | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The numbers of agents and records. ``alpha``: the most puts that a writer has under way.

    ``records`` counts those of each epoch. ``ghosts``: openers that died after they sent fences
    into the first epoch. ``epochs``: those begun after the first; an agent that would begin more
    gives up. ``named``: the number of epochs that the manifest names.

    ``racing``: adds a roller with a delay between read and replacement. ``resolving``: a writer
    that lost an answer opens the log again. ``closing``: writers claim clean closes. ``lying``:
    their claims are false. ``broken``: the rule that is dropped.

    ``signs``: the number in a round, for openers that place fences by the protocol; with 0, fences
    may be anywhere. ``alone``: the limit on the steps of such an opener that runs alone, if
    checked; see `sim.models.slot_alone`. ``plain``: dead places are part of the state, and erased
    one by one, which takes far longer.
    """

    records: int = 1
    openers: int = 1
    ghosts: int = 0
    epochs: int = 2
    alpha: int = 2
    named: int = 1
    sealer: bool = False
    reader: bool = False
    racing: bool = False
    resolving: bool = False
    closing: bool = False
    lying: bool = False
    plain: bool = False
    signs: int = 0
    alone: int = 0
    broken: str | None = None

    def initial(self) -> World:
        others: tuple[Agent, ...] = (IdleAgent(),) * (self.openers + self.sealer)
        agents: tuple[Agent, ...] = (WritingAgent(0, 0, 0), *others)
        ghosts = range(len(agents), len(agents) + self.ghosts)
        places = range(self.records + 1)
        puts = frozenset(Slot(0, place, self.opens(me, 0)) for me in ghosts for place in places)
        return World(NONE, Manifest(((0, 0),), 0), agents, puts)

    def opens(self, me: int, epoch: int) -> int:
        """Return the content of an agent's fences in an epoch."""
        is_sealer = self.sealer and me == self.openers + 1
        return SEAL if is_sealer else epoch * AGENTS_MAX + me + 1

    def last_slot(self, epoch: int) -> int:
        """Return the last slot of an epoch that a walk can reach; it holds no data.

        No agent sees fences past it, so they are no part of the state.
        """
        return (number_of(epoch) + 1) * self.records


@lru_cache(maxsize=1 << 12)
def number_of(epoch: int) -> int:
    """Return the number of epochs before one; see `Scope.opens` for their encoding."""
    return 0 if epoch <= 0 else 1 + number_of((epoch - 1) // AGENTS_MAX)


def owner_of(epoch: int) -> int:
    """Return the agent whose fences open an epoch; agent 0 owns the first."""
    return 0 if epoch == 0 else (epoch - 1) % AGENTS_MAX


@lru_cache(maxsize=1 << 16)
def by_place(slots: Slots) -> dict[tuple[int, int], int]:
    return {(epoch, slot): holds for epoch, slot, holds in slots}


def sees(scope: Scope, world: World, epoch: int, slot: int) -> frozenset[int | None]:
    """Return the possible results of a look at a place; None stands for an empty place."""
    if is_dead(world.manifest, epoch, slot) and not scope.plain:
        return _sent(world.puts, epoch, slot)
    return frozenset((by_place(world.slots).get((epoch, slot)),))


def shows(scope: Scope, world: World, epoch: int, slot: int) -> frozenset[int | None]:
    """Return the possible results for a place in a listing or in the answer of a put.

    Past the fence that ended the epoch, it may be anything sent there. Fences need not land there,
    since a walk meets the fence that ended the epoch first.
    """
    end = walk(world.slots, world.manifest).end_of(epoch)
    if end is not None and slot > end[1] and not scope.plain:
        return _sent(world.puts, epoch, slot)
    return sees(scope, world, epoch, slot)


def answers(scope: Scope, world: World, fence: Slot) -> set[bool]:
    """Return the possible answers to a fence's put: whether it was created."""
    epoch, slot, mine = fence
    if slot > scope.last_slot(epoch):
        return {True, False}
    return {holds == mine for holds in shows(scope, world, epoch, slot) if holds is not None}


@lru_cache(maxsize=1 << 16)
def _sent(puts: Slots, epoch: int, slot: int) -> frozenset[int | None]:
    return frozenset((None, *(put.holds for put in puts if put[:2] == (epoch, slot))))


@lru_cache(maxsize=1 << 16)
def walk(slots: Slots, manifest: Manifest) -> Manifest:
    """Follow the chain of slots from the manifest's tail; return the manifest that lists it all."""
    store = by_place(slots)
    epochs, tail, _ = manifest
    while (holds := store.get((epochs[-1][0], tail))) is not None:
        if holds == DATA:
            tail += 1
        else:
            epochs += ((holds, tail),)
    is_same = (epochs, tail) == manifest[:2]
    return manifest if is_same else Manifest(epochs, tail)
