"""The objects that pins protect from deletion, and the deletion of released ones.

Source: docs/internals/log-collection.md, "Cursors, pins, collection".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from functools import partial

from tidelog.core.clock import Clock, run_all
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import (
    CorruptionError,
    ObjectChanged,
    ObjectNotFound,
    OutcomeUnknown,
)
from tidelog.store.keys import BESIDE
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.pin import Pin
from tidelog.wal.format.snapshot import Pointer
from tidelog.wal.gc.deletion import AT_ONCE, Pace, delete_all
from tidelog.wal.gc.pin_objects import PinWitness, each_pin, held_pins, read_pin, replace_pin
from tidelog.wal.read.head import TreeReader
from tidelog.wal.read.tree_paths import paths_named


async def paths_pinned(store: Store, clock: Clock) -> set[str]:
    """Return the paths of all objects that pins hold, sure or not.

    Raises:
        CorruptionError: a pin, or a snapshot that it names, cannot be read.
    """
    held: set[str] = set()

    async def note(found: PinWitness) -> None:
        now, reached = await _reached(store, clock, found)
        if now.is_held:
            held.update(child.path for child in reached if child.limit > now.start)

    # A pin that holds nothing now never holds anything again.
    await run_all([partial(note, found) for found in await held_pins(store)], at_once=AT_ONCE_MAX)
    return held


async def _reached(
    store: Store, clock: Clock, found: PinWitness
) -> tuple[Pin, list[Pointer | Fragment]]:
    """Return a pin and all objects that it reaches.

    If one of them is missing, the pin may have been released since it was read, so it is read
    again. A deleted pin holds nothing.

    Raises:
        CorruptionError: the pin names a snapshot that does not exist.
    """
    while True:
        try:
            return found.pin, [child async for child in reached_by(store, clock, found.pin)]
        except CorruptionError:
            newer = await read_pin(store, found.pin.path)
            if newer is None:  # The pin was released, and its objects are swept.
                return changed(found.pin, start=found.pin.limit), []
            if newer.e_tag == found.e_tag:
                raise
            found = newer


async def sweep_pins(store: Store, clock: Clock, *, grace_us: int, pace: Pace = AT_ONCE) -> None:
    """Delete the objects that pins released, unless the log or another pin names them.

    The pins are read before the manifest. A collector that ran before a release left the pin's
    objects, and it had replaced the manifest before. So this manifest does not name them.

    Units:
        grace_us: microseconds before the deletion, for readers that use the pin.
    """
    due = [found async for found in each_pin(store) if found.pin.swept < found.pin.start]
    if not due:
        return
    manifest, named = await paths_named(TreeReader(store=store, clock=clock))
    named |= await paths_pinned(store, clock)
    await clock.sleep(grace_us)
    dead = await _dead_of(store, clock, due, manifest, named)
    # Delete children before their parents. After a crash in between, the parents still lead to the
    # rest.
    for depth in sorted({_depth_of(child) for child in dead}):
        level = sorted((c for c in dead if _depth_of(c) == depth), key=lambda child: child.start)
        await delete_all(store, [child.path for child in level], clock=clock, pace=pace)
    # A released pin never holds anything again and its path is unique, so a late delete is
    # harmless.
    if over := [found.pin.path for found in due if not found.pin.is_held]:
        await delete_all(store, over, clock=clock, pace=pace)
    for found in due:
        pin = found.pin
        if not pin.is_held:
            continue
        swept = changed(pin, swept=pin.start, writer=f"{pin.writer[:64]} {clock.unique()}")
        # If more was released concurrently, the next collection continues.
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace_pin(store, clock, found, swept)


async def _dead_of(
    store: Store, clock: Clock, due: Sequence[PinWitness], manifest: Manifest, named: set[str]
) -> set[Pointer | Fragment]:
    """Return the released objects that no pin holds and the log does not name."""
    dead = set[Pointer | Fragment]()

    async def note(found: PinWitness) -> None:
        _, reached = await _reached(store, clock, found)
        gone = [child for child in reached if _is_let_go(child, found.pin)]
        dead.update(c for c in gone if _is_dead(c, manifest) and c.path not in named)

    await run_all([partial(note, found) for found in due], at_once=AT_ONCE_MAX)
    return dead


async def reached_by(store: Store, clock: Clock, pin: Pin) -> AsyncIterator[Pointer | Fragment]:
    """Yield all objects that a pin holds, and the released ones that are not swept yet.

    A snapshot may be missing if it was swept before its parent, or if the pin never became sure.
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
                            f"a pin names a missing snapshot: restore it ({error})"
                        ) from error
                else:
                    async for each in below(snapshot.children):
                        yield each
            yield child

    async for each in below(pin.children):
        yield each


def _is_let_go(child: Pointer | Fragment, pin: Pin) -> bool:
    """Return True if a pin held this child, released it, and may not have swept it yet."""
    end = child.limit <= pin.start if pin.is_held else child.start < pin.limit
    return end and pin.swept < child.limit


def _depth_of(child: Pointer | Fragment) -> int:
    return child.depth if isinstance(child, Pointer) else 0


def _is_dead(child: Pointer | Fragment, manifest: Manifest) -> bool:
    if isinstance(child, Fragment):
        # Shared fragments belong to the origin log.
        is_own = not child.path.startswith(BESIDE)
        return is_own and child.seq_no < (manifest.initial_seq_no or 0)
    return child.start < manifest.oldest
