"""The identity of a file on a disk, which stays the same when the file is renamed or changed.

The number of an inode is not enough, because file systems reuse freed numbers, often for the next
file. Together with the time of creation it is, if kernel and file system report that time.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

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
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _BASIC | _BTIME, found):
        return None
    (mask,) = struct.unpack_from("=I", found)
    (size,) = struct.unpack_from("=Q", found, _SIZE)
    (inode,) = struct.unpack_from("=Q", found, _INODE)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH)
    changed_s, changed_ns = struct.unpack_from("=qI", found, _CHANGE)
    is_known = mask & _BTIME and seconds
    return FileState(
        size_bytes=size,
        changed_ns=changed_s * 10**9 + changed_ns,
        # The device's number is not included, because it may change when a disk is mounted again.
        identity=f"{inode:x}.{seconds:x}.{nanoseconds:x}" if is_known else "",
    )


def identity_of(path: str) -> str:
    """Return the identity of a file, following links; "" if it is unknown."""
    found = state_of(path)
    return "" if found is None else found.identity


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
