"""The world of `sim.models.slot_commit`: slots, the manifest, and where each agent stands.

A slot holds one record, so a slot's number is its record's position. A record is named by its
epoch and its slot: nobody but the epoch's one writer puts data there. A log is therefore written
as the tuple of its records' epochs, and nothing can be in it twice.

A place is dead once the manifest proves that what lies there is needed no more. It stays dead, a
collector may erase it at any moment, and any put that was ever sent there may land afterwards,
again and again. So whoever looks at a dead place may find nothing, or any of those puts, whatever
was found before. `sees` says just that, and a dead place is no part of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from sim.models.slot_bursts import Bursting

# What a slot can hold besides the epoch that a fence opens.
DATA: Final = -1
SEAL: Final = -2

AGENTS_MAX: Final = 8


class Slot(NamedTuple):
    """An object, or the put of one."""

    epoch: int
    slot: int
    holds: int


Slots = frozenset[Slot]
NONE: Final[Slots] = frozenset()


class Manifest(NamedTuple):
    """What has been rolled up: each epoch with its first slot, and the first slot not rolled up.

    A sealed log's last epoch is SEAL. Nothing holds collection back here, so the collected start is
    the tail. ``is_closed``: the last epoch's writer claims that it put nothing at or past the tail.
    Nothing of it ever goes back, so that equal manifests are one and the same: to compare them is
    to compare e_tags.
    """

    epochs: tuple[tuple[int, int], ...]
    tail: int
    is_closed: bool = False

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    @property
    def number(self) -> int:
        """Return the number of the last epoch; a seal has none of its own."""
        return max(number_of(epoch) for epoch, _ in self.epochs)

    def end_of(self, epoch: int) -> tuple[int, int] | None:
        """Return what ended an epoch, if it is recorded: the next epoch, and the fence's slot."""
        for (each, _), after in pairwise(self.epochs):
            if each == epoch:
                return after
        return None

    def keeps(self, epoch: int, slot: int) -> bool:
        """Say whether a record is among those that have been rolled up."""
        log = self.log()
        return slot < len(log) and log[slot] == epoch

    def log(self) -> tuple[int, ...]:
        limits = [first for _, first in self.epochs[1:]] + [self.tail]
        runs = zip(self.epochs, limits, strict=True)
        return tuple(epoch for (epoch, first), limit in runs for _ in range(first, limit))


@lru_cache(maxsize=1 << 16)
def has_passed(manifest: Manifest, fence: Slot, *, named: int, unknown_passed: bool) -> bool:
    """Say whether the log has gone past a slot without this fence, which then is a stray.

    The manifest names its ``named`` newest epochs. Of an older one it does not know the end, and
    takes the slot as passed; so it does for an epoch beside those that it names.
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
    """Say whether the manifest proves that what lies in a place is needed no more.

    That is, whatever lies in the place of a record that was rolled up, and whatever lies in an
    epoch past the fence that is recorded as its end. Besides, a sweep erases what lies in an epoch
    that the manifest does not know, though it knows one of that number or a later one: fences of
    openers that walked into a stray.
    """
    if epoch == manifest.epoch:
        return slot < manifest.tail
    end = manifest.end_of(epoch)
    if end is not None:
        return slot != end[1]
    return number_of(epoch) <= manifest.number


@dataclass(frozen=True, slots=True)
class Writing:
    """Appends to its epoch from slot ``base`` on; ``issued`` limits the slots that it has put.

    ``done``: slots whose put was answered as done. ``over``: the lowest fence it has met, at and
    after which nothing was applied. ``closed``: has said so, and puts no more. ``before``: what it
    wrote in an epoch that it held earlier.
    """

    epoch: int
    base: int
    issued: int
    done: frozenset[int] = frozenset()
    over: int | None = None
    closed: bool = False
    before: Writing | None = None

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
class Idle:
    """Is about to open the log. ``held``: what it wrote in the epoch that it held, if it did."""

    held: Writing | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Is about to look for the first slot that is free in an epoch, from ``slot`` on."""

    epoch: int
    slot: int
    known: Slots = NONE
    held: Writing | None = None


@dataclass(frozen=True, slots=True)
class Fencing:
    """Has sent fences into an epoch, and looks at the manifest next; ``known`` as in `Walking`."""

    epoch: int
    known: Slots = NONE
    held: Writing | None = None


@dataclass(frozen=True, slots=True)
class Walking:
    """Walks by a manifest that grows old, and asks for this slot next.

    ``known``: fences that were known to be there before that manifest was read.
    """

    epoch: int
    slot: int
    known: Slots = NONE
    held: Writing | None = None


@dataclass(frozen=True, slots=True)
class Doubting:
    """Stands before a fence that it met after its look at the manifest, and looks again."""

    fence: Slot
    known: Slots = NONE
    held: Writing | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """Has given up, or done all it will. ``told_sealed``: has said that the log is sealed."""

    told_sealed: bool = False
    held: Writing | None = None


Agent = Idle | Listing | Bursting | Fencing | Walking | Doubting | Writing | Gone


@dataclass(frozen=True, slots=True)
class Reading:
    """Has read ``records``, and looks at a slot next. ``must``: acknowledged before it began.

    ``missed``: found nothing to go on with there, and looks at the manifest. ``ended``: believes
    that these are all.
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
    """A state. ``slots``: what lies in places that are not dead.

    ``puts``: all that were ever sent, each of which may land at any moment since.
    """

    slots: Slots
    manifest: Manifest
    agents: tuple[Agent, ...]
    puts: Slots
    reader: Reading | None = None
    roll: Roll | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much there is of everything. ``alpha``: the puts that a writer has under way at most.

    ``records`` are those of each epoch. ``ghosts``: openers that died when they had sent fences
    into the first epoch, which may land at any moment. ``epochs``: those begun after the first; an
    agent that would begin more gives up. ``named``: the epochs that the manifest names.

    ``racing``: a roller that is slow between read and replacement, besides those that are not.
    ``resolving``: a writer that lost an answer opens the log again. ``closing``: writers claim
    clean closes. ``lying``: they claim them falsely. ``broken``: the rule that is dropped.

    ``signs``: those of a round, of openers that put their fences where the protocol says; 0 is for
    fences that may stand anywhere. ``alone``: the steps within which such an opener ends that runs
    alone, if that is to be checked; see `sim.models.slot_alone`. ``plain``: dead places are part of
    the state, and erased one by one; it takes far longer.
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
        others: tuple[Agent, ...] = (Idle(),) * (self.openers + self.sealer)
        agents: tuple[Agent, ...] = (Writing(0, 0, 0), *others)
        ghosts = range(len(agents), len(agents) + self.ghosts)
        places = range(self.records + 1)
        puts = frozenset(Slot(0, place, self.opens(me, 0)) for me in ghosts for place in places)
        return World(NONE, Manifest(((0, 0),), 0), agents, puts)

    def opens(self, me: int, epoch: int) -> int:
        """Return what the fences of an agent say that it puts into an epoch."""
        is_sealer = self.sealer and me == self.openers + 1
        return SEAL if is_sealer else epoch * AGENTS_MAX + me + 1

    def last_slot(self, epoch: int) -> int:
        """Return the last slot of an epoch that a walk may come to: nobody has data there.

        Fences past it are seen by nobody, and are no part of the state.
        """
        return (number_of(epoch) + 1) * self.records


@lru_cache(maxsize=1 << 12)
def number_of(epoch: int) -> int:
    """Return how many epochs came before one; see `Scope.opens`, which names them."""
    return 0 if epoch <= 0 else 1 + number_of((epoch - 1) // AGENTS_MAX)


def owner_of(epoch: int) -> int:
    """Return the agent whose fences name an epoch; the first is the first writer's."""
    return 0 if epoch == 0 else (epoch - 1) % AGENTS_MAX


@lru_cache(maxsize=1 << 16)
def by_place(slots: Slots) -> dict[tuple[int, int], int]:
    return {(epoch, slot): holds for epoch, slot, holds in slots}


def sees(scope: Scope, world: World, epoch: int, slot: int) -> frozenset[int | None]:
    """Return what a look at a place may find: None where there is nothing."""
    if is_dead(world.manifest, epoch, slot) and not scope.plain:
        return _sent(world.puts, epoch, slot)
    return frozenset((by_place(world.slots).get((epoch, slot)),))


def shows(scope: Scope, world: World, epoch: int, slot: int) -> frozenset[int | None]:
    """Return what a listing or the answer of a put may say of a place.

    Past the fence that ended the epoch it may be anything that was sent there: fences need not be
    landed there, since whoever walks comes to the one that ended the epoch first.
    """
    end = walk(world.slots, world.manifest).end_of(epoch)
    if end is not None and slot > end[1] and not scope.plain:
        return _sent(world.puts, epoch, slot)
    return sees(scope, world, epoch, slot)


def answers(scope: Scope, world: World, fence: Slot) -> set[bool]:
    """Return what the put of a fence may be told: whether it was created."""
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
