"""Destruction of a log, such that a process that was suspended meanwhile cannot misread it.

First a tombstone takes the log's name for good: an empty manifest that replaces the log's own, or
becomes its first one. Only then all else is deleted, except the fences that ended a slot log's
epochs, and a plan which states that the log was dropped. The fences keep a late writer from
taking an empty slot for its own; the plan prevents a rebuild. A new log never gets the name. So
late processes cannot damage one: another destroyer, a collector, a copy or a fork.

Destroying a partly destroyed log again completes it.
Source: wal3, "Destroy"; design page 3, "Open for writing"; docs/decisions/0013.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

from tidelog.core.clock import Clock
from tidelog.errors import (
    ContentionError,
    LogSealed,
    ManifestMoved,
    NoSuchLog,
    ObjectChanged,
    ObjectExists,
    OutcomeUnknown,
    UsageError,
)
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.wal.admin.origin import let_go_of_origin
from tidelog.wal.format.cursor import cursor_name
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.epoch_list import PAST
from tidelog.wal.format.gc_plan import GARBAGE, encode_garbage, nothing_to_erase
from tidelog.wal.format.link import EPOCHS, first_epoch
from tidelog.wal.format.manifest import MANIFEST, Manifest, chain_of
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.pin import pin_name
from tidelog.wal.gc.collector import GRACE_US
from tidelog.wal.gc.orphans import SNAPSHOT, OrphanVerdict, judge_fragment
from tidelog.wal.gc.pin_objects import each_pin, held_pins, replace_pin
from tidelog.wal.gc.pin_reach import paths_pinned
from tidelog.wal.gc.pins import has_fork
from tidelog.wal.read.epoch_history import with_all_epochs
from tidelog.wal.read.head import load_head, no_such_log
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.fencing import Fencer

TRIES_MAX = 50


@dataclass(slots=True)
class DropReport:
    """The number of deleted objects, and the kept ones, which are shared or not a log's."""

    deleted: int = 0
    kept: int = 0
    foreign: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def destroy_log(
    store: Store, *, clock: Clock, writer: str, grace_us: int = GRACE_US
) -> DropReport:
    """Destroy the log at the root of a store.

    Units:
        grace_us: microseconds before the deletion, for running readers.

    Raises:
        NoSuchLog: the log does not exist; or it has slots but no manifest: rebuild it first.
        UsageError: it has forks; or there are foreign objects in the folder of a log in wal3's
        form.
        ContentionError: other processes were first at every try.
        LocationError: the store failed: drop it again.
    """
    try:
        chain = (await load_head(store)).manifest.chain
    except NoSuchLog:
        await _take(store, clock, writer)
    else:
        if chain is None:
            _refuse_foreign([key async for key in _keys(store, "")])
            await _put_tombstone(store, clock, writer)
        elif not chain.is_destroyed:
            await _refuse_forks(store)
            with suppress(LogSealed):
                await Fencer(store=store, clock=clock, writer=writer).seal()
            await _put_tombstone(store, clock, writer)
    await _let_go_of_pins(store, clock, writer)
    await clock.sleep(grace_us)
    if isinstance(store, Within):
        await let_go_of_origin(store, clock=clock, writer=writer)
    return await _delete_all(store, clock)


async def _take(store: Store, clock: Clock, writer: str) -> None:
    """Take the name of an incomplete log with a tombstone.

    The objects are the rest of a log in wal3's form, of a copy or of a fork. If one of these is
    still being made, its maker finds that the name is taken.

    Raises:
        NoSuchLog: there are no objects of a log; or there are slots with appended records, which
        can be rebuilt.
        UsageError: there are foreign objects in the folder.
        ContentionError: a log was created concurrently.
    """
    keys = [key async for key in _keys(store, "")]
    places = [place_of(key) for key in keys if key.startswith(EPOCHS)]
    if any(place is None or place.number for place in places):
        raise no_such_log(store)  # Only a copy puts records into a first epoch.
    if not places:
        if not any(map(_is_of_a_log, keys)):
            raise no_such_log(store)
        _refuse_foreign(keys)
    manifest = _of_nothing(writer, clock, Manifest(writer=""))
    try:
        await ManifestStore(store=store, clock=clock).create(manifest)
    except (ObjectExists, OutcomeUnknown) as error:
        raise ContentionError(
            "another process created a log of that name concurrently: drop it again"
        ) from error


def _of_nothing(writer: str, clock: Clock, before: Manifest) -> Manifest:
    """Return the manifest of a destroyed log that had no epochs."""
    genesis = first_epoch(id=clock.unique()[:16], opener=writer)
    return tombstone(
        changed(before, chain=Chain(epochs=(genesis,), is_closed=True)),
        writer=f"{writer} {clock.unique()}",
    )


def _refuse_foreign(keys: Sequence[str]) -> None:
    if foreign := [key for key in keys if not _is_of_a_log(key) and key != MANIFEST]:
        raise UsageError(
            "the log's folder has objects that are not part of a log: move them away, then "
            "drop the log",
            key=foreign[0],
            count=len(foreign),
        )


async def _refuse_forks(store: Store) -> None:
    held = [found.pin for found in await held_pins(store)]
    if forks := sorted({pin.holder for pin in held if await has_fork(store, pin)}):
        raise UsageError(
            f"the log has forks, which read its records: drop these first: {', '.join(forks)}"
        )


async def _put_tombstone(store: Store, clock: Clock, writer: str) -> None:
    """Replace the manifest by a tombstone.

    A process that creates a pin reads the manifest afterwards, so no new fork can succeed.
    """
    for _ in range(TRIES_MAX):
        head = await load_head(store)
        if head.manifest.chain is None:
            stone = _of_nothing(writer, clock, head.manifest)
        else:
            await roll_up_tail(store, clock=clock, writer=writer)
            head = await load_head(store)
            stone = tombstone(head.manifest, writer=f"{writer} {clock.unique()}")
        with suppress(ManifestMoved, OutcomeUnknown):
            await ManifestStore(store=store, clock=clock).replace(head, Change(stone))
            return
    raise ContentionError(
        f"gave up after {TRIES_MAX} tries to drop the log: other processes kept replacing the "
        "manifest; try again"
    )


async def _let_go_of_pins(store: Store, clock: Clock, writer: str) -> None:
    """Release all pins but those of forks, which read the pinned records.

    A fork whose pin is released before the fork is a log never becomes one. The manifest of the
    fork is read after the version of the pin that is replaced.
    """
    for _ in range(TRIES_MAX):
        held = [found async for found in each_pin(store) if found.pin.is_held]
        idle = [found for found in held if not await has_fork(store, found.pin)]
        if not idle:
            return
        for found in idle:
            pin = found.pin
            released = changed(pin, start=pin.limit, writer=f"{writer} {clock.unique()}")
            with suppress(ObjectChanged, OutcomeUnknown):
                await replace_pin(store, clock, found, released)
    raise ContentionError(
        f"gave up after {TRIES_MAX} tries to drop the log's pins: other processes kept changing "
        "them; drop the log again"
    )


def tombstone(manifest: Manifest, *, writer: str) -> Manifest:
    """Return the manifest of a destroyed log: its sums, its end and its epochs. Pure."""
    return changed(
        manifest,
        collected=manifest.setsum,
        writer=writer,
        snapshots=(),
        fragments=(),
        initial_offset=manifest.next,
        initial_seq_no=manifest.next_seq_no,
        chain=changed(chain_of(manifest), is_destroyed=True),
    )


async def _delete_all(store: Store, clock: Clock) -> DropReport:
    """Delete all objects that existed when the name was taken, except those that must stay.

    Raises:
        ContentionError: the tombstone was replaced by another manifest.
    """
    keys = [key async for key in _keys(store, "")]
    manifest = (await load_head(store)).manifest
    if not manifest.is_destroyed:
        raise ContentionError("another process wrote to the log during its drop: drop it again")
    # The lists of old epochs show which fences must stay, so they stay too.
    known = await with_all_epochs(store, chain_of(manifest))
    manifest = changed(manifest, chain=known.chain)
    # A fork that was made just before the tombstone keeps the objects that it shares.
    pinned = await paths_pinned(store, clock)
    held = {key async for key in _keys(store, "pin/")} if pinned else set[str]()
    found, doomed = DropReport(), list[str]()
    for key in keys:
        if key in (MANIFEST, GARBAGE) or key in pinned or key in held or key in known.paths:
            found.kept += key not in (MANIFEST, GARBAGE)
        elif key.startswith("epoch/"):
            verdict = judge_fragment(manifest, key)
            doomed += [key] if verdict in (OrphanVerdict.DEAD, OrphanVerdict.UNPROVEN) else []
            found.foreign += [key] if verdict is OrphanVerdict.FOREIGN else []
            found.kept += verdict is OrphanVerdict.KEPT
        elif _is_of_a_log(key):
            doomed.append(key)
        else:
            found.foreign.append(key)
    # Write the plan before the first deletion, so that no rebuild restores the rest.
    await store.put(GARBAGE, encode_garbage(nothing_to_erase(manifest, is_destroyed=True)))
    if doomed:
        await store.delete(doomed)
    found.deleted = len(doomed)
    return found


def _is_of_a_log(key: str) -> bool:
    """Return True if a key can belong to a log, apart from its manifest and its slots."""
    return (
        key == GARBAGE
        or cursor_name(key) is not None
        or pin_name(key) is not None
        or SNAPSHOT.fullmatch(key) is not None
        or key.startswith(PAST)
        or judge_fragment(Manifest(writer="", initial_seq_no=2**64), key) is OrphanVerdict.DEAD
    )


async def _keys(store: Store, prefix: str) -> AsyncIterator[str]:
    async for entry in store.list(prefix):
        yield entry.key
