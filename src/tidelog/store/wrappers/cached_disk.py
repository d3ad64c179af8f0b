"""Copies of objects in a local directory, up to a limit in bytes. All functions block.

Several processes may share a directory. A copy is written under a temporary name and then renamed,
so it exists as a whole or not at all. It is not synced: after a power loss, its checksum exposes a
damaged copy, which is a miss. A process that can write to the directory can forge copies, so only
its owner has access.

Shape of a file: the line ``tidelog copy 1``; the xxh3-128 of everything after it; the size of the
header (4 bytes, big endian); the header (msgpack: store, key, e_tag, modified_us, size of the
body); the body. Its name is a hash of the store's URL and the key; its time is the time of its last
use.

Invariants: with one process the files stay within the limit, apart from temporary ones. Each
further process can exceed it by a sixteenth and one object, because it counts other processes'
files only now and then. A dropped copy does not exist afterwards, even if this handle was writing
it concurrently.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from tidelog.store.local.files import sweep
from tidelog.store.port import Object

MAGIC = b"tidelog copy 1\n"
_DIGEST_BYTES = 16
_SIZE_BYTES = 4
_LEFT_OVER_NS = 24 * 3_600 * 1_000_000_000
_Header = tuple[bytes, bytes, str, int, int]


def encode_copy(store: str, key: str, found: Object) -> tuple[bytes, bytes]:
    """Return the bytes of a file in two parts, so that the body is not copied."""
    header = msgspec.msgpack.encode(
        (_raw(store), _raw(key), found.e_tag, found.modified_us, len(found.data))
    )
    sized = len(header).to_bytes(_SIZE_BYTES, "big") + header
    digest = xxhash.xxh3_128(sized)
    digest.update(found.data)
    return MAGIC + digest.digest() + sized, found.data


def decode_copy(data: bytes, *, store: str, key: str) -> Object | None:
    """Return the object in a file; None if the file is damaged or belongs to another object."""
    body_begins = len(MAGIC) + _DIGEST_BYTES
    rest = memoryview(data)[body_begins:]
    if data[: len(MAGIC)] != MAGIC:
        return None
    if xxhash.xxh3_128_digest(rest) != data[len(MAGIC) : body_begins]:
        return None
    header_limit = _SIZE_BYTES + int.from_bytes(rest[:_SIZE_BYTES], "big")
    try:
        header = msgspec.msgpack.decode(rest[_SIZE_BYTES:header_limit], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    of_store, of_key, e_tag, modified_us, size_bytes = header
    body = bytes(rest[header_limit:])
    if (of_store, of_key, size_bytes) != (_raw(store), _raw(key), len(body)):
        return None
    return Object(body, e_tag, modified_us)


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    used_ns: int
    size_bytes: int


class Directory:
    """The copies of one store's objects; ``damaged_count`` counts damaged copies found.

    Two stores with the same URL (for example two in memory) must not share a directory.
    """

    def __init__(self, path: Path, *, store: str, bytes_max: int) -> None:
        self.damaged_count = 0
        self._root = os.path.abspath(path)
        self._temporary = os.path.join(self._root, "tmp")
        self._store = store
        self._bytes_max = bytes_max
        self._slack_bytes = bytes_max // 16
        # Held while names change, but not while bytes are written or read.
        self._lock = threading.Lock()
        # The bytes at the last count, plus those written since.
        self._used_bytes: int | None = None
        self._written_bytes = 0  # Bytes written since the last count.

    def find(self, key: str, *, now_ns: int) -> Object | None:
        """Read a copy, and mark it as used; delete a damaged one.

        Raises:
            OSError: the file system failed.
        """
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        stored = decode_copy(data, store=self._store, key=key)
        with suppress(FileNotFoundError):
            if stored is None:
                # A concurrently written good copy may be lost here; it is read again from the
                # store.
                self.damaged_count += 1
                os.unlink(path)
            else:
                os.utime(path, ns=(now_ns, now_ns))
        return stored

    def keep(
        self, key: str, found: Object, *, unique: str, now_ns: int, may_keep: Callable[[], bool]
    ) -> None:
        """Write a copy, unless it takes more than a quarter of the limit.

        ``may_keep`` is called at the last moment. So after a caller makes it return False and then
        calls `drop`, no copy can appear.

        Raises:
            OSError: the file system failed; nothing is kept.
        """
        parts = encode_copy(self._store, key, found)
        size_bytes = sum(len(part) for part in parts)
        if size_bytes > self._bytes_max // 4:
            return
        path, temporary = self._path(key), os.path.join(self._temporary, unique)
        self._make_directories(os.path.dirname(path), now_ns)
        try:
            with open(temporary, "xb") as file:
                file.writelines(parts)
            os.utime(temporary, ns=(now_ns, now_ns))
            with self._lock:
                if may_keep():
                    self._make_room(size_bytes)
                    os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def drop(self, keys: Iterable[str]) -> None:
        """Delete copies; missing ones are ignored.

        Raises:
            OSError: the file system failed; some copies may still exist.
        """
        with self._lock:
            for key in keys:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(key))

    def _make_room(self, size_bytes: int) -> None:
        """Delete the least recently used copies, so that ``size_bytes`` more fit.

        The files are counted again after each sixteenth of the limit, because other processes write
        too. If there are too many, an eighth more than needed is deleted, so that this is rare.
        """
        used_bytes, self._written_bytes = self._used_bytes, self._written_bytes + size_bytes
        if (
            used_bytes is None
            or used_bytes + size_bytes > self._bytes_max
            or self._written_bytes > self._slack_bytes
        ):
            files = sorted(self._files(), key=lambda file: file.used_ns)
            used_bytes = sum(file.size_bytes for file in files)
            if used_bytes + size_bytes > self._bytes_max:
                goal_bytes = self._bytes_max - 2 * self._slack_bytes - size_bytes
                used_bytes = _remove_until(goal_bytes, files, used_bytes)
            self._written_bytes = size_bytes
        self._used_bytes = used_bytes + size_bytes

    def _files(self) -> Iterator[_File]:
        for directory in _entries(self._root):
            if directory.path == self._temporary or not directory.is_dir():
                continue
            for entry in _entries(directory.path):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield _File(entry.path, status.st_mtime_ns, status.st_size)

    def _make_directories(self, path: str, now_ns: int) -> None:
        if not os.path.isdir(self._temporary):
            os.makedirs(self._root, mode=0o700, exist_ok=True)
            os.makedirs(self._temporary, exist_ok=True)
        if self._used_bytes is None:
            sweep(self._temporary, before_ns=now_ns - _LEFT_OVER_NS)
        os.makedirs(path, exist_ok=True)

    def _path(self, key: str) -> str:
        name = hashlib.blake2b(_raw(f"{self._store}\0{key}"), digest_size=16).hexdigest()
        return os.path.join(self._root, name[:2], name)


def _remove_until(goal_bytes: int, files: Sequence[_File], used_bytes: int) -> int:
    """Delete files in order until the rest has ``goal_bytes``; return the bytes of the rest."""
    for file in files:
        if used_bytes <= goal_bytes:
            break
        with suppress(FileNotFoundError):
            os.unlink(file.path)
        used_bytes -= file.size_bytes
    return used_bytes


def _entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return list(entries)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
