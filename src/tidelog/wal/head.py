"""The manifest as it was last read, and how it is read.

Whoever meets a fence or a seal in a slot looks here before believing it: an opener that slept may
have put it into a slot that was empty only because what it held had been collected.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import NoSuchLog, ObjectNotFound, UsageError
from tidelog.store.port import Store
from tidelog.wal.manifest import MANIFEST, Manifest, decode_manifest


@dataclass(frozen=True, slots=True)
class Head:
    """A manifest as it was read, and its version."""

    manifest: Manifest
    e_tag: str


async def load_head(store: Store) -> Head:
    """Read the manifest.

    Raises:
        NoSuchLog: there is none. CorruptionError: it cannot be read. LocationError: the store
        failed.
    """
    try:
        found = await store.get(MANIFEST)
    except ObjectNotFound:
        raise no_such_log(store) from None
    return Head(decode_manifest(found.data), found.e_tag)


def refuse_slots(manifest: Manifest) -> Manifest:
    """Give a manifest back if it is that of a log in wal3's form.

    Raises:
        UsageError: it is that of a log of slot commits.
    """
    if manifest.chain is not None:
        raise UsageError("this is a log of slot commits, not one in wal3's form: open it as such")
    return manifest


def no_such_log(store: Store) -> NoSuchLog:
    """Give the error of a store without a log."""
    return NoSuchLog(f"there is no log at {store.url}: nothing lies there as {MANIFEST}")
