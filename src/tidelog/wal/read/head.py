"""The tree of a log as it is read: the manifest at its head, and the snapshots below it.

The tree is the same in both protocols, and holds no records; `record_reader` reads those. Each
object is checked before use, because it determines the next reads. An object that seems damaged is
read again, because an answer may have been cut short, which not every store reports.

A process that meets a fence or a seal in a slot reads the head before it believes the object. It
may be stray: a suspended opener may have put it into a slot whose data had been collected.
Source: wal3, "Read Path"; docs/internals/wal3.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

from tidelog.core.clock import Clock, run_all
from tidelog.core.lookahead import AT_ONCE_MAX, cancelled
from tidelog.errors import (
    CorruptionError,
    NoSuchLog,
    ObjectNotFound,
    PositionCollected,
    UsageError,
)
from tidelog.store.port import Object, Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    overlaps,
    problems_of_manifest,
)
from tidelog.wal.format.snapshot import Pointer, Snapshot, decode_snapshot, problems_of_snapshot

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


async def load_living(store: Store, known: Head | None = None) -> Head:
    """Read the manifest of a log that is not destroyed.

    ``known`` is a head that was checked before. If the manifest still has its version, the result
    is that head, which is neither decoded nor checked again.

    Raises:
        NoSuchLog: the log does not exist, or was dropped, maybe after it was opened.
        CorruptionError: see `load_head`.
        LocationError: see `load_head`.
    """
    head = await read_head(store, known)
    if head is not known:
        refuse_destroyed(_checked(head).manifest, store)
    return head


def refuse_destroyed(manifest: Manifest, store: Store) -> Manifest:
    """Return the manifest unless its log was dropped.

    Without this check, an older handle would see an empty log whose records were collected.

    Raises:
        NoSuchLog: the log was dropped.
    """
    if manifest.is_destroyed:
        raise NoSuchLog(
            f"the log at {store.url} was dropped, with all its records: open another log"
        )
    return manifest


async def read_head(store: Store, known: Head | None = None) -> Head:
    """Read the manifest without checks, for callers that report or ignore its faults.

    The result is ``known`` if the manifest has that version.

    Raises:
        NoSuchLog: see `load_head`.
        LocationError: see `load_head`.
        CorruptionError: the manifest cannot be decoded.
    """

    def decode(read: Object) -> Head:
        if known is not None and read.e_tag == known.e_tag:
            return known
        return Head(decode_manifest(read.data), read.e_tag)

    try:
        return await read_decoded(store, MANIFEST, decode)
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
        raise NoSuchLog("the log was dropped, with all its records: open another log")
    if manifest.chain is not None:
        raise UsageError(
            "this log uses the slot protocol, and wal3 does not write it: open the log by its "
            "location and name"
        )
    return manifest


def no_such_log(store: Store) -> NoSuchLog:
    """Return the error of a store without a log."""
    return NoSuchLog(
        f"no log at {store.url}: {MANIFEST} does not exist; correct the location, or if the log "
        "lost its manifest, run 'tidelog log rebuild'"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReader:
    """A reader of the tree of the log at the root of ``store``, with ``reads`` requests at once."""

    store: Store
    clock: Clock
    reads: int = AT_ONCE_MAX

    async def manifest(self, *, checked: bool = True) -> Manifest:
        """Read the manifest. With ``checked=False``, return it even if it contradicts itself.

        Raises:
            NoSuchLog: the log does not exist or was dropped.
            CorruptionError: the manifest cannot be read, or contradicts itself.
            LocationError: the store failed.
        """
        head = await (load_head if checked else read_head)(self.store)
        return refuse_destroyed(head.manifest, self.store)

    async def snapshot(self, pointer: Pointer) -> Snapshot:
        """Read a snapshot, and check it against its pointer.

        Raises:
            ObjectNotFound: the snapshot does not exist.
            CorruptionError: the snapshot differs from its pointer.
        """
        path = pointer.path
        found = await read_decoded(
            self.store, path, lambda read: decode_snapshot(read.data, where=path)
        )
        if problems := problems_of_snapshot(found, pointer):
            raise CorruptionError(
                f"a snapshot differs from its pointer ({'; '.join(problems)}): restore it",
                path=pointer.path,
            )
        return found

    async def leaves(
        self, children: Sequence[Pointer | Fragment], start: int = 0, limit: int | None = None
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the fragments below ``children`` that overlap the positions ``[start, limit)``.

        A snapshot is read when its turn comes. On each level, the next snapshot is read while the
        fragments below the current one are yielded. So memory, and the requests before the first
        fragment, do not grow with the size of the log.

        Raises:
            ObjectNotFound: a snapshot was collected concurrently.
            CorruptionError: the tree is broken.
        """
        found = [child for child in children if overlaps(child, start, limit)]
        pointers = [child for child in found if isinstance(child, Pointer)]
        following: asyncio.Task[Snapshot] | None = None
        try:
            for pointer, after in pairwise([*pointers, None]):
                assert pointer is not None, "only what comes after the last is none"
                snapshot = await (following or self.snapshot(pointer))
                following = None
                async with aclosing(self.leaves(snapshot.children, start, limit)) as below:
                    async for leaf in below:
                        yield leaf
                        if following is None and after is not None:
                            following = asyncio.create_task(self.snapshot(after))
        finally:
            await cancelled([*filter(None, [following])])
        for child in found:
            # The fragments are newer than all snapshots of the same parent.
            if isinstance(child, Fragment):
                yield child

    async def fragments_of(
        self, manifest: Manifest, *, start: int = 0, limit: int | None = None
    ) -> list[Fragment]:
        """Return a manifest's fragments that overlap the positions ``[start, limit)``.

        Only overlapping snapshots are read, those of one level concurrently.

        Raises:
            ObjectNotFound: see `leaves`.
            CorruptionError: see `leaves`.
        """
        children: Sequence[Pointer | Fragment] = manifest.children
        while True:
            children = [child for child in children if overlaps(child, start, limit)]
            pointers = [child for child in children if isinstance(child, Pointer)]
            if not pointers:
                return [child for child in children if isinstance(child, Fragment)]
            work = [partial(self.snapshot, pointer) for pointer in pointers]
            read = dict(zip(pointers, await run_all(work, at_once=self.reads), strict=True))
            # Each round goes down a level, because a snapshot names only less deep ones.
            children = list(_expanded(children, read))


def _expanded(
    children: Sequence[Pointer | Fragment], read: dict[Pointer, Snapshot]
) -> Iterator[Pointer | Fragment]:
    for child in children:
        if isinstance(child, Pointer):
            yield from read[child].children
        else:
            yield child


T = TypeVar("T")

READS_MAX: Final = 3


async def read_again(read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``read``, which fetches and decodes; repeat it if it finds damage.

    Raises:
        CorruptionError: each read found damage.
        The other errors of ``read``.
    """
    for _ in range(READS_MAX - 1):
        with suppress(CorruptionError):
            return await read()
    return await read()


async def read_decoded(store: Store, path: str, decode: Callable[[Object], T]) -> T:
    """Return the decoded object at a path.

    Raises:
        CorruptionError: each of several reads found damage.
        ObjectNotFound: the object does not exist.
        LocationError: the store failed.
    """

    async def once() -> T:
        return decode(await store.get(path))

    return await read_again(once)
