"""Steps by which `tidelog.store.local.store` makes a file durable, and what their failures mean.

Everything here blocks, and is called through ``clock.offload``.
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
    errno.EACCES: "the file system does not permit it: check the owner and the mode",
    errno.EPERM: "the file system does not permit it: check owner, mode and hard link support",
    errno.EROFS: "the file system is mounted read-only: mount it writable, or use another place",
    errno.ENAMETOOLONG: "the name is too long for this file system: use a shorter one",
    errno.EXDEV: "the directory lies on another file system than the root: use it as the root",
    errno.ENOTDIR: "a file stands where a directory is needed: use another key, or remove the file",
    errno.EISDIR: "a directory has the name of this object: use another key",
    errno.ELOOP: "a symbolic link leads to itself: remove it, or use another key",
    errno.EMFILE: "this process has too many files open: raise its limit (ulimit -n)",
    errno.EIO: "the disk reports an input/output error: check the disk",
}
# What no wait changes, so that to try again would only keep the user from the sentence.
_LASTING: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.EISDIR, errno.ENOTDIR}
)
_COARSE_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
# No file is dated later, whatever the clock says: some file systems can keep no later time, and
# would then take no newer object in its place.
_LATEST_NS: Final = 7_258_118_400 * 10**9  # 2200-01-01
HOLES_MAX_BYTES: Final = 64 * 1024 * 1024


def location_error(
    error: OSError, *, outcome: Outcome = Outcome.NOT_APPLIED, **facts: object
) -> LocationError:
    """Return what to raise for a failure of the file system."""
    sentence = _SENTENCES.get(error.errno or 0, "the file system failed")
    kind = StoreRefused if error.errno in _LASTING else LocationError
    return kind(sentence, outcome=outcome, reason=error.strerror or str(error), **facts)


def tag_of(status: os.stat_result) -> str:
    """Return the e_tag of a file: its modification time and its size.

    The inode would add nothing, since file systems give freed inode numbers out again; and the
    time is never the kernel's, which may stand still for 10 ms: it is set by `write_temporary`, to
    what `Put.date_ns` says, or later by `date_after`.
    """
    return tag_at(status.st_mtime_ns, status.st_size)


def tag_at(changed_ns: int, size_bytes: int) -> str:
    """Return the e_tag of a file of this time of change and this size."""
    return f"{changed_ns:x}-{size_bytes:x}"


def write_temporary(path: str, data: bytes, *, now_ns: int) -> os.stat_result:
    """Write a new file, durably, dated ``now_ns``; return what it is then."""
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
    """Date a file later than ``after_ns``, durably, unless it is so; return what it is then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_mtime_ns > after_ns:
            return status
        # Some file systems cut times to microseconds or seconds: step further until it shows.
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
    """Make a directory at or below ``root``, durably; ``known`` remembers those that are.

    A directory that exists may have been made by a process that has not synced it yet, so every
    directory on the way down is synced once by each store, not only those made here.

    Raises:
        FileNotFoundError: a directory that is ``kept`` does not exist, and is not made again.
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
    """Hold the lock file at ``path``, or give False because another thread or process does.

    The file goes when the lock is released, else there would be one for every key ever put; so a
    lock counts only if its file still has its name once it is held.
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
    """Remove temporary files older than ``before_ns``: their writers were killed.

    What cannot be removed stays: another user's, say, or a directory. It stands in nobody's way.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime_ns < before_ns:
                    os.unlink(entry.path)


def is_object(status: os.stat_result) -> bool:
    """Say whether a file is one that can be an object: no directory, pipe or device."""
    return stat.S_ISREG(status.st_mode)


def read_range(descriptor: int, size_bytes: int, start: int, limit: int | None) -> bytes:
    """Read the bytes ``[start, limit)`` of a file of that size; fewer if it was cut meanwhile.

    Raises:
        CorruptionError: there is next to nothing in it, however large it says it is.
    """
    limit = size_bytes if limit is None else min(limit, size_bytes)
    # A file of nothing but a size takes no room on a disk, and all there is in memory.
    if (
        limit - start >= HOLES_MAX_BYTES
        and _holes_bytes(descriptor, start, limit) >= HOLES_MAX_BYTES
    ):
        raise CorruptionError(
            "a file has holes where its bytes should be: restore it, or move it away"
        )
    pieces = []
    while start < limit:
        piece = os.pread(descriptor, limit - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _holes_bytes(descriptor: int, start: int, limit: int) -> int:
    """Return how many bytes of a range were never written, where the file system knows."""
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
            start = limit  # There is nothing after it.
        total += min(start, limit) - hole
    return total
