"""The manifest as it was last read, and how it is read.

Whoever meets a fence or a seal in a slot looks here before believing it: an opener that slept may
have put it into a slot that was empty only because what it held had been collected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.errors import (
    CorruptionError,
    NoSuchLog,
    ObjectNotFound,
    PositionCollected,
    UsageError,
)
from tidelog.store.port import Store
from tidelog.wal.format.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    problems_of_manifest,
)
from tidelog.wal.read.read_again import read_again, read_decoded

TOLD_MAX: Final = 5  # Of its problems; scrub tells them all.


@dataclass(frozen=True, slots=True)
class Head:
    """A manifest as it was read, and its version."""

    manifest: Manifest
    e_tag: str


async def has_manifest(store: Store) -> bool:
    """Say whether there is a manifest, be it whole or not.

    Raises:
        LocationError: the store failed.
    """
    try:
        await store.get(MANIFEST, limit=1)
    except ObjectNotFound:
        return False
    return True


async def load_head(store: Store) -> Head:
    """Read the manifest, which must be whole as far as it alone shows.

    Raises:
        NoSuchLog: there is none. CorruptionError: it cannot be read, or contradicts itself.
        LocationError: the store failed.
    """
    return _checked(await read_head(store))


async def load_living(store: Store) -> Head:
    """Read the manifest of a log that is to be used, and so must still be one.

    Raises:
        NoSuchLog: there is none, or it was destroyed, maybe since it was opened. CorruptionError,
        LocationError: see `load_head`.
    """
    head = await load_head(store)
    refuse_destroyed(head.manifest, store)
    return head


def refuse_destroyed(manifest: Manifest, store: Store) -> Manifest:
    """Return a manifest back unless it is what was left of a log.

    A handle that was opened before would else take it for an empty log whose records were
    collected.

    Raises:
        NoSuchLog: it is.
    """
    if manifest.is_destroyed:
        raise NoSuchLog(f"the log at {store.url} was destroyed, with all its records")
    return manifest


async def read_head(store: Store) -> Head:
    """Read the manifest as it stands, for whoever tells all that is wrong, or believes none of it.

    Raises:
        NoSuchLog, LocationError: see `load_head`. CorruptionError: it cannot be read.
    """
    try:
        return await read_decoded(
            store, MANIFEST, lambda read: Head(decode_manifest(read.data), read.e_tag)
        )
    except ObjectNotFound:
        raise no_such_log(store) from None


async def renew_head(store: Store, head: Head) -> Head:
    """Read the manifest again; one that is still the same is not sent.

    Raises:
        NoSuchLog, CorruptionError, LocationError: see `load_head`.
    """

    async def once() -> Head:
        found = await store.refresh(MANIFEST, head.e_tag)
        return head if found is None else Head(decode_manifest(found.data), found.e_tag)

    try:
        newer = await read_again(once)
    except ObjectNotFound:
        raise no_such_log(store) from None
    return head if newer is head else _checked(newer)


def _checked(head: Head) -> Head:
    # A number that was changed would make records vanish, or be given out under new positions.
    if problems := problems_of_manifest(head.manifest):
        raise CorruptionError(
            f"the log's manifest contradicts itself ({'; '.join(problems[:TOLD_MAX])}): restore it",
            path=MANIFEST,
        )
    return head


async def load_past(
    store: Store, manifest: Manifest, error: ObjectNotFound | CorruptionError
) -> Manifest:
    """Return the manifest from which to go on for whoever missed an object that ``manifest`` names.

    Only what lies before a log's beginning is ever deleted: unless that has moved, the log is
    damaged, however much was appended to it meanwhile.

    Raises:
        CorruptionError: so it is; ``error`` itself, if it says so already. NoSuchLog: the log was
        destroyed.
    """
    newer = (await load_living(store)).manifest
    if newer.oldest > manifest.oldest:
        return newer
    if isinstance(error, CorruptionError):
        raise error
    raise missing(error) from error


def missing(error: ObjectNotFound) -> CorruptionError:
    """Return the error of a log of which an object is not there."""
    return CorruptionError(f"the log names an object that is not there: restore it ({error})")


def collected(start: int, oldest: int) -> PositionCollected:
    """Return the error of a read that comes too late."""
    return PositionCollected(
        f"records from {start} on were collected: the oldest is {oldest}", oldest=oldest
    )


def refuse_slots(manifest: Manifest) -> Manifest:
    """Return a manifest back if it is that of a log in wal3's form.

    Raises:
        NoSuchLog: the log was destroyed. UsageError: it is that of a log of slot commits.
    """
    if manifest.is_destroyed:
        raise NoSuchLog("the log was destroyed, with all its records")
    if manifest.chain is not None:
        raise UsageError("this is a log of slot commits, not one in wal3's form: open it as such")
    return manifest


def no_such_log(store: Store) -> NoSuchLog:
    """Return the error of a store without a log."""
    return NoSuchLog(
        f"there is no log at {store.url}: nothing lies there as {MANIFEST}; correct the place, or "
        "if its manifest was lost, 'tidelog log rebuild' makes it again"
    )
