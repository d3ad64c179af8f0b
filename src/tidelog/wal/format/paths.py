"""Checks of the paths and names in stored objects, before a reader follows them. Pure.

A process that can write to the store could otherwise direct a reader out of the log, or to a key
that the store refuses.
"""

from __future__ import annotations

from tidelog.core.ids import check_name
from tidelog.errors import UsageError
from tidelog.store.keys import check_key
from tidelog.store.within import BESIDE
from tidelog.wal.format.json import Fields


def path_in(found: Fields, name: str) -> str:
    """Return the path in a field: an object of the log, or of a log that it shares with.

    Raises:
        CorruptionError: the path leads elsewhere, or is not a valid key.
    """
    path = found.text(name)
    beside, _, rest = path.removeprefix(BESIDE).partition("/")
    parts = [beside, rest] if path.startswith(BESIDE) else [path]
    for part in parts:
        try:
            check_key(part)
        except UsageError as error:
            raise found.wrong(name, f"is not a path in the log ({error})") from error
    return path


def own_path_in(found: Fields, name: str) -> str:
    """Return the path in a field, which must be an object of the log itself.

    Raises:
        CorruptionError: see `path_in`.
    """
    path = path_in(found, name)
    if path.startswith(BESIDE):
        raise found.wrong(name, "is not a path in the log's own folder")
    return path


def log_in(found: Fields, name: str) -> str:
    """Return the name of a log in a field, or "" if the field is missing.

    Raises:
        CorruptionError: it cannot be the name of a log.
    """
    log = found.text(name) if found.has(name) else ""
    try:
        return log and check_name(log, of="name of a log")
    except UsageError as error:
        raise found.wrong(name, f"is not a log's name ({error})") from error
