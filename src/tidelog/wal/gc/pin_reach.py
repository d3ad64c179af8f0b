"""What pins keep from being deleted, and the deletion of what they have let go of.

Source: docs/internals/log-collection.md, "Cursors, pins, collection".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from functools import partial

from tidelog.clock import Clock, run_all
from tidelog.errors import (
    CorruptionError,
    ObjectChanged,
    ObjectNotFound,
    OutcomeUnknown,
)
from tidelog.lookahead import AT_ONCE_MAX
from tidelog.store.port import Store
from tidelog.store.within import BESIDE
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.pin import Pin
from tidelog.wal.format.snapshot import Pointer
from tidelog.wal.gc.deletion import AT_ONCE, Pace, delete_all
from tidelog.wal.gc.pin_objects import PinWitness, each_pin, held_pins, read_pin, replace_pin
from tidelog.wal.read.tree_paths import paths_named
from tidelog.wal.read.tree_reader import TreeReader


async def paths_pinned(store: Store, clock: Clock) -> set[str]:
    """Return the paths of all that pins hold, be they sure or not.

    Raises:
        CorruptionError: a pin, or a snapshot that it names, cannot be read.
    """
    held: set[str] = set()

    async def note(found: PinWitness) -> None:
        now, reached = await _reached(store, clock, found)
        if now.is_held:
            held.update(child.path for child in reached if child.limit > now.start)

    # Others than those that are held never will hold anything again.
    await run_all([partial(note, found) for found in await held_pins(store)], at_once=AT_ONCE_MAX)
    return held


async def _reached(
    store: Store, clock: Clock, found: PinWitness
) -> tuple[Pin, list[Pointer | Fragment]]:
    """Return all that a pin reaches, and the pin as it was then.

    What it names may be gone because it was let go of since it was read: then it is read again. One
    that is gone itself holds nothing.

    Raises:
        CorruptionError: it names a snapshot that is not there.
    """
    while True:
        try:
            return found.pin, [child async for child in reached_by(store, clock, found.pin)]
        except CorruptionError:
            newer = await read_pin(store, found.pin.path)
            if newer is None:  # It was let go of, and all that it had held is swept.
                return changed(found.pin, start=found.pin.limit), []
            if newer.e_tag == found.e_tag:
                raise
            found = newer


async def sweep_pins(store: Store, clock: Clock, *, grace_us: int, pace: Pace = AT_ONCE) -> None:
    """Delete what pins have let go of, unless the log or another pin names it.

    A pin is read before the manifest: who collected before it was let go of, and so left its
    objects, had replaced the manifest before that.

    Units: ``grace_us`` microseconds pass before the deletion, for those who read by the pin.
    """
    due = [found async for found in each_pin(store) if found.pin.swept < found.pin.start]
    if not due:
        return
    manifest, named = await paths_named(TreeReader(store=store, clock=clock))
    named |= await paths_pinned(store, clock)
    await clock.sleep(grace_us)
    dead = await _dead_of(store, clock, due, manifest, named)
    # What is named goes before what names it, or a crash in between would leave it unknown.
    for depth in sorted({_depth_of(child) for child in dead}):
        level = sorted((c for c in dead if _depth_of(c) == depth), key=lambda child: child.start)
        await delete_all(store, [child.path for child in level], clock=clock, pace=pace)
    # They never hold anything again, and no other pin has such a path: no delete comes too late.
    if over := [found.pin.path for found in due if not found.pin.is_held]:
        await delete_all(store, over, clock=clock, pace=pace)
    for found in due:
        pin = found.pin
        if not pin.is_held:
            continue
        swept = changed(pin, swept=pin.start, writer=f"{pin.writer[:64]} {clock.unique()}")
        # If it was let go of further, the next collection goes on from there.
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace_pin(store, clock, found, swept)


async def _dead_of(
    store: Store, clock: Clock, due: Sequence[PinWitness], manifest: Manifest, named: set[str]
) -> set[Pointer | Fragment]:
    """Return what pins have let go of, and that nothing holds or names any more."""
    dead = set[Pointer | Fragment]()

    async def note(found: PinWitness) -> None:
        _, reached = await _reached(store, clock, found)
        gone = [child for child in reached if _is_let_go(child, found.pin)]
        dead.update(c for c in gone if _is_dead(c, manifest) and c.path not in named)

    await run_all([partial(note, found) for found in due], at_once=AT_ONCE_MAX)
    return dead


async def reached_by(store: Store, clock: Clock, pin: Pin) -> AsyncIterator[Pointer | Fragment]:
    """Yield all that a pin holds, and what it has let go of and was not swept yet.

    A snapshot may be missing: what it named was deleted before; or the pin never came to be sure.
    """
    reader = TreeReader(store=store, clock=clock)

    async def below(children: list[Pointer | Fragment]) -> AsyncIterator[Pointer | Fragment]:
        for child in children:
            if child.limit <= pin.swept or child.start >= pin.limit:
                continue
            if isinstance(child, Pointer):
                try:
                    snapshot = await reader.snapshot(child)
                except ObjectNotFound as error:
                    if pin.is_sure and pin.is_held and child.limit > pin.start:
                        raise CorruptionError(
                            f"a pin names a snapshot that is not there: restore it ({error})"
                        ) from error
                else:
                    async for each in below(snapshot.children):
                        yield each
            yield child

    async for each in below(pin.children):
        yield each


def _is_let_go(child: Pointer | Fragment, pin: Pin) -> bool:
    """Say whether a pin held something that it holds no more, and that may still be there."""
    end = child.limit <= pin.start if pin.is_held else child.start < pin.limit
    return end and pin.swept < child.limit


def _depth_of(child: Pointer | Fragment) -> int:
    return child.depth if isinstance(child, Pointer) else 0


def _is_dead(child: Pointer | Fragment, manifest: Manifest) -> bool:
    if isinstance(child, Fragment):
        # What a fork shares is another log's.
        is_own = not child.path.startswith(BESIDE)
        return is_own and child.seq_no < (manifest.initial_seq_no or 0)
    return child.start < manifest.oldest
