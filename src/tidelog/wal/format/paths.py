"""Paths and names in stored objects: they say where to read on, so they are looked at first. Pure.

Whoever can write into the store could lead a reader out of the log, or to what no store takes.
"""

from __future__ import annotations

from tidelog.errors import UsageError
from tidelog.ids import check_name
from tidelog.store.keys import check_key
from tidelog.store.within import BESIDE
from tidelog.wal.format.json import Fields


def path_in(found: Fields, name: str) -> str:
    """Take a path, which may be that of an object in the log, or in one that it shares with.

    Raises:
        CorruptionError: it leads elsewhere, or no object can have it.
    """
    path = found.text(name)
    beside, _, rest = path.removeprefix(BESIDE).partition("/")
    parts = [beside, rest] if path.startswith(BESIDE) else [path]
    for part in parts:
        try:
            check_key(part)
        except UsageError as error:
            raise found.wrong(name, f"is no path in the log ({error})") from error
    return path


def own_path_in(found: Fields, name: str) -> str:
    """Take a path, which must be that of an object in the log itself.

    Raises:
        CorruptionError: see `path_in`.
    """
    path = path_in(found, name)
    if path.startswith(BESIDE):
        raise found.wrong(name, "is no path in the log itself")
    return path


def log_in(found: Fields, name: str) -> str:
    """Take the name of a log; empty if there is none.

    Raises:
        CorruptionError: no log can have it.
    """
    log = found.text(name) if found.has(name) else ""
    try:
        return log and check_name(log, of="name of a log")
    except UsageError as error:
        raise found.wrong(name, f"is no name of a log ({error})") from error
