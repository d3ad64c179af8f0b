"""The head of a log: the manifest as it was last read, and its version.

A process that meets a fence or a seal in a slot reads the head before it believes the object. It
may be stray: a suspended opener may have put it into a slot whose data had been collected.
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

TOLD_MAX: Final = 5  # Faults in one error; scrub reports all.


@dataclass(frozen=True, slots=True)
class Head:
    """A manifest as it was read, and its version."""

    manifest: Manifest
    e_tag: str


async def has_manifest(store: Store) -> bool:
    """Return True if a manifest exists, intact or not.

    Raises:
        LocationError: the store failed.
    """
    try:
        await store.get(MANIFEST, limit=1)
    except ObjectNotFound:
        return False
    return True


async def load_head(store: Store) -> Head:
    """Read the manifest, and check that it does not contradict itself.

    Raises:
        NoSuchLog: the log does not exist.
        CorruptionError: the manifest cannot be read, or contradicts itself.
        LocationError: the store failed.
    """
    return _checked(await read_head(store))


async def load_living(store: Store) -> Head:
    """Read the manifest of a log that is not destroyed.

    Raises:
        NoSuchLog: the log does not exist, or was dropped, maybe after it was opened.
        CorruptionError: see `load_head`.
        LocationError: see `load_head`.
    """
    head = await load_head(store)
    refuse_destroyed(head.manifest, store)
    return head


def refuse_destroyed(manifest: Manifest, store: Store) -> Manifest:
    """Return the manifest unless its log was dropped.

    Without this check, an older handle would see an empty log whose records were collected.

    Raises:
        NoSuchLog: the log was dropped.
    """
    if manifest.is_destroyed:
        raise NoSuchLog(f"the log at {store.url} was dropped, with all its records")
    return manifest


async def read_head(store: Store) -> Head:
    """Read the manifest without checks, for callers that report or ignore its faults.

    Raises:
        NoSuchLog: see `load_head`.
        LocationError: see `load_head`.
        CorruptionError: the manifest cannot be decoded.
    """
    try:
        return await read_decoded(
            store, MANIFEST, lambda read: Head(decode_manifest(read.data), read.e_tag)
        )
    except ObjectNotFound:
        raise no_such_log(store) from None


async def renew_head(store: Store, head: Head) -> Head:
    """Read the manifest again; the store sends it only if it has changed.

    Raises:
        NoSuchLog: see `load_head`.
        CorruptionError: see `load_head`.
        LocationError: see `load_head`.
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
    # With a changed number, records would be lost, or appear at other positions.
    if problems := problems_of_manifest(head.manifest):
        raise CorruptionError(
            f"the log's manifest contradicts itself ({'; '.join(problems[:TOLD_MAX])}): restore it",
            path=MANIFEST,
        )
    return head


async def load_past(
    store: Store, manifest: Manifest, error: ObjectNotFound | CorruptionError
) -> Manifest:
    """Return the manifest to continue from after an object that ``manifest`` names was missing.

    Only objects before a log's start are ever deleted. So if the start has not moved, the log is
    damaged, whatever was appended concurrently.

    Raises:
        CorruptionError: the log is damaged; ``error`` itself if it is such an error.
        NoSuchLog: the log was dropped.
    """
    newer = (await load_living(store)).manifest
    if newer.oldest > manifest.oldest:
        return newer
    if isinstance(error, CorruptionError):
        raise error
    raise missing(error) from error


def missing(error: ObjectNotFound) -> CorruptionError:
    """Return the error of a log that lacks an object."""
    return CorruptionError(f"the log names a missing object: restore it ({error})")


def collected(start: int, oldest: int) -> PositionCollected:
    """Return the error of a read of collected records."""
    return PositionCollected(
        f"the records since {start} were collected: the oldest record is {oldest}", oldest=oldest
    )


def refuse_slots(manifest: Manifest) -> Manifest:
    """Return the manifest if its log has wal3's form.

    Raises:
        NoSuchLog: the log was dropped.
        UsageError: the log uses slot commits.
    """
    if manifest.is_destroyed:
        raise NoSuchLog("the log was dropped, with all its records")
    if manifest.chain is not None:
        raise UsageError(
            "this log uses the slot protocol, not wal3's format: open it as a slot log"
        )
    return manifest


def no_such_log(store: Store) -> NoSuchLog:
    """Return the error of a store without a log."""
    return NoSuchLog(
        f"no log at {store.url}: {MANIFEST} does not exist; correct the location, or if the log "
        "lost its manifest, run 'tidelog log rebuild'"
    )
