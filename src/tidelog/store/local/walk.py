"""A walk of a directory tree in key order.

Keys are ordered as plain strings, so a directory sorts as its name followed by ``/``: ``a-b`` comes
before ``a/b``, though ``a`` comes before ``a-b``. All functions block.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace

from tidelog.store.keys import PRIVATE, may_begin_key
from tidelog.store.local.files import is_object, tag_of
from tidelog.store.port import Entry

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


def directories(root: str, prefix: str) -> list[str]:
    """Return the names of the directories directly below a prefix, which is empty or ends in ``/``.

    Raises:
        OSError: the directory cannot be read.
    """
    if not may_begin_key(prefix):
        return []
    keys = sorted(_wanted(root, prefix, prefix, None))
    return [key[len(prefix) : -1] for key, _ in keys if key.endswith("/")]


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
