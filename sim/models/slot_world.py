"""The world of `sim.models.slot_commit`: slots, the manifest, and who stands where.

A slot holds one record, so a slot's number is its record's position. A record is called by its
epoch and its slot: nobody but the epoch's one writer puts data there. A log is therefore written
as the tuple of its records' epochs, and nothing can be in it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

# What a slot can hold besides the epoch that a fence opens.
DATA: Final = -1
SEAL: Final = -2

AGENTS_MAX: Final = 8


class Slot(NamedTuple):
    """An object, or the put of one."""

    epoch: int
    slot: int
    holds: int


class Manifest(NamedTuple):
    """What has been rolled up: each epoch with its first slot, and the first slot not rolled up.

    A sealed log's last epoch is SEAL. Nothing holds collection back here, so the collected start is
    the tail. Nothing of it ever goes back, so that equal manifests are one and the same: to compare
    them is to compare e_tags.
    """

    epochs: tuple[tuple[int, int], ...]
    tail: int

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    @property
    def number(self) -> int:
        """Return the number of the last epoch; a seal is none."""
        return max(number_of(epoch) for epoch, _ in self.epochs)

    def end_of(self, epoch: int) -> tuple[int, int] | None:
        """Return what ended an epoch, if it is recorded: the next epoch, and the fence's slot."""
        for (each, _), after in zip(self.epochs, self.epochs[1:], strict=False):
            if each == epoch:
                return after
        return None

    def has_passed(self, fence: Slot) -> bool:
        """Say whether the log has gone past a slot without this fence, which then is a stray."""
        end = self.end_of(fence.epoch)
        return self.tail > fence.slot if end is None else end != (fence.holds, fence.slot)

    def keeps(self, epoch: int, slot: int) -> bool:
        """Say whether a record is among those that have been rolled up."""
        log = self.log()
        return slot < len(log) and log[slot] == epoch

    def log(self) -> tuple[int, ...]:
        limits = [first for _, first in self.epochs[1:]] + [self.tail]
        runs = zip(self.epochs, limits, strict=True)
        return tuple(epoch for (epoch, first), limit in runs for _ in range(first, limit))


@dataclass(frozen=True, slots=True)
class Idle:
    """Is about to open the log."""


@dataclass(frozen=True, slots=True)
class Walking:
    """Walks by a manifest that grows old, and asks for this slot next."""

    epoch: int
    slot: int


@dataclass(frozen=True, slots=True)
class Fencing:
    """Has put a burst of fences at ``first`` and the slots after it; 0 is no answer yet."""

    epoch: int
    first: int
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Doubting:
    """Stands before a fence that says what comes next, and is about to look at the manifest."""

    fence: Slot


@dataclass(frozen=True, slots=True)
class Writing:
    """Appends to its epoch from slot ``base`` on; ``issued`` limits the slots that it has put.

    ``done``: slots whose put was answered as done. ``over``: the lowest fence it has met, at and
    after which nothing was applied.
    """

    epoch: int
    base: int
    issued: int
    done: frozenset[int] = frozenset()
    over: int | None = None

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
class Gone:
    """Has given up, or done all it will. ``told_sealed``: has said that the log is sealed."""

    told_sealed: bool = False


Agent = Idle | Walking | Fencing | Doubting | Writing | Gone


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
    """A state. ``puts``: all that were ever sent, each of which may land at any moment since."""

    slots: frozenset[Slot]
    manifest: Manifest
    agents: tuple[Agent, ...]
    puts: frozenset[Slot]
    reader: Reading | None = None
    roll: Roll | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much there is of everything. ``alpha``: puts in flight, and the fences of a burst.

    ``records`` are those of each writer, the openers that became one included. ``racing``: a roller
    that is slow between read and replacement, besides those that are not. ``broken``: the rule that
    is dropped.
    """

    records: int = 1
    openers: int = 1
    alpha: int = 2
    sealer: bool = False
    reader: bool = False
    racing: bool = False
    broken: str | None = None

    def initial(self) -> World:
        others = (Idle(),) * (self.openers + self.sealer)
        nothing: frozenset[Slot] = frozenset()
        return World(nothing, Manifest(((0, 0),), 0), (Writing(0, 0, 0), *others), nothing)

    def opens(self, me: int, epoch: int) -> int:
        """Return what the fences of an agent say that it puts into an epoch."""
        is_sealer = self.sealer and me == self.openers + 1
        return SEAL if is_sealer else epoch * AGENTS_MAX + me


@lru_cache(maxsize=1 << 12)
def number_of(epoch: int) -> int:
    """Return how many epochs came before one; see `Scope.opens`, which names them."""
    return 0 if epoch <= 0 else 1 + number_of(epoch // AGENTS_MAX)


@lru_cache(maxsize=1 << 16)
def by_place(slots: frozenset[Slot]) -> dict[tuple[int, int], int]:
    return {(epoch, slot): holds for epoch, slot, holds in slots}


@lru_cache(maxsize=1 << 16)
def walk(slots: frozenset[Slot], manifest: Manifest) -> Manifest:
    """Follow the chain of slots from the manifest's tail; return the manifest that lists it all."""
    store = by_place(slots)
    epochs, tail = manifest
    while (holds := store.get((epochs[-1][0], tail))) is not None:
        if holds == DATA:
            tail += 1
        else:
            epochs += ((holds, tail),)
    return Manifest(epochs, tail)
