"""The steps of the writers and the reader of `sim.models.slot_commit`.

Each step leads to a world. `slot_opener` has the steps of openers and the sealer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sim.models.slot_opener import Step, opener_steps, with_agent
from sim.models.slot_world import (
    DATA,
    SEAL,
    Agent,
    IdleAgent,
    Manifest,
    ReadProgress,
    Scope,
    Slot,
    World,
    WritingAgent,
    sees,
)


def agent_steps(scope: Scope, world: World, me: int, agent: Agent) -> Iterator[Step]:
    if isinstance(agent, WritingAgent):
        yield from _append(scope, world, me, agent)
        yield from _hear(scope, world, me, agent)
        yield from _close(scope, world, me, agent)
        is_in_doubt = agent.over is None and agent.issued > agent.acknowledged.stop
        if scope.resolving and is_in_doubt and agent.before is None:
            yield f"{me} opens again", with_agent(world, me, IdleAgent(agent))
    else:
        yield from opener_steps(scope, world, me, agent)


def _append(scope: Scope, world: World, me: int, writer: WritingAgent) -> Iterator[Step]:
    slot = writer.issued
    in_flight = slot - writer.acknowledged.stop
    is_left = slot < writer.base + scope.records and in_flight < scope.alpha
    if writer.over is None and is_left and not writer.closed:
        puts = world.puts | {Slot(writer.epoch, slot, DATA)}
        now = replace(writer, issued=slot + 1)
        yield f"{me} puts slot {slot}", with_agent(world, me, now)._replace(puts=puts)


def _hear(scope: Scope, world: World, me: int, writer: WritingAgent) -> Iterator[Step]:
    """Receive an answer. Data is the writer's own; a fence may land at a collected place.

    The look at the manifest is part of the same step. If the fence is a stray, the manifest passed
    it before it landed; if not, it never will, so a later look gives the same result.
    """
    for slot in range(writer.base, writer.issued if writer.over is None else writer.over):
        if slot in writer.done:
            continue
        for holds in sees(scope, world, writer.epoch, slot):
            if holds is None:
                continue
            if holds == DATA or _is_in_log(scope, world.manifest, writer.epoch, slot):
                now = replace(writer, done=writer.done | {slot})
            else:
                below = range(writer.base, slot)
                done = below if scope.broken == "before" else writer.done.intersection(below)
                now = replace(writer, done=frozenset(done), over=slot)
            yield f"{me} hears of slot {slot}, {holds=}", with_agent(world, me, now)


def _close(scope: Scope, world: World, me: int, writer: WritingAgent) -> Iterator[Step]:
    """Claim in the manifest that the epoch holds nothing at or past the tail.

    The claim is true if the writer's puts are all answered and rolled up, and it stops. A lying
    writer claims it whenever its epoch is the manifest's last one, and continues.
    """
    manifest = world.manifest
    if manifest.epoch != writer.epoch or manifest.is_closed or writer.over is not None:
        return
    is_true = writer.issued == writer.acknowledged.stop == manifest.tail
    if scope.lying or (scope.closing and is_true):
        now = writer if scope.lying else replace(writer, closed=True)
        after = with_agent(world, me, now)
        yield (
            f"{me} claims a clean close",
            after._replace(manifest=manifest._replace(is_closed=True)),
        )


def _is_in_log(scope: Scope, manifest: Manifest, epoch: int, slot: int) -> bool:
    """Return True if a slot is in the log's whole history; the manifest names only a part."""
    if scope.broken == "hasty":
        return False
    is_named = epoch in {each for each, _ in manifest.epochs[-scope.named :]}
    return manifest.keeps(epoch, slot) and (is_named or scope.broken != "forgetful")


def reader_steps(scope: Scope, world: World) -> Iterator[Step]:
    reader, manifest = world.reader, world.manifest
    if reader is None:
        began = _reading(manifest, _acknowledged(world))
        is_rest = scope.broken == "restful" and manifest.is_closed
        options = [replace(began, ended=True) if is_rest else began]
    elif reader.missed:
        # If the manifest has moved past the reader, read from there. Otherwise the slot was the
        # tail.
        is_past = manifest.tail > reader.slot
        options = [_reading(manifest, reader.must) if is_past else replace(reader, ended=True)]
    else:
        options = [
            _read_on(scope, reader, holds)
            for holds in sees(scope, world, reader.epoch, reader.slot)
        ]
    for now in options:
        yield f"reader has {now.records}", world._replace(reader=now)


def _read_on(scope: Scope, reader: ReadProgress, holds: int | None) -> ReadProgress:
    if holds == DATA:
        return replace(reader, slot=reader.slot + 1, records=(*reader.records, reader.epoch))
    if holds is not None and holds != SEAL:
        return replace(reader, epoch=holds)
    believes = scope.broken == ("blind" if holds is None else "gullible")
    return replace(reader, missed=True, ended=believes)


def _reading(manifest: Manifest, must: frozenset[tuple[int, int]]) -> ReadProgress:
    return ReadProgress(manifest.epoch, manifest.tail, manifest.log(), must)


def _acknowledged(world: World) -> frozenset[tuple[int, int]]:
    written = [each for agent in world.agents for each in writings(agent)]
    return frozenset((each.epoch, slot) for each in written for slot in each.acknowledged)


def writings(agent: Agent) -> Iterator[WritingAgent]:
    """Yield an agent's present writing, then its writing in the epochs it held earlier."""
    writing = agent if isinstance(agent, WritingAgent) else agent.held
    while writing is not None:
        yield writing
        writing = writing.before
