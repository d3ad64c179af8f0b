"""A probe of the guarantees that tidelog needs from a store.

It runs once, when a location is created, because some stores accept a condition and ignore it.
"""

from __future__ import annotations

from contextlib import suppress

from tidelog.core.clock import Clock, wall_us
from tidelog.errors import (
    ContentionError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreRefused,
    TidelogError,
)
from tidelog.store.conditional import create, replace
from tidelog.store.port import Store

PREFIX = "probe/"
OLD_US = 3_600_000_000  # A probe takes seconds.
_ADVICE = (
    "tidelog would lose data here; use a store with conditional writes "
    "(AWS S3, R2, MinIO, SeaweedFS, Google Cloud Storage, Azure, a local disk)"
)


async def probe_store(store: Store, *, clock: Clock) -> None:
    """Refuse a store that breaks a guarantee of the store port; leave no object behind.

    Raises:
        StoreRefused: a guarantee is broken; the message states which one, and the remedy.
        LocationError: the store failed, so its guarantees are unknown.
    """
    key = PREFIX + clock.unique()
    try:
        await _probe(store, key, clock=clock)
    finally:
        with suppress(TidelogError):
            await store.delete([key])


async def delete_old_probes(store: Store, *, clock: Clock) -> int:
    """Delete the objects that killed probes left an hour ago or earlier; return their number.

    Raises:
        LocationError: the store failed.
    """
    before_us = wall_us(clock) - OLD_US
    old = [entry.key async for entry in store.list(PREFIX) if entry.modified_us < before_us]
    if old:
        await store.delete(old)
    return len(old)


async def _probe(store: Store, key: str, *, clock: Clock) -> None:
    # Send these puts again like those of a location: one failure does not prove a broken guarantee.
    first = await create(store, key, b"first " + key.encode(), clock=clock)
    await _must_not_create(store, key, clock=clock)
    latest_body = b"second " + key.encode()
    try:
        latest = await replace(store, key, latest_body, e_tag=first, clock=clock)
    except ContentionError as error:
        raise _broken(
            store, "it refuses to replace an object with the right e_tag (If-Match)"
        ) from error
    # Before the stale put: its refusal is checked by a read, which must not be stale itself.
    await _must_read_latest(store, key, latest, latest_body)
    await _must_not_replace(store, key, stale=first, clock=clock)
    listed = [entry.key async for entry in store.list(key)]
    if listed != [key]:
        raise _broken(store, "a listing does not show an object that was just written")
    await _must_delete(store, key)


async def _must_not_create(store: Store, key: str, *, clock: Clock) -> None:
    try:
        await create(store, key, b"again " + key.encode(), clock=clock)
    except ObjectExists:
        return
    raise _broken(store, "it lets two writers create the same object (it ignores If-None-Match)")


async def _must_not_replace(store: Store, key: str, *, stale: str, clock: Clock) -> None:
    try:
        await replace(store, key, b"stale " + key.encode(), e_tag=stale, clock=clock)
    except (ObjectChanged, OutcomeUnknown):
        return  # An answer was lost, and the object is the one before: no other process writes it.
    raise _broken(
        store, "it lets a writer with a stale e_tag replace an object (it ignores If-Match)"
    )


async def _must_read_latest(store: Store, key: str, e_tag: str, body: bytes) -> None:
    stored = await store.get(key)
    if stored.data != body:
        raise _broken(store, "a read does not return the bytes just written")
    if stored.e_tag != e_tag:
        raise _broken(
            store, "a read and a write return different e_tags for the same version of an object"
        )
    if (await store.get(key, start=1, limit=3)).data != body[1:3]:
        raise _broken(store, "a read of a byte range returns other bytes")
    if await store.refresh(key, e_tag) is not None:
        raise _broken(store, "it reports an unchanged object as changed (refresh)")


async def _must_delete(store: Store, key: str) -> None:
    await store.delete([key])
    try:
        await store.get(key)
    except ObjectNotFound:
        return
    raise _broken(store, "a read still returns a deleted object")


def _broken(store: Store, promise: str) -> StoreRefused:
    return StoreRefused(f"this store is not safe: {promise}; {_ADVICE}", store=store.url)
