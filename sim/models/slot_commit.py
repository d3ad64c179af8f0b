"""The slot-commit protocol, exhaustively at a small scope: its steps, its checks, its broken rules.

Actors: the writer of epoch 0; openers, which fence, take over and write; a sealer, which does as
they do with a fence that has no next epoch; rollers; a collector that erases, one object at a time
and at any moment, what the manifest of that moment proves dead; one reader.

A put that was sent may land whenever its slot is free, again and again, for ever: late, twice, or
after its sender has died. An answer comes at any moment after, or never, and says what the slot
holds when it comes. There is no step to crash, since who is never chosen again has crashed, and
all that is checked is that nothing wrong happens.

Checked at every step:
  1. the log only grows, and not at all once somebody was told that it is sealed;
  2. what was acknowledged is in it, and what was said not to have been applied never is;
  3. a read gives a prefix of it that has all that was acknowledged before the read began.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Final

from sim.models.explore import STATES_MAX, Explored, explore
from sim.models.slot_agents import agent_steps, reader_steps
from sim.models.slot_world import (
    DATA,
    SEAL,
    Gone,
    Manifest,
    Roll,
    Scope,
    Slot,
    World,
    Writing,
    by_place,
    number_of,
    walk,
)

BROKEN: Final = {
    "unfence": "the collector erases fences that ended an epoch",
    "unproven": "the collector takes what lies past any fence for void, recorded or not",
    "upstart": "a sweep takes each epoch that the manifest does not know for one that it went past",
    "noverify": "who has fenced does not look at the manifest again",
    "eager": "who has fenced believes its first fence that landed, whatever lies below it",
    "before": "a writer that meets a fence takes every slot below for its own, answered or not",
    "hasty": "a writer that meets a fence says what is not applied without looking at the manifest",
    "blind": "a reader takes a missing slot for the tail without looking at the manifest again",
    "gullible": "who meets a seal believes it without looking at the manifest again",
    "careless": "a roller replaces the manifest without the condition",
}


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Explored[World]:
    """Visit all that can happen in a scope."""
    return explore(
        scope.initial(),
        partial(steps, scope),
        check=check,
        check_step=check_step,
        states_max=states_max,
    )


def steps(scope: Scope, world: World) -> Iterator[tuple[str, World]]:
    if world.reader is not None and world.reader.ended:
        return  # What others do from here on, they also do where nobody reads.
    store = by_place(world.slots)
    for put in world.puts:
        if (put.epoch, put.slot) not in store:
            yield f"lands {put}", world._replace(slots=world.slots | {put})
    for me, agent in enumerate(world.agents):
        yield from agent_steps(scope, world, me, agent)
    if scope.reader:
        yield from reader_steps(scope, world)
    yield from _roller_steps(scope, world)
    for slot in _erasable(world.slots, world.manifest, scope.broken):
        yield f"erases {slot}", world._replace(slots=world.slots - {slot})


def _roller_steps(scope: Scope, world: World) -> Iterator[tuple[str, World]]:
    """Roll up as far as the chain goes, be it quickly or with time for others in between.

    What is wanted is what was there at the read: had more come since, and the manifest not moved,
    then a read just before the replacement would have wanted that.
    """
    wanted = walk(world.slots, world.manifest)
    if wanted != world.manifest:
        yield f"rolls up to {wanted}", world._replace(manifest=wanted)
        if scope.racing and world.roll is None:
            yield f"wants {wanted}", world._replace(roll=Roll(world.manifest, wanted))
    if world.roll is not None:
        seen, wanted = world.roll
        wins = seen == world.manifest or scope.broken == "careless"
        manifest = wanted if wins else world.manifest
        yield f"replaces, {wins=}", world._replace(manifest=manifest, roll=None)


@lru_cache(maxsize=1 << 16)
def _erasable(slots: frozenset[Slot], manifest: Manifest, broken: str | None) -> list[Slot]:
    """Return what the manifest proves dead.

    That is, whatever lies in the place of a record that was rolled up, and whatever lies in an
    epoch past the fence that is recorded as its end. A sweep erases besides what lies in an epoch
    that the manifest does not know, though it knows one of that number or a later one: fences of
    openers who walked into a stray. A collector that goes by an older manifest erases nothing else,
    since none of these is ever taken back.
    """
    dead = []
    for slot in slots:
        end = manifest.end_of(slot.epoch)
        is_void = end is not None and slot.slot > end[1]
        if broken == "unfence":
            is_void = end is not None and slot.slot >= end[1]
        elif broken == "unproven":
            is_void |= any(e == slot.epoch and s < slot.slot and h != DATA for e, s, h in slots)
        is_known = slot.epoch in {epoch for epoch, _ in manifest.epochs}
        is_passed = number_of(slot.epoch) <= manifest.number or broken == "upstart"
        if is_void or manifest.keeps(slot.epoch, slot.slot) or (not is_known and is_passed):
            dead.append(slot)
    return dead


def check_step(before: World, after: World) -> str | None:
    if before.slots is after.slots and before.manifest is after.manifest:
        return None
    was, log = _log_of(before), _log_of(after)
    return None if log[: len(was)] == was else "the log shrank or forked"


def check(world: World) -> str | None:
    """Return the sentence of what does not hold, if there is one."""
    log = _log_of(world)
    for agent in world.agents:
        if isinstance(agent, Writing):
            own = [slot for slot, epoch in enumerate(log) if epoch == agent.epoch]
            if not all(slot in own for slot in agent.acknowledged):
                return "an acknowledged record is lost"
            if any(slot in own for slot in agent.denied):
                return "a record is there that was said not to be"
        is_refused = isinstance(agent, Gone) and agent.told_sealed
        if is_refused and walk(world.slots, world.manifest).epoch != SEAL:
            return "a log that was said to be sealed is not"
    read = world.reader
    if read is not None and read.ended:
        if log[: len(read.records)] != read.records:
            return "a read is no prefix of the log"
        if not all(read.records[slot : slot + 1] == (epoch,) for epoch, slot in read.must):
            return "a read misses what was acknowledged before it began"
    return None


def _log_of(world: World) -> tuple[int, ...]:
    return _log(walk(world.slots, world.manifest))


@lru_cache(maxsize=1 << 16)
def _log(manifest: Manifest) -> tuple[int, ...]:
    return manifest.log()
