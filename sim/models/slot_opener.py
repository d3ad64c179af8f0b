"""The steps of the openers and the sealer of `sim.models.slot_commit`, for any placing of fences.

An opener sends fences into an epoch, and any of them may land at any moment, or never. This covers
every placing: dense or sparse, near or far, in one burst or in many. The opener reads the manifest,
and then walks by it, in slot order, to the first fence. It may send fences from the first empty
slot, and then looks again.

A fence on the walk counts if it was known before the manifest was read: nothing at or past that
manifest's tail was erased by then. A fence met later may be a stray in a collected place, so the
opener reads the manifest once more.

An opener that restarts names the same next epoch for the same epoch. A put left by its earlier
attempt acts on another epoch like the put of another opener.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import compress, product

from sim.models.slot_bursts import BurstOpener, begin, go_on, hear, lose
from sim.models.slot_world import (
    DATA,
    SEAL,
    Agent,
    FencingAgent,
    FinishedAgent,
    IdleAgent,
    ListingAgent,
    Manifest,
    RecheckingAgent,
    Scope,
    Slot,
    Slots,
    WalkingAgent,
    World,
    WritingAgent,
    answers,
    by_place,
    has_passed,
    is_dead,
    number_of,
    owner_of,
    sees,
    shows,
)

Step = tuple[str, World]


def opener_steps(scope: Scope, world: World, me: int, agent: Agent) -> Iterator[Step]:
    match agent:
        case IdleAgent(held):
            yield _open(scope, world, me, held)
        case ListingAgent():
            yield from _list(scope, world, me, agent)
        case BurstOpener():
            yield from _hear(scope, world, me, agent)
        case FencingAgent():
            yield _look(scope, world, me, agent)
        case WalkingAgent():
            yield from _walk_on(scope, world, me, agent)
        case RecheckingAgent():
            yield _look_again(scope, world, me, agent)


def _open(scope: Scope, world: World, me: int, held: WritingAgent | None) -> Step:
    manifest = world.manifest
    held = _looked_up(held, manifest)
    told = _told(me, manifest, held)
    if told is not None:
        return f"{me} reads what it came to", with_agent(world, me, told)
    if not _may_end(scope, me, manifest.epoch, held):
        now = WalkingAgent(manifest.epoch, manifest.tail, held=held)
        return f"{me} reads the manifest, of another", with_agent(world, me, now)
    walking = WalkingAgent(manifest.epoch, manifest.tail, held=held)
    if scope.signs and manifest.is_closed:
        # No writer is active there: one fence suffices, or the walk finds the next start.
        return f"{me} reads of a clean close", _burst(scope, world, me, _one(walking))
    return f"{me} reads the manifest", _fence(scope, world, me, walking)


def _told(me: int, manifest: Manifest, held: WritingAgent | None) -> Agent | None:
    """Return an agent's state after a look, if other agents have rolled up its outcome."""
    epoch, base = manifest.epochs[-1]
    if epoch == SEAL:
        return FinishedAgent(True, held)
    is_new = epoch != (0 if held is None else held.epoch)
    return (
        WritingAgent(epoch, base, base, before=held) if owner_of(epoch) == me and is_new else None
    )


def _fence(scope: Scope, world: World, me: int, walking: WalkingAgent) -> World:
    """Send fences into the epoch, from the slot that the walk has reached."""
    epoch, slot, known, held = walking.epoch, walking.slot, walking.known, walking.held
    if number_of(epoch) == scope.epochs:
        return with_agent(world, me, FinishedAgent(held=held))
    if scope.signs:
        return with_agent(world, me, ListingAgent(epoch, slot, known, held))
    is_blind = scope.broken == "noverify"
    now = walking if is_blind else FencingAgent(epoch, known, held)
    places = range(slot, slot + scope.records + 1)
    return _send(scope, with_agent(world, me, now), me, epoch, places)


def _one(walking: WalkingAgent) -> BurstOpener:
    one = begin(
        walking.epoch, walking.slot, alpha=1, signs=0, known=walking.known, held=walking.held
    )
    return replace(one, stride=0)


def _list(scope: Scope, world: World, me: int, listing: ListingAgent) -> Iterator[Step]:
    """Look at all slots at once; a dead slot may show anything."""
    slot, is_free = listing.slot, False
    while not is_free:
        found = shows(scope, world, listing.epoch, slot)
        if None in found:
            burst = begin(
                listing.epoch,
                slot,
                alpha=scope.alpha,
                signs=scope.signs,
                known=listing.known,
                held=listing.held,
            )
            yield f"{me} lists up to slot {slot}", _burst(scope, world, me, burst)
        is_free = found == {None}
        slot += 1


def _burst(scope: Scope, world: World, me: int, burst: BurstOpener) -> World:
    return _send(scope, with_agent(world, me, burst), me, burst.epoch, burst.waiting)


def _send(scope: Scope, world: World, me: int, epoch: int, slots: Iterable[int]) -> World:
    mine, last = scope.opens(me, epoch), scope.last_slot(epoch)
    puts = world.puts.union(Slot(epoch, slot, mine) for slot in slots if slot <= last)
    return world._replace(puts=puts)


def _hear(scope: Scope, world: World, me: int, burst: BurstOpener) -> Iterator[Step]:
    """Receive all answers in one step: an answer that was possible earlier stays possible.

    A live place that holds an object keeps it; a dead place may show anything it ever held.
    """
    slots = sorted(burst.waiting)
    mine = scope.opens(me, burst.epoch)
    told = (answers(scope, world, Slot(burst.epoch, slot, mine)) for slot in slots)
    for ours in product(*told):
        heard = hear(burst, dict(zip(slots, ours, strict=True)))
        yield f"{me} hears that it has {set(heard.ours)}", _answered(scope, world, me, heard)
        # An answer may be lost: the put is sent again, and meets its own fence.
        for late in compress(slots, ours if burst.losses else ()):
            unheard = lose(heard, late)
            yield f"{me} hears not of slot {late}", _answered(scope, world, me, unheard)


def _answered(scope: Scope, world: World, me: int, burst: BurstOpener) -> World:
    if burst.waiting:
        return with_agent(world, me, burst)
    following = burst
    if burst.stride:
        following = go_on(burst, alpha=scope.alpha, signs=scope.signs)
    if following.waiting:
        return _burst(scope, world, me, following)
    # A walk never reaches slots past the end of the epoch.
    mine = scope.opens(me, burst.epoch)
    ours = world.slots.intersection(Slot(burst.epoch, slot, mine) for slot in burst.ours)
    return with_agent(world, me, FencingAgent(burst.epoch, burst.known | ours, burst.held))


def _look(scope: Scope, world: World, me: int, fencing: FencingAgent) -> Step:
    manifest = world.manifest
    held = _looked_up(fencing.held, manifest)
    label = f"{me} looks at the manifest"
    told = _told(me, manifest, held)
    if told is not None:
        return label, with_agent(world, me, told)
    known = _known(scope, world, me, fencing.known)
    if scope.broken == "eager":
        mine = scope.opens(me, manifest.epoch)
        for fence in sorted(known):
            if fence.epoch == manifest.epoch and fence.holds == mine:
                now = _follow(scope, me, WalkingAgent(fence.epoch, fence.slot, known, held), fence)
                return label, with_agent(world, me, now)
    now = WalkingAgent(manifest.epoch, manifest.tail, known, held)
    return label, with_agent(world, me, now)


def _known(scope: Scope, world: World, me: int, known: Slots) -> Slots:
    """Return the fences known before a look: those met, and those created by the agent's puts."""
    own = set[Slot]()  # With signs, the answers are known instead.
    if not scope.signs:
        own = {each for each in world.slots if each.holds == scope.opens(me, each.epoch)}
    if scope.broken == "vague":
        store = by_place(world.slots)
        mine = (each for each in world.puts if each.holds == scope.opens(me, each.epoch))
        own |= {each for each in mine if each[:2] in store}
    manifest, all_known = world.manifest, own.union(known)
    return frozenset(each for each in all_known if not is_dead(manifest, each.epoch, each.slot))


def _walk_on(scope: Scope, world: World, me: int, walking: WalkingAgent) -> Iterator[Step]:
    epoch, slot = walking.epoch, walking.slot
    for holds in sees(scope, world, epoch, slot):
        label = f"{me} finds {holds} in slot {slot} of epoch {epoch}"
        if holds is None:
            yield label, _at_gap(scope, world, me, walking)
        elif holds == DATA:
            yield label, with_agent(world, me, replace(walking, slot=slot + 1))
        else:
            now = _at_fence(scope, me, walking, Slot(epoch, slot, holds))
            yield label, with_agent(world, me, now)


def _at_gap(scope: Scope, world: World, me: int, walking: WalkingAgent) -> World:
    if scope.broken == "trustful" and world.manifest.is_closed:
        return with_agent(world, me, IdleAgent(walking.held))
    if _may_end(scope, me, walking.epoch, walking.held):
        return _fence(scope, world, me, walking)
    held = walking.held
    is_told = held is not None and held.over is not None
    return with_agent(world, me, FinishedAgent(held=held) if is_told else IdleAgent(held))


def _at_fence(scope: Scope, me: int, walking: WalkingAgent, fence: Slot) -> Agent:
    is_own = fence.holds == scope.opens(me, fence.epoch)
    if is_own:
        counts = scope.broken in ("early", "noverify")
    elif fence.holds == SEAL:
        counts = scope.broken == "gullible"
    else:
        counts = scope.broken == "crosses"
    if counts or fence in walking.known:
        return _follow(scope, me, walking, fence)
    return RecheckingAgent(fence, walking.known, walking.held)


def _follow(scope: Scope, me: int, walking: WalkingAgent, fence: Slot) -> Agent:
    """Continue in the epoch that a fence opens, as its writer if the fence is the agent's own."""
    held = walking.held
    if held is not None and held.epoch == fence.epoch:
        held = _ended(held, fence.slot)
    if fence.holds == SEAL:
        return FinishedAgent(True, held)
    if fence.holds == scope.opens(me, fence.epoch):
        return WritingAgent(fence.holds, fence.slot, fence.slot, before=held)
    return WalkingAgent(fence.holds, fence.slot, walking.known, held)


def _look_again(scope: Scope, world: World, me: int, doubting: RecheckingAgent) -> Step:
    fence, manifest = doubting.fence, world.manifest
    is_passed = has_passed(
        manifest, fence, named=scope.named, unknown_passed=scope.broken != "ignorant"
    )
    held = _looked_up(doubting.held, manifest)
    label = f"{me} looks again, {is_passed=}"
    if is_passed:
        return label, with_agent(world, me, IdleAgent(held))
    known = _known(scope, world, me, doubting.known | {fence})
    walking = WalkingAgent(fence.epoch, fence.slot, known, held)
    return label, with_agent(world, me, _follow(scope, me, walking, fence))


def _may_end(scope: Scope, me: int, epoch: int, held: WritingAgent | None) -> bool:
    """Return True if an agent may put fences into an epoch; a deposed writer may not."""
    return held is None or owner_of(epoch) == me or scope.broken == "deposes"


def _looked_up(held: WritingAgent | None, manifest: Manifest) -> WritingAgent | None:
    """Return the writing in an earlier epoch, with its end if the history records it."""
    end = None if held is None else manifest.end_of(held.epoch)
    return held if held is None or end is None else _ended(held, end[1])


def _ended(held: WritingAgent, slot: int) -> WritingAgent:
    return replace(held, done=frozenset(range(held.base, slot)), over=slot)


def with_agent(world: World, me: int, agent: Agent) -> World:
    return world._replace(agents=(*world.agents[:me], agent, *world.agents[me + 1 :]))
