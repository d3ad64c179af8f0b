"""The slot-commit protocol, exhaustively at a small scope: its steps, checks and broken rules.

Actors: the writer of epoch 0; openers, which fence, take over and write; a sealer, which sends
fences without a next epoch; rollers; a collector, which erases dead objects one at a time, at any
moment, by the manifest of that moment; one reader.

A put that was sent may land at any time its slot is free, repeatedly: late, twice, or after its
sender has died. An answer comes at any later moment, or never, and shows the slot's content at that
moment. There is no crash step: an agent that takes no further step has crashed. The model checks
only that nothing wrong happens.

Checks at every step:
  1. the log only grows, and not after an agent reported it as sealed;
  2. acknowledged records are in it, and records reported as not applied never are;
  3. a read returns a prefix with all records acknowledged before the read began;
  4. a writer whose epoch another ended never ends a later epoch;
  5. an opener that runs alone ends within a fixed number of its own steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final

from sim.models.explore import STATES_MAX, Exploration, explore
from sim.models.slot_agents import agent_steps, reader_steps, writings
from sim.models.slot_alone import LoneOpeners
from sim.models.slot_world import (
    DATA,
    SEAL,
    FinishedAgent,
    Manifest,
    Roll,
    Scope,
    Slot,
    Slots,
    World,
    by_place,
    is_dead,
    number_of,
    owner_of,
    walk,
)

BROKEN: Final = {
    "unfence": "the collector erases fences that ended an epoch",
    "unproven": "the collector takes what lies past any fence for void, recorded or not",
    "upstart": "a sweep takes each epoch that the manifest does not know for one that it went past",
    "closing": "the collector takes the claim of a clean close for a fence",
    "noverify": "who has fenced does not look at the manifest again",
    "eager": "who has fenced believes its first fence that landed, whatever lies below it",
    "early": "who has fenced believes its fence, though it looked before that was answered",
    "vague": "who has fenced takes a put that found its slot taken for a fence of its own",
    "crosses": "an opener follows a fence of another that it met after its look",
    "ignorant": "an opener takes what the manifest does not name for what is yet to come",
    "trustful": "an opener believes a clean close again whose one slot it has found taken",
    "deposes": "a writer that another has fenced opens over the other's epoch",
    "before": "a writer that meets a fence takes every slot below for its own, answered or not",
    "hasty": "a writer that meets a fence says what is not applied without looking at the manifest",
    "forgetful": "a writer that meets a fence asks the newest epochs alone what is in the log",
    "blind": "a reader takes a missing slot for the tail without looking at the manifest again",
    "restful": "a reader takes the claim of a clean close for the tail",
    "gullible": "who meets a seal believes it without looking at the manifest again",
    "careless": "a roller replaces the manifest without the condition",
}


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Exploration[World]:
    """Visit every run of a scope."""
    alone = LoneOpeners(scope)

    def check_all(world: World) -> str | None:
        violation = check(world)
        if violation is None and scope.alone and alone.longest(world) > scope.alone:
            return "an opener that runs alone takes longer to end"
        return violation

    return explore(
        scope.initial(),
        partial(steps, scope),
        check=check_all,
        check_step=check_step,
        states_max=states_max,
    )


def steps(scope: Scope, world: World) -> Iterator[tuple[str, World]]:
    if world.reader is not None and world.reader.ended:
        return  # The steps of other agents after this also occur in runs without a reader.
    for put in _landing(scope, world):
        yield f"lands {put}", world._replace(slots=world.slots | {put})
    for me, agent in enumerate(world.agents):
        yield from agent_steps(scope, world, me, agent)
    if scope.reader:
        yield from reader_steps(scope, world)
    yield from _roller_steps(scope, world)
    for slot in _erasable(scope, world):
        yield f"erases {slot}", world._replace(slots=world.slots - {slot})


def _landing(scope: Scope, world: World) -> Iterator[Slot]:
    """Yield the puts that may land where an agent can see it; see `sees` for dead places.

    Only a writer whose put meets it sees a fence past the one that ended its epoch: a walk meets
    the fence that ended the epoch first.
    """
    store = by_place(world.slots)
    chain = walk(world.slots, world.manifest)
    for put in world.puts:
        if (put.epoch, put.slot) in store:
            continue
        if scope.plain:
            yield put
            continue
        if is_dead(world.manifest, put.epoch, put.slot):
            continue
        end = chain.end_of(put.epoch)
        is_void = end is not None and put.slot > end[1] and put.holds != DATA
        if not is_void or Slot(put.epoch, put.slot, DATA) in world.puts:
            yield put


def _roller_steps(scope: Scope, world: World) -> Iterator[tuple[str, World]]:
    """Roll up to the end of the chain, at once or with steps of other agents in between.

    The wanted manifest is that of the read. If the chain had grown since with the same manifest, a
    read just before the replacement would want the longer one.
    """
    wanted = walk(world.slots, world.manifest)
    if wanted != world.manifest:
        yield f"rolls up to {wanted}", _rolled(scope, world, wanted)
        if scope.racing and world.roll is None:
            yield f"wants {wanted}", world._replace(roll=Roll(world.manifest, wanted))
    if world.roll is not None:
        seen, wanted = world.roll
        wins = seen == world.manifest or scope.broken == "careless"
        manifest = wanted if wins else world.manifest
        yield f"replaces, {wins=}", _rolled(scope, world._replace(roll=None), manifest)


def _rolled(scope: Scope, world: World, manifest: Manifest) -> World:
    if scope.plain:
        return world._replace(manifest=manifest)
    return world._replace(slots=_alive(world.slots, manifest), manifest=manifest)


@lru_cache(maxsize=1 << 16)
def _alive(slots: Slots, manifest: Manifest) -> Slots:
    return frozenset(each for each in slots if not is_dead(manifest, each.epoch, each.slot))


def _erasable(scope: Scope, world: World) -> list[Slot]:
    """Return the objects that are not dead, but that a collector with a broken rule erases.

    A collector with an older manifest erases nothing else, since a dead place never becomes live.
    """
    slots, manifest = world.slots, world.manifest
    match scope.broken:
        case None if scope.plain:
            return [each for each in slots if is_dead(manifest, each.epoch, each.slot)]
        case "unfence":
            ends = ((epoch, manifest.end_of(epoch)) for epoch, _ in manifest.epochs)
            wrong = {Slot(epoch, end[1], end[0]) for epoch, end in ends if end is not None}
            return [each for each in slots if each in wrong]
        case "unproven":
            strays = (each for each in world.puts if is_dead(manifest, each.epoch, each.slot))
            fences = [each for each in (*slots, *strays) if each.holds != DATA]
            return [
                each
                for each in slots
                if any(fence.epoch == each.epoch and fence.slot < each.slot for fence in fences)
            ]
        case "upstart":
            return [each for each in slots if number_of(each.epoch) > manifest.number]
        case "closing" if manifest.is_closed:
            return [each for each in slots if each.epoch == manifest.epoch]
    return []


def check_step(before: World, after: World) -> str | None:
    if before.slots is after.slots and before.manifest is after.manifest:
        return None
    was, log = _log_of(before), _log_of(after)
    return None if log[: len(was)] == was else "the log shrank or forked"


def check(world: World) -> str | None:
    """Return a sentence for a violated check, or None."""
    chain = walk(world.slots, world.manifest)
    log = _log(chain)
    for me, agent in enumerate(world.agents):
        for each in writings(agent):
            own = [slot for slot, epoch in enumerate(log) if epoch == each.epoch]
            if not all(slot in own for slot in each.acknowledged):
                return "an acknowledged record is lost"
            if any(slot in own for slot in each.denied):
                return "a record is there that was said not to be"
            if _deposed(chain, me, each.epoch):
                return "a writer ended an epoch that came after another had ended its own"
        is_refused = isinstance(agent, FinishedAgent) and agent.told_sealed
        if is_refused and chain.epoch != SEAL:
            return "a log that was said to be sealed is not"
    return _check_read(world, log)


@lru_cache(maxsize=1 << 16)
def _deposed(chain: Manifest, me: int, held: int) -> bool:
    """Return True if an agent that held an epoch follows another agent that followed it."""
    epochs = [epoch for epoch, _ in chain.epochs]
    if held not in epochs:
        return False
    owners = [owner_of(epoch) for epoch in epochs[epochs.index(held) :] if epoch != SEAL]
    return any(was != me and now == me for was, now in pairwise(owners))


def _check_read(world: World, log: tuple[int, ...]) -> str | None:
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
