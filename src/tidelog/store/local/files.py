"""File operations that make a file durable, and the errors of their failures.

All functions block, and are called through ``clock.offload``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from typing import Final

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
