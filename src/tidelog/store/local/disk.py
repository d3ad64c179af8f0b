"""What `tidelog.store.local.store` does on the disk: read, put, delete. Everything here blocks.

Invariants: an e_tag never comes twice for a key: a file is dated later than the one it replaces,
and by a part that is drawn by lot, since nothing is left of one that was deleted before (see
`Put.date_ns`); reading, and deleting what is missing, creates nothing. A put makes neither the root
nor a folder ``kind/name`` that this store has seen: an unmount or a move took it away, and an
object in a new one would hide from all readers.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from tidelog.errors import (
    LocationError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    StoreRefused,
)
from tidelog.store.keys import PRIVATE, check_key
from tidelog.store.local import files
from tidelog.store.local.identity import Root
from tidelog.store.local.walk import directories
from tidelog.store.port import Entry, Object

_LEFT_OVER_NS = 24 * 3_600 * 1_000_000_000
_TRIES_MAX = 4
LOT_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """One put: what it stores, on which condition, and what it was given by the clock."""

    key: str
    data: bytes
    if_absent: bool
    if_match: str | None
    now_ns: int
    unique: str

    @property
    def date_ns(self) -> int:
        """Return what the new file is dated: now, and up to a millisecond that is drawn by lot.

        A clock may stand still, or be set back, while a key is deleted and created again; the
        witness of the deleted object would fit the new one, were both dated alike. So it does once
        in a million such times; on a file system that cuts times to microseconds, in a thousand.
        """
        return self.now_ns + int(self.unique, 16) % LOT_NS


class Disk:
    """The files under ``root``; an object is the file that has its key as path.

    With ``create``, the first put makes the root, unless an object was found in it before.
    """

    def __init__(self, root: str, *, create: bool = False) -> None:
        self.root = root
        self._creates = create
        self.url = "file://" + root.replace("%", "%25")
        self._temporary = os.path.join(root, PRIVATE, "tmp")
        self._locks = os.path.join(root, PRIVATE, "locks")
        self._durable: set[str] = set()  # Directories known to survive a power loss.
        self._unsynced: dict[str, int] = {}  # Those whose last sync failed, by which failure.
        self._failures = itertools.count()
        self._root = Root(root)
        self._writes = False
        self._folders = {root}  # No put makes these again.

    def read(
        self, key: str, *, start: int = 0, limit: int | None = None, unless: str | None = None
    ) -> Object | None:
        """Read a file, or a range of it; None if it is still the version ``unless``."""
        path = self._path(key)
        try:
            if os.path.dirname(path) in self._unsynced:
                # Whoever reads back what they put has to find what is durable.
                self._sync(path)
            for _ in range(_TRIES_MAX):
                found = _read_once(path, start, limit, unless)
                if found != "changed":
                    self._see(key)
                    return found
        except (FileNotFoundError, NotADirectoryError) as error:
            self._refuse_gone(reads=True)
            raise ObjectNotFound("there is no such object", key=key, store=self.url) from error
        except OSError as error:
            raise files.location_error(error, key=key, store=self.url) from error
        # Only files that tidelog did not write, those of a source, change in place.
        raise LocationError(
            "the file is being changed in place while it is read: read it when it is at rest",
            key=key,
            store=self.url,
        )

    def put(self, wanted: Put) -> str | None:
        """Store an object, and return its e_tag; None if the lock that this needs is held."""
        path = self._path(wanted.key)
        self._writes = True
        self._refuse_gone()
        try:
            e_tag = self._put(wanted, path)
            # It may have gone while the put was under way.
            self._refuse_gone(outcome=Outcome.UNKNOWN)
            return e_tag
        except (ObjectExists, ObjectChanged):
            # Whoever put what is there may have failed to sync its name, or died before: from now
            # on others build upon it.
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
            raise ObjectExists("the object exists", key=wanted.key) from error
        except OSError as error:
            self._durable.clear()  # Another process may have taken a directory away.
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
        """Refuse a request if the root, or the folder of ``key``, is gone from its path.

        A store that only ``reads``, as that of a source, takes the directory that it finds.

        Raises:
            StoreRefused: so it is.
        """
        if reads and not self._writes:
            return
        gone = self.root if self._root.is_replaced else ""
        for path in {self.root, self._folder_of(key)} & self._folders if key else ():
            gone = gone or ("" if os.path.isdir(path) else path)
        if gone:
            raise StoreRefused(
                "the directory of the location is gone, as after an unmount or a move: bring it "
                "back, then retry or open the location again",
                outcome=outcome,
                path=gone,
            )

    def _folder_of(self, key: str) -> str:
        """Return the folder ``kind/name`` that an object is in; else the root."""
        parts = key.split("/", 2)
        return os.path.join(self.root, *parts[:2]) if len(parts) > 2 else self.root

    def delete(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete what is there, durably; give back the keys whose lock is held."""
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

    def page(self, entries: Iterator[Entry], count: int) -> Sequence[Entry]:
        """Return the next ``count`` entries of a walk."""
        try:
            page = list(itertools.islice(entries, count))
        except OSError as error:
            raise files.location_error(error, path=error.filename, store=self.url) from error
        self._refuse_gone(reads=True)
        return page

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the directories right below a prefix that ends in ``/``."""
        try:
            names = directories(self.root, prefix)
        except OSError as error:
            raise files.location_error(error, path=error.filename, store=self.url) from error
        self._refuse_gone(reads=True)
        return names

    def _check_condition(self, wanted: Put, path: str) -> os.stat_result | None:
        """Return what stands at ``path``; refuse the put if its condition does not hold.

        That it holds at one moment is not enough to go on, but that it does not hold at one moment
        is enough to refuse: an e_tag that was replaced never comes back.
        """
        try:
            present = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            present = None
        if present is not None and not files.is_object(present):
            raise self._conflict(wanted.key)
        if wanted.if_absent and present is not None:
            raise ObjectExists("the object exists", key=wanted.key)
        if wanted.if_match is not None and (
            present is None or files.tag_of(present) != wanted.if_match
        ):
            raise ObjectChanged("the object is another by now", key=wanted.key)
        return present

    def _land(self, wanted: Put, path: str) -> str | None:
        """Bring an object into its place; None if the lock that this needs is held.

        It is written and synced before that lock is taken: whoever is stopped meanwhile keeps
        nobody waiting.
        """
        lock = self._lock_path(wanted.key)
        if not wanted.if_absent:
            with files.try_lock(lock) as is_free:
                if not is_free:
                    return None  # Before anything is written in vain.
        temporary = os.path.join(self._temporary, wanted.unique)
        try:
            written = files.write_temporary(temporary, wanted.data, now_ns=wanted.date_ns)
            if wanted.if_absent:
                # No lock: a process that was stopped at the wrong moment must not keep others
                # from creating a slot, for that is how it is fenced.
                os.link(temporary, path)
                return files.tag_of(written)
            with files.try_lock(lock) as held:
                return self._replace(wanted, path, temporary) if held else None
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def _replace(self, wanted: Put, path: str, temporary: str) -> str:
        """Replace what stands at ``path``, or create it, while its lock is held.

        The new file is dated later than the one that it replaces, for two files written within one
        tick of a coarse clock, or after a clock was set back, would else share an e_tag. That is
        why a plain put takes the lock too, and why it creates by linking, as others may.
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
        """Make the name of a file durable, and remember if that failed."""
        directory = os.path.dirname(path)
        failure = self._unsynced.get(directory)
        try:
            files.sync_directory(directory)
        except OSError:
            self._unsynced[directory] = next(self._failures)
            raise
        # One that failed meanwhile may have been for a name that this one does not cover.
        if failure is not None and self._unsynced.get(directory) == failure:
            self._unsynced.pop(directory, None)

    def _unlink(self, key: str, path: str) -> bool:
        self._make_folders()
        # Under the lock, else a replacement could land on an object deleted before it.
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
            "something that is no file has the name of this object: use another key",
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
