"""A store on a file system: every object is a file under a root directory.

A put writes a temporary file, syncs it, links or renames it into place, and syncs the directory.
After kill -9 or a power loss, either the old or the new object exists as a whole. The store is safe
between threads and processes of one machine. ``<root>/.tidelog/`` holds temporary files and locks,
and is never listed.

A listing walks the directories in key order. Keys are ordered as plain strings, so a directory
sorts as its name followed by ``/``: ``a-b`` comes before ``a/b``, though ``a`` comes before
``a-b``.

Invariants: an e_tag never recurs for a key. Reading, and deleting a missing object, creates
nothing, not even the root. Deletion leaves directories behind, because removing them would race
with puts.
Source: persist, "Blob"; wal3, "Interacting with Object Storage".
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import InvariantError, LocationError, UsageError
from tidelog.store.keys import PRIVATE, check_key, may_begin_key
from tidelog.store.local.disk import Disk, Put
from tidelog.store.local.files import is_object, tag_of
from tidelog.store.port import Entry, Object

T = TypeVar("T")

QUICK_US: Final = 500
SMALL_BYTES: Final = 256 * 1024
TRIP_US: Final = 5_000
TOGETHER_MAX: Final = 32
RECENT: Final = 16  # Some trips take longer, because their thread waits for the interpreter.
_LOCK_WAIT_US = 30_000_000
_PAGE_ENTRIES_FIRST = 16  # Many callers need only the first entry.
_PAGE_ENTRIES_MAX = 1_024


class LocalStore:
    """Objects as files under ``root``; with ``create``, the first put creates the root."""

    def __init__(self, root: Path, *, clock: Clock, create: bool = False) -> None:
        self._disk = Disk(os.path.abspath(root), create=create)
        self._clock = clock
        self._trips = SharedTrips(clock)

    @property
    def url(self) -> str:
        return self._disk.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        """Read a file; a directory is not an object.

        Raises:
            ObjectNotFound: the object does not exist.
            LocationError: the file system failed, or the file changed in place at every try.
            CorruptionError: large parts of the file were never written.
            UsageError: the key is invalid.
        """
        read = partial(self._disk.read, key, start=start, limit=limit)
        stored = await self._trips.run(read, partial(self._disk.size_bytes, key, start, limit))
        if stored is None:
            raise InvariantError("a read without a condition returned no object", key=key)
        return stored

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._clock.offload(partial(self._disk.read, key, unless=e_tag))

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Store an object; it is durable when this returns.

        Raises:
            ObjectExists: the condition does not hold; exact, because nothing is sent twice.
            NOT_APPLIED.
            ObjectChanged: the condition does not hold; exact, because nothing is sent twice.
            NOT_APPLIED.
            LocationError: the file system failed, or another process held the lock of the key for
            30 s. NOT_APPLIED; UNKNOWN if only the last sync failed.
            StoreRefused: the root, or a folder ``kind/name`` that this store has seen, has
            disappeared.
            UsageError: the key is invalid, or there are two conditions.
        """
        if if_absent and if_match is not None:
            raise UsageError("a put takes one condition at most: remove one", key=key)
        patience = _Patience(check_key(key), self.url, self._clock)
        while True:
            wanted = Put(
                key=key,
                data=data,
                if_absent=if_absent,
                if_match=if_match,
                now_ns=self._clock.now_us() * 1_000,
                unique=self._clock.unique(),
            )
            e_tag = await self._clock.offload(partial(self._disk.put, wanted))
            if e_tag is not None:
                return e_tag
            await patience.wait()

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete files; missing files and directories are ignored."""
        rest: Sequence[str] = [check_key(key) for key in keys]
        patience = _Patience(rest[0] if rest else "", self.url, self._clock)
        while rest:
            rest = await self._clock.offload(partial(self._disk.delete, rest))
            if rest:
                await patience.wait()

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        """Yield the files in key order, reading directories page by page.

        Raises:
            LocationError: a directory cannot be read.
        """
        entries = walk(self._disk.root, prefix, after)
        page_entries = _PAGE_ENTRIES_FIRST
        while True:
            page = await self._clock.offload(partial(self._disk.page, entries, page_entries))
            for entry in page:
                yield entry
            if len(page) < page_entries:
                return
            page_entries = min(4 * page_entries, _PAGE_ENTRIES_MAX)

    async def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the directories directly below a prefix, with one read of it.

        Raises:
            LocationError: the prefix cannot be read.
        """
        names = directories(self._disk.root, prefix)
        return await self._clock.offload(partial(self._disk.page, names))


class _Read(NamedTuple):
    work: Callable[[], Any]
    size_bytes: Callable[[], int]
    result: asyncio.Future[Any]


class _Turn(threading.local):
    """The reads that wait for the end of a turn: an event loop runs in one thread at a time."""

    def __init__(self) -> None:
        self.reads: list[_Read] = []


class SharedTrips:
    """Runs reads in threads; small reads that begin in one turn of the event loop share a thread.

    To wake a thread takes longer than to read a small file whose bytes are in memory, and a reader
    reads hundreds of them. A first read waits for no other. Reads of large files, and of slow
    disks, have a thread each.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[int] = deque(maxlen=RECENT)  # Times of reads.
        self._alone = 0  # Reads under way with a thread each.
        self._turn = _Turn()
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, read: Callable[[], T], size_bytes: Callable[[], int]) -> T:
        """Return the result of a read of ``size_bytes()`` bytes, or raise its error."""
        if not self._alone or not self._recent or min(self._recent) > QUICK_US:
            return await self._run_alone(read)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        turn = self._turn
        # The turn of a loop that has ended never begins its trip.
        if not turn.reads or turn.reads[0].result.get_loop() is not loop:
            turn.reads = []
            loop.call_soon(self._begin, turn.reads)
        turn.reads.append(_Read(read, size_bytes, result))
        if len(turn.reads) == TOGETHER_MAX:
            turn.reads = []
        return await result

    async def _run_alone(self, read: Callable[[], T]) -> T:
        begun = self._clock.monotonic_us()
        self._alone += 1
        try:
            return await self._clock.offload(read)
        finally:
            self._alone -= 1
            self._recent.append(self._clock.monotonic_us() - begun)

    def _begin(self, turn: list[_Read]) -> None:
        self._travel(tuple(turn))
        turn.clear()

    def _travel(self, reads: Sequence[_Read]) -> None:
        task = asyncio.create_task(self._trip(reads))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _trip(self, reads: Sequence[_Read]) -> None:
        begun = self._clock.monotonic_us()
        try:
            outcomes = await self._clock.offload(partial(_outcomes, reads, self._clock))
        except Exception as error:  # noqa: BLE001 - each caller gets it
            outcomes = [(None, error)] * len(reads)
        except asyncio.CancelledError:
            for read in reads:
                read.result.cancel()
            raise
        if done := len(reads) - outcomes.count(None):
            self._recent.append((self._clock.monotonic_us() - begun) // done)
        for read, outcome in zip(reads, outcomes, strict=True):
            if read.result.done():
                continue  # Its caller was cancelled.
            if outcome is None:
                self._travel([read])
            elif outcome[1] is None:
                read.result.set_result(outcome[0])
            else:
                read.result.set_exception(outcome[1])


def _outcomes(
    reads: Sequence[_Read], clock: Clock
) -> list[tuple[Any, BaseException | None] | None]:
    """Return the result or the error of each read; None: the read needs a trip of its own."""
    end = clock.monotonic_us() + TRIP_US
    found: list[tuple[Any, BaseException | None] | None] = []
    for read in reads:
        try:
            is_over = clock.monotonic_us() > end or read.size_bytes() > SMALL_BYTES
            found.append(None if is_over and len(reads) > 1 else (read.work(), None))
        except BaseException as error:  # noqa: BLE001 - its caller gets it
            found.append((None, error))
    return found


class _Patience:
    """A bounded wait for the lock of a key.

    The wait is not in a thread, because it must not use up the threads that reads need, and must
    end when its caller is cancelled.
    """

    def __init__(self, key: str, store: str, clock: Clock) -> None:
        self._key = key
        self._store = store
        self._clock = clock
        self._since_us = clock.monotonic_us()
        self._attempt = 0

    async def wait(self) -> None:
        if self._clock.monotonic_us() - self._since_us > _LOCK_WAIT_US:
            raise LocationError(
                "another process has held this object's lock for 30 s: find and end a suspended "
                "process",
                key=self._key,
                store=self._store,
            )
        await self._clock.sleep(
            backoff_us(self._attempt, self._clock, first_us=500, most_us=20_000)
        )
        self._attempt += 1


_Identity = tuple[int, int]


def walk(root: str, prefix: str, after: str | None) -> Iterator[Entry]:
    """Yield the files whose keys begin with ``prefix`` and follow ``after``, in key order.

    Only directories that can hold such keys are read. Files that disappear during the walk are
    skipped.

    Raises:
        OSError: a directory or a file cannot be read; skipping it would give a wrong listing.
    """
    if not may_begin_key(prefix):
        return
    top = prefix[: prefix.rfind("/") + 1]
    identity = _identity(os.path.join(root, top))
    if identity is not None:
        yield from _walk(root, top, prefix, after, (identity,), is_linked=False)


def directories(root: str, prefix: str) -> Iterator[str]:
    """Yield the names of the directories directly below a prefix, which is empty or ends in ``/``.

    Raises:
        OSError: the directory cannot be read.
    """
    if not may_begin_key(prefix):
        return
    for key, _ in sorted(_wanted(root, prefix, prefix, None)):
        if key.endswith("/"):
            yield key[len(prefix) : -1]


def _walk(
    root: str,
    above: str,
    prefix: str,
    after: str | None,
    ancestors: tuple[_Identity, ...],
    *,
    is_linked: bool,
) -> Iterator[Entry]:
    """Walk one directory; ``above`` is the common prefix of its keys, empty or ending in ``/``.

    ``is_linked`` is True if it is behind a symbolic link.
    """
    for key, is_link in sorted(_wanted(root, above, prefix, after)):
        path = os.path.join(root, key)
        if not key.endswith("/"):
            entry = _entry(key, path)
            if entry is not None and (is_linked or is_link):
                entry = replace(entry, target=_target(root, prefix[: prefix.rfind("/") + 1], path))
            if entry is not None:
                yield entry
            continue
        identity = _identity(path)
        # A symbolic link to a parent directory would make the walk infinite.
        if identity is not None and identity not in ancestors:
            yield from _walk(
                root, key, prefix, after, (*ancestors, identity), is_linked=is_linked or is_link
            )


def _target(root: str, top: str, path: str) -> str:
    """Return the key of a path's target if it is below ``top``, else the target's path."""
    real, around = os.path.realpath(path), os.path.realpath(os.path.join(root, top))
    return top + real[len(around) + 1 :] if real.startswith(around + "/") else real


def _wanted(root: str, above: str, prefix: str, after: str | None) -> Iterator[tuple[str, bool]]:
    """Yield the wanted keys of files, and the key prefixes of directories that may hold such keys.

    Each comes with True if it is a symbolic link.
    """
    try:
        entries = os.scandir(os.path.join(root, above))
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if entry.name == PRIVATE:
                continue
            if _is_directory(entry):
                key = f"{above}{entry.name}/"
                if _may_hold(key, prefix, after):
                    yield key, entry.is_symlink()
            elif _shown(above + entry.name, prefix, after):
                yield above + entry.name, entry.is_symlink()


def _shown(key: str, prefix: str, after: str | None) -> bool:
    return key.startswith(prefix) and (after is None or key > after)


def _may_hold(directory: str, prefix: str, after: str | None) -> bool:
    """Return True if a key below ``directory`` can begin with ``prefix`` and follow ``after``."""
    if not (directory.startswith(prefix) or prefix.startswith(directory)):
        return False
    # If ``after`` is greater than the directory and not below it, it is greater than all keys below
    # it.
    return after is None or after < directory or after.startswith(directory)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A loop of symbolic links names nothing.
        return False


def _entry(key: str, path: str) -> Entry | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):  # Gone meanwhile, or a link to nothing.
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # A loop of symbolic links names nothing.
            return None
        raise
    if not is_object(status):
        return None
    return Entry(key, status.st_size, tag_of(status), status.st_mtime_ns // 1_000)


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
