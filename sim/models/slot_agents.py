"""What writers, openers, the sealer and the reader of `sim.models.slot_commit` do next.

Each gives the worlds that one step of one of them leads to. An opener that starts again names the
same epoch as before when it comes upon the same one: what a put left behind by its earlier attempt
can do to another epoch, one of another opener does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sim.models.slot_world import (
    DATA,
    SEAL,
    Agent,
    Doubting,
    Fencing,
    Gone,
    Idle,
    Manifest,
    Reading,
    Scope,
    Slot,
    Walking,
    World,
    Writing,
    by_place,
)

UNANSWERED: Final = 0


def agent_steps(scope: Scope, world: World, me: int, agent: Agent) -> Iterator[tuple[str, World]]:
    match agent:
        case Writing():
            yield from _append(scope, world, me, agent)
            yield from _hear(scope, world, me, agent)
        case Idle():
            yield f"{me} reads the manifest", _with(world, me, _from_manifest(world.manifest))
        case Walking():
            yield _walk_on(scope, world, me, agent)
        case Fencing():
            yield from _hear_fences(scope, world, me, agent)
        case Doubting(fence):
            believes = not world.manifest.has_passed(fence)
            now = _believing(fence) if believes else Gone()
            yield f"{me} looks again, {believes=}", _with(world, me, now)


def _append(scope: Scope, world: World, me: int, writer: Writing) -> Iterator[tuple[str, World]]:
    slot = writer.issued
    in_flight = slot - writer.acknowledged.stop
    is_left = slot < writer.base + scope.records and in_flight < scope.alpha
    if writer.over is None and is_left:
        puts = world.puts | {Slot(writer.epoch, slot, DATA)}
        now = replace(writer, issued=slot + 1)
        yield f"{me} puts slot {slot}", _with(world, me, now)._replace(puts=puts)


def _hear(scope: Scope, world: World, me: int, writer: Writing) -> Iterator[tuple[str, World]]:
    """An answer comes. Data is the writer's own; a fence may stand where it was collected.

    The look at the manifest is one step with the answer: if the fence is a stray, the manifest had
    passed it before it landed, and if not, it never will, so that a later look says the same.
    """
    store = by_place(world.slots)
    for slot in range(writer.base, writer.issued if writer.over is None else writer.over):
        holds = store.get((writer.epoch, slot))
        if holds is None or slot in writer.done:
            continue
        kept = scope.broken != "hasty" and world.manifest.keeps(writer.epoch, slot)
        if holds == DATA or kept:
            now = replace(writer, done=writer.done | {slot})
        else:
            below = range(writer.base, slot)
            done = below if scope.broken == "before" else writer.done.intersection(below)
            now = replace(writer, done=frozenset(done), over=slot)
        yield f"{me} hears of slot {slot}, {holds=}", _with(world, me, now)


def _from_manifest(manifest: Manifest) -> Agent:
    if manifest.epoch == SEAL:
        return _believing(Slot(manifest.epochs[-2][0], manifest.tail, SEAL))
    return Walking(manifest.epoch, manifest.tail)


def _walk_on(scope: Scope, world: World, me: int, walking: Walking) -> tuple[str, World]:
    """Ask for a slot; put a burst of fences from the first missing one on."""
    epoch, slot = walking.epoch, walking.slot
    holds = by_place(world.slots).get((epoch, slot))
    label = f"{me} walks to slot {slot} of epoch {epoch}, {holds=}"
    if holds is None:
        burst = range(slot, slot + scope.alpha)
        puts = world.puts | {Slot(epoch, each, scope.opens(me, epoch)) for each in burst}
        now = Fencing(epoch, slot, (UNANSWERED,) * scope.alpha)
        return label, _with(world, me, now)._replace(puts=puts)
    if holds == DATA:
        return label, _with(world, me, Walking(epoch, slot + 1))
    if holds == SEAL:
        return label, _with(world, me, _met(scope, Slot(epoch, slot, SEAL)))
    return label, _with(world, me, Walking(holds, slot))


def _hear_fences(
    scope: Scope, world: World, me: int, fencing: Fencing
) -> Iterator[tuple[str, World]]:
    store = by_place(world.slots)
    for number, answer in enumerate(fencing.answers):
        slot = fencing.first + number
        holds = store.get((fencing.epoch, slot))
        if answer == UNANSWERED and holds is not None:
            answers = (*fencing.answers[:number], holds, *fencing.answers[number + 1 :])
            now = _decided(scope, me, replace(fencing, answers=answers))
            yield f"{me} hears of its fence in slot {slot}, {holds=}", _with(world, me, now)


def _decided(scope: Scope, me: int, fencing: Fencing) -> Agent:
    """Take the answers strictly in the order of slots: the first fence decides."""
    mine = scope.opens(me, fencing.epoch)
    for slot, answer in enumerate(fencing.answers, start=fencing.first):
        fence = Slot(fencing.epoch, slot, answer)
        if answer == UNANSWERED and scope.broken != "eager":
            return fencing
        if answer == mine:
            return _believing(fence) if scope.broken == "noverify" else Doubting(fence)
        if answer == SEAL:
            return _met(scope, fence)
        if answer not in (DATA, UNANSWERED):
            return Idle()  # Another's: followed from the manifest.
    return fencing if UNANSWERED in fencing.answers else Idle()


def _met(scope: Scope, seal: Slot) -> Agent:
    return _believing(seal) if scope.broken == "gullible" else Doubting(seal)


def _believing(fence: Slot) -> Agent:
    is_seal = fence.holds == SEAL
    return Gone(told_sealed=True) if is_seal else Writing(fence.holds, fence.slot, fence.slot)


def reader_steps(scope: Scope, world: World) -> Iterator[tuple[str, World]]:
    reader, manifest = world.reader, world.manifest
    if reader is None:
        now = _reading(manifest, _acknowledged(world))
    elif reader.missed:
        # Gone past what was read: from there. Else it was the tail when the slot was missing.
        is_past = manifest.tail > reader.slot
        now = _reading(manifest, reader.must) if is_past else replace(reader, ended=True)
    else:
        now = _read_on(scope, world, reader)
    yield f"reader has {now.records}", world._replace(reader=now)


def _read_on(scope: Scope, world: World, reader: Reading) -> Reading:
    holds = by_place(world.slots).get((reader.epoch, reader.slot))
    if holds == DATA:
        return replace(reader, slot=reader.slot + 1, records=(*reader.records, reader.epoch))
    if holds is not None and holds != SEAL:
        return replace(reader, epoch=holds)
    believes = scope.broken == ("blind" if holds is None else "gullible")
    return replace(reader, missed=True, ended=believes)


def _reading(manifest: Manifest, must: frozenset[tuple[int, int]]) -> Reading:
    return Reading(manifest.epoch, manifest.tail, manifest.log(), must)


def _acknowledged(world: World) -> frozenset[tuple[int, int]]:
    writers = [agent for agent in world.agents if isinstance(agent, Writing)]
    return frozenset((each.epoch, slot) for each in writers for slot in each.acknowledged)


def _with(world: World, me: int, agent: Agent) -> World:
    return world._replace(agents=(*world.agents[:me], agent, *world.agents[me + 1 :]))
