"""A store wrapper that caches immutable objects, in memory and in a local directory.

All other requests go to the store: refreshes, listings, and keys that can change. A missing object
is never cached, so a caller that asks after its creation finds it. A caller whose key is already
being requested waits for that request. Its bytes are valid for both callers, but not its error that
the object is missing.

A whole object is cached when it was read as a whole, or put. A range of an object that is not
cached goes to the store. It is cached only if it turns out to be the whole object, because the
object could be a thousand times as large. A range of an object that is cached only on disk reads
the whole copy, to verify its checksum.

Invariants: a read returns the bytes that the key names at the time of the call, or named before
another handle deleted it. A put fills the cache only after it is answered as done, and nothing
fills it while the key is being deleted or replaced through this handle. A failure of the directory
fails neither a read nor a put.
Source: persist, "Blob"; wal3, "Data Structures" (fragments are written once).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tidelog.core.clock import Clock
from tidelog.core.lookahead import SharedCalls
from tidelog.core.metrics import observe_cache_read
from tidelog.errors import TidelogError, require
from tidelog.store.listing import known_folders
from tidelog.store.local.files import location_error
from tidelog.store.port import Entry, Object, Store
from tidelog.store.wrappers.cached_disk import Directory
from tidelog.store.wrappers.metered import Usage, usage_of
from tidelog.store.wrappers.read_only import is_read_only

T = TypeVar("T")
_Range = tuple[str, int, int | None]

ENTRY_BYTES = 256  # The approximate overhead of an entry, so that empty objects are limited too.


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """The limits of a cache: bytes in memory, and in the directory if there is one."""

    memory_bytes: int = 64 << 20
    directory_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        require(self.memory_bytes >= 0, "a bound must not be negative", bytes=self.memory_bytes)
        require(
            self.directory_bytes >= 0, "a bound must not be negative", bytes=self.directory_bytes
        )


DEFAULT_BOUNDS = CacheSize()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReads:
    """Counts of reads of immutable objects, by the source of their answer.

    Units:
        joined_count: reads that waited for another caller's request.
        damaged_count: copies on disk with a wrong checksum.
        failures_count: failures of the file system.
    """

    memory_count: int = 0
    disk_count: int = 0
    joined_count: int = 0
    store_count: int = 0
    damaged_count: int = 0
    failures_count: int = 0


class CachedStore:
    """A store that caches immutable objects.

    ``is_immutable(key)`` is the caller's promise that the key always names the same bytes if it
    names any: the object may be created, deleted, and created again, but only with these bytes. The
    e_tag and time of such an object may be those of an earlier, equal one; after a put, the time is
    the time of the answer by this clock.
    Deletions by other handles are not noticed. Nor are deletions through this handle that reach the
    store after they were cancelled. So an object deleted this way may still be read here.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        is_immutable: Callable[[str], bool],
        bounds: CacheSize = DEFAULT_BOUNDS,
        directory: Path | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._is_immutable = is_immutable
        self._memory = MemoryShelf(bounds.memory_bytes)
        self._disk: Directory | None = None
        if directory is not None:
            self._disk = Directory(directory, store=store.url, bytes_max=bounds.directory_bytes)
        self._flights = SharedCalls[_Range, Object]()
        self._visits = Visits()
        self._reads = CacheReads()

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_read_only(self) -> bool:
        return is_read_only(self._store)

    def usage(self) -> Usage:
        """Return the usage of the wrapped store so far."""
        return usage_of(self._store)

    async def folders(self, prefix: str) -> Sequence[str] | None:
        """Return the names of the folders directly below a prefix, if the store knows them."""
        return await known_folders(self._store, prefix)

    def reads(self) -> CacheReads:
        """Return the counts of reads so far; later reads do not change the result."""
        damaged_count = self._disk.damaged_count if self._disk else 0
        return replace(self._reads, damaged_count=damaged_count)

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        """Read an object, or a range of it, from the nearest place that has it.

        Raises:
            ObjectNotFound: the object does not exist.
            LocationError: the store failed.
            CorruptionError: the store reported it; a damaged copy is only a miss.
        """
        if not self._is_immutable(key):
            return await self._store.get(key, start=start, limit=limit)
        asked = self._flights.next_number
        while not self._visits.changing(key):
            kept = self._memory.find(key)
            if kept is not None:
                self._count("memory")
                return _cut(kept, start, limit)
            whole: _Range = (key, 0, None)
            name = whole if whole in self._flights else (key, start, limit)
            if name in self._flights:
                self._count("joined")
            flight = self._flights.join(name, partial(self._fetch, *name))
            try:
                stored = await self._flights.wait(name, flight)
            except TidelogError:
                if flight.number >= asked:
                    raise
                continue  # The request was sent before this call: see `SharedCalls`.
            return stored if name == (key, start, limit) else _cut(stored, start, limit)
        return await self._fetch(key, start, limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._store.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Store an object and return its e_tag; cache an immutable one once it is stored.

        Raises:
            ObjectExists: the condition does not hold. NOT_APPLIED.
            ObjectChanged: the condition does not hold. NOT_APPLIED.
            LocationError: the store failed; or, NOT_APPLIED, an old copy cannot be deleted.
        """
        put = partial(self._store.put, key, data, if_absent=if_absent, if_match=if_match)
        if not self._is_immutable(key):
            return await put()
        if if_absent:
            # A cached copy cannot differ from the created object, so none must be deleted first.
            with self._visits.begin(key) as visit:
                e_tag = await put()
                await self._keep(key, data, e_tag, visit)
            return e_tag
        async with self._change([key]) as change:
            e_tag = await put()
        if change.alone:
            with self._visits.begin(key) as visit:
                await self._keep(key, data, e_tag, visit)
        return e_tag

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, after their cached copies.

        Raises:
            LocationError: the store failed; or, NOT_APPLIED, a copy cannot be deleted.
        """
        async with self._change([key for key in keys if self._is_immutable(key)]):
            await self._store.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async for entry in self._store.list(prefix, after=after):
            yield entry

    async def forget(self, keys: Sequence[str]) -> None:
        """Drop the copies of objects, for a caller that found wrong bytes and will read again.

        Raises:
            LocationError: a copy cannot be deleted. NOT_APPLIED.
        """
        async with self._change(keys):
            pass

    async def _fetch(self, key: str, start: int, limit: int | None) -> Object:
        with self._visits.begin(key) as visit:
            stored = await self._from_disk(key)
            if stored is None:
                self._count("store")
                stored = await self._store.get(key, start=start, limit=limit)
                if not _is_whole(stored, start, limit):
                    return stored
                await self._to_disk(key, stored, visit)
            else:
                self._count("disk")
            if visit.may_keep:
                self._memory.keep(key, stored)
            return _cut(stored, start, limit)

    async def _keep(self, key: str, data: bytes, e_tag: str, visit: Visit) -> None:
        stored = Object(bytes(data), e_tag, self._clock.now_us())
        if visit.may_keep:
            self._memory.keep(key, stored)
        await self._to_disk(key, stored, visit)

    @asynccontextmanager
    async def _change(self, keys: Sequence[str]) -> AsyncIterator[Changer]:
        """Drop the copies of keys, and cache and share nothing of them until the change is done.

        While the store changes the keys, a new caller must not get bytes that were read before,
        because another caller may have seen the change already.
        """
        with self._visits.change(keys) as change:
            changed = set(keys)
            self._flights.leave(name for name in self._flights.names() if name[0] in changed)
            for key in keys:
                self._memory.drop(key)
            await self._drop_from_disk(keys)
            yield change

    async def _from_disk(self, key: str) -> Object | None:
        if self._disk is None:
            return None
        find = partial(self._disk.find, key, now_ns=self._clock.now_us() * 1_000)
        try:
            return await self._clock.offload(find)
        except OSError:
            self._failed()
            return None

    async def _to_disk(self, key: str, stored: Object, visit: Visit) -> None:
        if self._disk is None or not visit.may_keep:
            return
        keep = partial(
            self._disk.keep,
            key,
            stored,
            unique=self._clock.unique(),
            now_ns=self._clock.now_us() * 1_000,
            may_keep=lambda: visit.may_keep,
        )
        try:
            await self._clock.offload(keep)
        except OSError:
            self._failed()

    async def _drop_from_disk(self, keys: Sequence[str]) -> None:
        if self._disk is None or not keys:
            return
        try:
            await self._clock.offload(partial(self._disk.drop, keys))
        except OSError as error:
            # Otherwise the copy could be read after the deletion.
            raise location_error(error, key=keys[0], store=self.url) from error

    def _count(self, place: str) -> None:
        name = f"{place}_count"
        self._reads = replace(self._reads, **{name: getattr(self._reads, name) + 1})
        observe_cache_read(place)

    def _failed(self) -> None:
        count = self._reads.failures_count + 1
        self._reads = replace(self._reads, failures_count=count)


def _is_whole(stored: Object, start: int, limit: int | None) -> bool:
    """Return True if a read returned the whole object, as when its range was cut short."""
    return start == 0 and (limit is None or len(stored.data) < limit)


def _cut(whole: Object, start: int, limit: int | None) -> Object:
    if start == 0 and limit is None:
        return whole
    return Object(whole.data[start:limit], whole.e_tag, whole.modified_us)


def cost_bytes(found: Object) -> int:
    """Return the cost of keeping an object."""
    return len(found.data) + ENTRY_BYTES


class MemoryShelf:
    """Objects by key, in memory, up to a limit in bytes; a larger object is not kept.

    Invariants: the sum of the costs is at most the limit. The least recently used objects are
    removed.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._objects: OrderedDict[str, Object] = OrderedDict()
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def find(self, key: str) -> Object | None:
        """Return an object, and mark it as the most recently used."""
        stored = self._objects.get(key)
        if stored is not None:
            self._objects.move_to_end(key)
        return stored

    def keep(self, key: str, found: Object) -> None:
        """Keep an object in place of an earlier one with its key."""
        self.drop(key)
        if cost_bytes(found) > self._bytes_max:
            return
        self._objects[key] = found
        self._used_bytes += cost_bytes(found)
        while self._used_bytes > self._bytes_max:
            _, oldest = self._objects.popitem(last=False)
            self._used_bytes -= cost_bytes(oldest)

    def drop(self, key: str) -> None:
        dropped = self._objects.pop(key, None)
        if dropped is not None:
            self._used_bytes -= cost_bytes(dropped)


class Visit:
    """A caller that has a key's bytes, and may cache them unless the key changes."""

    def __init__(self, *, may_keep: bool) -> None:
        self.may_keep = may_keep


class Changer:
    """A caller that changes keys; ``alone`` is False if another caller changes one of them too."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone


class Visits:
    """The current visits and changes, by key."""

    def __init__(self) -> None:
        self._visits: dict[str, set[Visit]] = {}
        self._changes: dict[str, set[Changer]] = {}

    def changing(self, key: str) -> bool:
        return key in self._changes

    @contextmanager
    def begin(self, key: str) -> Iterator[Visit]:
        """Begin to read or put a key; the bytes may be cached while ``may_keep`` is True."""
        visit = Visit(may_keep=not self.changing(key))
        self._visits.setdefault(key, set()).add(visit)
        try:
            yield visit
        finally:
            # A thread continues when its caller is cancelled, and may be about to cache bytes.
            visit.may_keep = False
            _take_out(self._visits, key, visit)

    @contextmanager
    def change(self, keys: Sequence[str]) -> Iterator[Changer]:
        """Change keys; concurrent visits of these keys cache nothing."""
        others = [change for key in keys for change in self._changes.get(key, ())]
        change = Changer(alone=not others)
        for other in others:
            other.alone = False
        for key in set(keys):
            self._changes.setdefault(key, set()).add(change)
            for visit in self._visits.get(key, ()):
                visit.may_keep = False
        try:
            yield change
        finally:
            for key in set(keys):
                _take_out(self._changes, key, change)


def _take_out(sets: dict[str, set[T]], key: str, member: T) -> None:
    sets[key].discard(member)
    if not sets[key]:
        del sets[key]
