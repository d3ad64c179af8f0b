"""The file operations of `tidelog.store.local.store`: read, put, delete. All functions block.

Invariants: an e_tag never recurs for a key. A file is dated later than the file that it replaces,
and its date has a random part, because nothing remains of a file that was deleted before (see
`Put.date_ns`). Reading, and deleting a missing object, creates nothing. A put does not create the
root, nor a folder ``kind/name``, that this store has seen before. If it is missing, it was
unmounted or moved, and readers would not find an object in a new one.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from tidelog.errors import (
    LocationError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    StoreRefused,
    UsageError,
)
from tidelog.store.keys import PRIVATE, check_key
from tidelog.store.local import files
from tidelog.store.local.files import Root
from tidelog.store.port import Object

T = TypeVar("T")
_LEFT_OVER_NS = 24 * 3_600 * 1_000_000_000
_TRIES_MAX = 4
LOT_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """One put: its data and condition, and the values drawn for it from the clock."""

    key: str
    data: bytes
    if_absent: bool
    if_match: str | None
    now_ns: int
    unique: str

    @property
    def date_ns(self) -> int:
        """Return the date of the new file: now, plus a random part of up to a millisecond.

        A clock may stand still, or be set back, while a key is deleted and created again. With
        equal dates, a witness of the deleted object would fit the new one. With the random part
        this happens once in a million such cases, or once in a thousand on a file system that cuts
        times to microseconds.
        """
        return self.now_ns + int(self.unique, 16) % LOT_NS


class Disk:
    """The files under ``root``. The path of an object's file is its key.

    With ``create``, the first put creates the root, unless an object was found in it before.
    """

    def __init__(self, root: str, *, create: bool = False) -> None:
        self.root = root
        self._creates = create
        self.url = "file://" + root.replace("%", "%25")
        self._temporary = os.path.join(root, PRIVATE, "tmp")
        self._locks = os.path.join(root, PRIVATE, "locks")
        self._durable: set[str] = set()  # Directories known to be durable.
        # Directories whose last sync failed, with the number of the failure.
        self._unsynced: dict[str, int] = {}
        self._failures = itertools.count()
        self._root = Root(root)
        self._writes = False
        self._folders = {root}  # A put does not create these again.

    def read(
        self, key: str, *, start: int = 0, limit: int | None = None, unless: str | None = None
    ) -> Object | None:
        """Read a file, or a range of it; return None if it still has the version ``unless``."""
        path = self._path(key)
        try:
            if os.path.dirname(path) in self._unsynced:
                # A writer that reads back its put must find a durable object.
                self._sync(path)
            for _ in range(_TRIES_MAX):
                result = _read_once(path, start, limit, unless)
                if result != "changed":
                    self._see(key)
                    return result
        except (FileNotFoundError, NotADirectoryError) as error:
            self._refuse_gone(reads=True)
            raise ObjectNotFound("no object has that key", key=key, store=self.url) from error
        except OSError as error:
            raise files.location_error(error, key=key, store=self.url) from error
        # Only files of a source, which tidelog did not write, change in place.
        raise LocationError(
            "another process kept changing the file in place during the read: read it after its "
            "writer has finished",
            key=key,
            store=self.url,
        )

    def size_bytes(self, key: str, start: int, limit: int | None) -> int:
        """Return how many bytes a read would return; 0 if it would fail."""
        try:
            size = os.stat(self._path(key)).st_size
        except (OSError, UsageError):
            return 0
        return (size if limit is None else min(size, limit)) - start

    def put(self, wanted: Put) -> str | None:
        """Store an object, and return its e_tag; return None if another process holds its lock."""
        path = self._path(wanted.key)
        self._writes = True
        self._refuse_gone()
        try:
            e_tag = self._put(wanted, path)
            # The root may have disappeared during the put.
            self._refuse_gone(outcome=Outcome.UNKNOWN)
            return e_tag
        except (ObjectExists, ObjectChanged):
            # The writer of the existing object may have failed to sync its name. Sync it now,
            # because the caller builds on the object.
            if os.path.isdir(os.path.dirname(path)):
                self._sync_or_fail(wanted.key, path)
            raise

    def _put(self, wanted: Put, path: str) -> str | None:
        try:
            self._check_condition(wanted, path)
            if self._creates:
                files.make_directory(self.root, root=self.root, known=self._durable)
                self._creates = False
            self._root.remember()
            self._make_private(wanted.now_ns)
            directory = os.path.dirname(path)
            files.make_directory(directory, root=self.root, known=self._durable, kept=self._folders)
            e_tag = self._land(wanted, path)
        except FileExistsError as error:
            if os.path.isdir(path):
                raise self._conflict(wanted.key) from error
            raise ObjectExists("the object already exists", key=wanted.key) from error
        except OSError as error:
            self._durable.clear()  # Another process may have removed a directory.
            if isinstance(error, FileNotFoundError):
                self._refuse_gone(wanted.key)
            raise files.location_error(error, key=wanted.key, store=self.url) from error
        if e_tag is not None:
            self._sync_or_fail(wanted.key, path)
            self._see(wanted.key)
        return e_tag

    def _see(self, key: str) -> None:
        """Remember the root and the folder of an object that was found or put."""
        self._creates = False
        self._root.remember()
        self._folders.add(self._folder_of(key))

    def _refuse_gone(
        self, key: str = "", *, reads: bool = False, outcome: Outcome = Outcome.NOT_APPLIED
    ) -> None:
        """Refuse a request if the root, or the folder of ``key``, has disappeared from its path.

        A store that only ``reads``, such as a source, uses any directory at the path.

        Raises:
            StoreRefused: the directory has disappeared.
        """
        if reads and not self._writes:
            return
        gone = self.root if self._root.is_replaced else ""
        for path in {self.root, self._folder_of(key)} & self._folders if key else ():
            gone = gone or ("" if os.path.isdir(path) else path)
        if gone:
            raise StoreRefused(
                "the location's directory no longer exists, perhaps after an unmount or a move: "
                "restore it, then retry or open the location again",
                outcome=outcome,
                path=gone,
            )

    def _folder_of(self, key: str) -> str:
        """Return the folder ``kind/name`` of an object, or the root for a shorter key."""
        parts = key.split("/", 2)
        return os.path.join(self.root, *parts[:2]) if len(parts) > 2 else self.root

    def delete(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete existing objects durably; return the keys whose lock is held elsewhere."""
        held_elsewhere = []
        directories = set()
        for key in keys:
            path = self._path(key)
            try:
                if not os.path.isfile(path):
                    continue
                if self._unlink(key, path):
                    directories.add(os.path.dirname(path))
                else:
                    held_elsewhere.append(key)
            except OSError as error:
                raise files.location_error(
                    error, outcome=Outcome.UNKNOWN, key=key, store=self.url
                ) from error
        for directory in directories:
            try:
                files.sync_directory(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise files.location_error(
                    error, outcome=Outcome.UNKNOWN, path=directory, store=self.url
                ) from error
        self._refuse_gone(outcome=Outcome.UNKNOWN)
        return held_elsewhere

    def page(self, entries: Iterator[T], count: int | None = None) -> Sequence[T]:
        """Return the next ``count`` entries of a walk, or all."""
        try:
            page = list(itertools.islice(entries, count))
        except OSError as error:
            raise files.location_error(error, path=error.filename, store=self.url) from error
        self._refuse_gone(reads=True)
        return page

    def _check_condition(self, wanted: Put, path: str) -> os.stat_result | None:
        """Return the status of the file at ``path``; refuse the put if its condition does not hold.

        A condition that holds at one moment is not enough to proceed. A condition that fails at one
        moment is enough to refuse, because a replaced e_tag never recurs.
        """
        try:
            present = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            present = None
        if present is not None and not files.is_object(present):
            raise self._conflict(wanted.key)
        if wanted.if_absent and present is not None:
            raise ObjectExists("the object already exists", key=wanted.key)
        if wanted.if_match is not None and (
            present is None or files.tag_of(present) != wanted.if_match
        ):
            raise ObjectChanged("another process replaced or deleted the object", key=wanted.key)
        return present

    def _land(self, wanted: Put, path: str) -> str | None:
        """Put an object into its place; return None if another process holds its lock.

        The file is written and synced before the lock is taken, so a process that is suspended
        during the write blocks no other.
        """
        lock = self._lock_path(wanted.key)
        if not wanted.if_absent:
            with files.try_lock(lock) as is_free:
                if not is_free:
                    return None  # Checked before writing, to avoid useless work.
        temporary = os.path.join(self._temporary, wanted.unique)
        try:
            written = files.write_temporary(temporary, wanted.data, now_ns=wanted.date_ns)
            if wanted.if_absent:
                # No lock: a suspended process must not keep others from creating a slot, because a
                # fence is created this way.
                os.link(temporary, path)
                return files.tag_of(written)
            with files.try_lock(lock) as held:
                return self._replace(wanted, path, temporary) if held else None
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def _replace(self, wanted: Put, path: str, temporary: str) -> str:
        """Replace or create the file at ``path`` while its lock is held.

        The new file is dated later than the old one. Otherwise two files within one tick of a
        coarse clock, or after the clock was set back, could share an e_tag. For this reason a plain
        put takes the lock too. It creates by linking, because creators do not take the lock.
        """
        for _ in range(_TRIES_MAX):
            present = self._check_condition(wanted, path)
            if present is not None:
                dated = files.date_after(temporary, present.st_mtime_ns)
                os.replace(temporary, path)
                return files.tag_of(dated)
            with suppress(FileExistsError):
                os.link(temporary, path)
                return files.tag_of(os.stat(temporary))
        raise self._conflict(wanted.key)

    def _sync_or_fail(self, key: str, path: str) -> None:
        try:
            self._sync(path)
        except OSError as error:
            raise files.location_error(
                error, outcome=Outcome.UNKNOWN, key=key, store=self.url
            ) from error

    def _sync(self, path: str) -> None:
        """Make the name of a file durable, and remember a failure."""
        directory = os.path.dirname(path)
        failure = self._unsynced.get(directory)
        try:
            files.sync_directory(directory)
        except OSError:
            self._unsynced[directory] = next(self._failures)
            raise
        # A sync that failed concurrently may concern a name that this sync does not cover.
        if failure is not None and self._unsynced.get(directory) == failure:
            self._unsynced.pop(directory, None)

    def _unlink(self, key: str, path: str) -> bool:
        self._make_folders()
        # Take the lock; otherwise a replacement could succeed on an object deleted before it.
        with files.try_lock(self._lock_path(key)) as held:
            if held:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            return held

    def _make_private(self, now_ns: int) -> None:
        if self._temporary in self._durable:
            return
        self._make_folders()
        files.sweep(self._temporary, before_ns=now_ns - _LEFT_OVER_NS)
        self._durable.add(self._temporary)

    def _make_folders(self) -> None:
        for path in (os.path.dirname(self._locks), self._locks, self._temporary):
            with suppress(FileExistsError):
                os.mkdir(path)

    def _path(self, key: str) -> str:
        return os.path.join(self.root, check_key(key))

    def _lock_path(self, key: str) -> str:
        name = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return os.path.join(self._locks, name)

    def _conflict(self, key: str) -> StoreRefused:
        return StoreRefused(
            "the path of this object is not a regular file: use another key",
            key=key,
            store=self.url,
        )


def _read_once(
    path: str, start: int, limit: int | None, unless: str | None
) -> Object | Literal["changed"] | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        e_tag = files.tag_of(before)
        if not files.is_object(before):
            raise FileNotFoundError
        if e_tag == unless:
            return None
        data = files.read_range(descriptor, before.st_size, start, limit)
        if files.tag_of(os.fstat(descriptor)) != e_tag:
            return "changed"
        return Object(data, e_tag, before.st_mtime_ns // 1_000)
    finally:
        os.close(descriptor)
