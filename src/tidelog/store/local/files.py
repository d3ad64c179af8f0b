"""File operations that make a file durable, and the errors of their failures.

All functions block, and are called through ``clock.offload``.

The identity of a file stays the same when the file is renamed or changed. The number of an inode is
not enough, because file systems reuse freed numbers, often for the next file. Together with the
time of creation it is, if kernel and file system report that time.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tidelog.errors import CorruptionError, LocationError, Outcome, StoreRefused

_SENTENCES = {
    errno.ENOSPC: "the disk is full: free some space, then try again",
    errno.EDQUOT: "the disk quota is used up: free some space, then try again",
    errno.EACCES: "the file system denies access: check the owner and the mode",
    errno.EPERM: "the file system denies access: check owner, mode and hard link support",
    errno.EROFS: "the file system is mounted read-only: mount it writable, or use another location",
    errno.ENAMETOOLONG: "the name is too long for this file system: use a shorter one",
    errno.EXDEV: "the directory is on another file system than the root: use it as the root",
    errno.ENOTDIR: "a file is in place of a directory: use another key, or remove the file",
    errno.EISDIR: "a directory has the name of this object: use another key",
    errno.ELOOP: "a symbolic link leads to itself: remove it, or use another key",
    errno.EMFILE: "this process has too many files open: raise its limit (ulimit -n)",
    errno.EIO: "the disk reports an input/output error: check the disk",
}
# Errors that no wait resolves: retrying would only delay the message.
_LASTING: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.EISDIR, errno.ENOTDIR}
)
_COARSE_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
# The latest date of a file, whatever the clock shows. Some file systems cannot store a later time,
# and could not date a newer object after it.
_LATEST_NS: Final = 7_258_118_400 * 10**9  # 2200-01-01
HOLES_MAX_BYTES: Final = 64 * 1024 * 1024


def location_error(
    error: OSError, *, outcome: Outcome = Outcome.NOT_APPLIED, **facts: object
) -> LocationError:
    """Return the error to raise for a failure of the file system."""
    sentence = _SENTENCES.get(error.errno or 0, "the file system failed")
    kind = StoreRefused if error.errno in _LASTING else LocationError
    return kind(sentence, outcome=outcome, reason=error.strerror or str(error), **facts)


def tag_of(status: os.stat_result) -> str:
    """Return the e_tag of a file: its modification time and its size.

    The inode would add nothing, because file systems reuse inode numbers. The time is never the
    kernel's, which may stand still for 10 ms. `write_temporary` sets it to `Put.date_ns`, or
    `date_after` to a later time.
    """
    return tag_at(status.st_mtime_ns, status.st_size)


def tag_at(changed_ns: int, size_bytes: int) -> str:
    """Return the e_tag of a file with this time of change and this size."""
    return f"{changed_ns:x}-{size_bytes:x}"


def write_temporary(path: str, data: bytes, *, now_ns: int) -> os.stat_result:
    """Write a new file durably, dated ``now_ns``; return its status."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        now_ns = min(now_ns, _LATEST_NS)
        os.utime(descriptor, ns=(now_ns, now_ns))
        status = os.fstat(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return status


def date_after(path: str, after_ns: int) -> os.stat_result:
    """Date a file later than ``after_ns`` durably, unless it is later; return its status."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_mtime_ns > after_ns:
            return status
        # Some file systems cut times to microseconds or seconds: increase the step until it shows.
        for step_ns in _COARSE_NS:
            os.utime(descriptor, ns=(after_ns + step_ns, after_ns + step_ns))
            status = os.fstat(descriptor)
            if status.st_mtime_ns > after_ns:
                os.fsync(descriptor)
                return status
    finally:
        os.close(descriptor)
    raise OSError(errno.ENOTSUP, "the file system does not keep modification times")


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(
    path: str, *, root: str, known: set[str], kept: Container[str] = frozenset()
) -> None:
    """Create a directory at or below ``root`` durably; ``known`` collects the durable ones.

    An existing directory may have been created by a process that has not synced it yet. So each
    store syncs every directory on the way down once, not only those that it creates.

    Raises:
        FileNotFoundError: a directory in ``kept`` is missing, and must not be created again.
    """
    if path in known:
        return
    if path in kept and not os.path.isdir(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    parent = os.path.dirname(path)
    below_root = len(path) > len(root)
    if below_root or not os.path.isdir(parent):
        make_directory(parent, root=root, known=known, kept=kept)
    try:
        if path not in kept:
            os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    try:
        sync_directory(parent)
    except PermissionError:
        if below_root:
            raise
    known.add(path)


@contextmanager
def try_lock(path: str) -> Iterator[bool]:
    """Hold the lock file at ``path``, or yield False if another thread or process holds it.

    The file is deleted when the lock is released; otherwise one would remain for every key ever
    put. So a lock counts only if its file still has its name once it is held.
    """
    descriptor = _take_lock(path)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def _take_lock(path: str) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def sweep(directory: str, *, before_ns: int) -> None:
    """Delete temporary files older than ``before_ns``, whose writers were killed.

    Files that cannot be deleted remain, for example another user's or a directory. They do no harm.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime_ns < before_ns:
                    os.unlink(entry.path)


def is_object(status: os.stat_result) -> bool:
    """Return True if a file can be an object: not a directory, pipe or device."""
    return stat.S_ISREG(status.st_mode)


def read_range(descriptor: int, size_bytes: int, start: int, limit: int | None) -> bytes:
    """Read the bytes ``[start, limit)`` of a file; return fewer if it was truncated concurrently.

    Raises:
        CorruptionError: large parts of the file are holes.
    """
    limit = size_bytes if limit is None else min(limit, size_bytes)
    # A sparse file takes no space on disk, but its full size in memory.
    if (
        limit - start >= HOLES_MAX_BYTES
        and _holes_bytes(descriptor, start, limit) >= HOLES_MAX_BYTES
    ):
        raise CorruptionError("a file has holes in place of its bytes: restore it, or move it away")
    pieces = []
    while start < limit:
        piece = os.pread(descriptor, limit - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _holes_bytes(descriptor: int, start: int, limit: int) -> int:
    """Return how many bytes of a range were never written, if the file system knows."""
    total = 0
    while start < limit:
        hole = os.lseek(descriptor, start, os.SEEK_HOLE)
        if hole >= limit:
            break
        try:
            start = os.lseek(descriptor, hole, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            start = limit  # The hole extends to the end.
        total += min(start, limit) - hole
    return total


_AT_FDCWD: Final = -100
_BASIC, _BTIME = 0x7FF, 0x800
_STATX_BYTES: Final = 256
_SIZE: Final = 40  # Offsets of fields in the structure that Linux returns.
_INODE, _BIRTH, _CHANGE = 32, 80, 112


@dataclass(frozen=True, slots=True)
class FileState:
    """A file at one moment: its size, its time of change, and its identity, "" if unknown."""

    size_bytes: int
    changed_ns: int
    identity: str


def state_of(path: str) -> FileState | None:
    """Return the state of a file, following links; None if it cannot be read."""
    statx = _statx()
    if statx is None:
        return _state_by_python(path)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _BASIC | _BTIME, buffer):
        return None
    (mask,) = struct.unpack_from("=I", buffer)
    (size,) = struct.unpack_from("=Q", buffer, _SIZE)
    (inode,) = struct.unpack_from("=Q", buffer, _INODE)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BIRTH)
    changed_s, changed_ns = struct.unpack_from("=qI", buffer, _CHANGE)
    is_known = mask & _BTIME and seconds
    return FileState(
        size_bytes=size,
        changed_ns=changed_s * 10**9 + changed_ns,
        # The device's number is not included, because it may change when a disk is mounted again.
        identity=f"{inode:x}.{seconds:x}.{nanoseconds:x}" if is_known else "",
    )


def identity_of(path: str) -> str:
    """Return the identity of a file, following links; "" if it is unknown."""
    state = state_of(path)
    return "" if state is None else state.identity


def is_beside(path: str, identity: str) -> bool:
    """Return True if the folder of a path holds the file with this identity under another name."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder) as entries:
            # The inode's number needs no request, and rules out nearly all files.
            names = [
                entry.path
                for entry in entries
                if entry.name != name and identity.startswith(f"{entry.inode():x}.")
            ]
    except OSError:
        return False
    return any(identity_of(other) == identity for other in names)


def _state_by_python(path: str) -> FileState | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    birth = getattr(status, "st_birthtime", None)  # On macOS.
    identity = "" if birth is None else f"{status.st_ino:x}.{birth!r}"
    return FileState(status.st_size, status.st_mtime_ns, identity)


@lru_cache(maxsize=1)
def _statx() -> Any:
    """Return the C library's ``statx`` if it exists; Python has no such function before 3.15."""
    return getattr(ctypes.CDLL(None), "statx", None)


class Root:
    """The root directory of a store, which must stay the same while a process writes to it.

    After an unmount or a move, another directory may be at its path. After a remount the device may
    have another number; then the time of creation decides.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: tuple[int, int] | None = None
        self._birth = ""

    def remember(self) -> None:
        """Remember the directory, unless one is remembered; raise the errors of `os.stat`."""
        if self._found is None:
            status = os.stat(self._path)
            self._birth = identity_of(self._path)
            self._found = status.st_dev, status.st_ino

    @property
    def is_replaced(self) -> bool:
        """Return True if the remembered directory is no longer at its path."""
        if self._found is None:
            return False
        try:
            status = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        if (status.st_dev, status.st_ino) == self._found:
            return False
        return not self._birth or identity_of(self._path) != self._birth
