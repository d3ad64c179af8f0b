"""The paths of slots, and checks of the paths in stored objects before a reader follows them. Pure.

A process that can write to the store could otherwise direct a reader out of the log, or to a key
that the store refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidelog.core.ids import check_name
from tidelog.errors import UsageError
from tidelog.store.keys import BESIDE, check_key
from tidelog.wal.format.json import Fields

_PATH: Final = re.compile(
    r"epoch/([0-9a-f]{16})-([0-9a-f]{16})/([0-9a-f]{3})/([0-9a-f]{16})\.parquet"
)


@dataclass(frozen=True, slots=True)
class Place:
    """The facts that a path states about a slot's object."""

    number: int
    id: str
    lane: int
    slot: int

    @property
    def epoch(self) -> str:
        """Return the name of the epoch's directory."""
        return f"{self.number:016x}-{self.id}"


def place_of(path: str) -> Place | None:
    """Return the place that a path names, or None if the path cannot belong to a slot's object."""
    if (found := _PATH.fullmatch(path)) is None:
        return None
    return Place(int(found[1], 16), found[2], int(found[3], 16), int(found[4], 16))


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
