"""What tells a file of a disk from all others, whatever it is called and however it changes.

An inode's number alone does not: file systems give freed ones out again, often to the next file.
With the moment at which it was created it does, where kernel and file system tell that.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import lru_cache
from typing import Any, Final

_AT_FDCWD: Final = -100
_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_INODE, _BIRTH, _DEVICE = 32, 80, 136  # Where they stand in what Linux returns.


def identity_of(path: str) -> str:
    """Return the identity of a file, with its links followed; "" where that cannot be told."""
    statx = _statx()
    if statx is None:
        return _told_by_python(path)
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _BTIME, found):
        return ""
    (mask,) = struct.unpack_from("=I", found)
    (inode,) = struct.unpack_from("=Q", found, _INODE)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH)
    major, minor = struct.unpack_from("=II", found, _DEVICE)
    if not mask & _BTIME or not seconds:
        return ""
    return f"{major:x}.{minor:x}.{inode:x}.{seconds:x}.{nanoseconds:x}"


def is_beside(path: str, identity: str) -> bool:
    """Return True if the folder of a path holds the file of this identity, under any other name."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder) as entries:
            # The number of the inode costs no request, and rules nearly all files out.
            names = [
                entry.path
                for entry in entries
                if entry.name != name and f".{entry.inode():x}." in identity
            ]
    except OSError:
        return False
    return any(identity_of(other) == identity for other in names)


def _told_by_python(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    birth = getattr(status, "st_birthtime", None)  # On macOS.
    return "" if birth is None else f"{status.st_dev:x}.{status.st_ino:x}.{birth!r}"


@lru_cache(maxsize=1)
def _statx() -> Any:
    """Return the C library's function, where it has one: Python has none before 3.15."""
    return getattr(ctypes.CDLL(None), "statx", None)


class Root:
    """The directory of a store, which must stay the same one while a process writes to it.

    An unmount leaves another directory under its path, and so does a move with a new directory.
    After a remount the device may have another number: then the time of its creation counts.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: tuple[int, int] | None = None
        self._birth = ""

    def remember(self) -> None:
        """Remember the directory, unless one is remembered; raise what `os.stat` raises."""
        if self._found is None:
            status = os.stat(self._path)
            self._birth = _birth_of(self._path)
            self._found = status.st_dev, status.st_ino

    @property
    def is_replaced(self) -> bool:
        """Return True if the directory that is remembered is no longer at its path."""
        if self._found is None:
            return False
        try:
            status = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        if (status.st_dev, status.st_ino) == self._found:
            return False
        return not self._birth or _birth_of(self._path) != self._birth


def _birth_of(path: str) -> str:
    """Return the inode of a file and the time of its creation; "" if that time is not known."""
    return identity_of(path).partition(".")[2].partition(".")[2]
