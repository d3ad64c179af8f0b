"""Cursors: named positions in a log. Records at or after a cursor are not collected. Pure.

Source: wal3, "Cursors"; docs/internals/wal3.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.wal.format.json import parse, position, render

INTRINSIC: Final = "compaction"  # The cursor that every log of Chroma has.
CURSORS: Final = "cursor/"
NAME_MAX: Final = 128  # Limit for new cursors and pins: the name becomes part of a file name.
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_PATH: Final = re.compile(r"cursor/([A-Za-z0-9_]+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position of a reader, which still needs this record and all later ones."""

    position: int
    epoch_us: int
    writer: str


def check_length(name: str, *, of: str) -> None:
    """Refuse a name that is too long for a new cursor or pin; wal3 may have created longer ones.

    Raises:
        UsageError: the name is too long.
    """
    if len(name) > NAME_MAX:
        raise UsageError(
            f"{quoted(name)} is too long: the name of a {of} has at most {NAME_MAX} characters"
        )


def cursor_path(name: str) -> str:
    """Return the path of a cursor.

    Raises:
        UsageError: wal3 does not accept the name.
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{quoted(name)} cannot be the name of a cursor: use letters, digits and _"
        )
    return f"{CURSORS}{name}.json"


def cursor_name(path: str) -> str | None:
    """Return the name of the cursor at a path, or None if the path is not a cursor's."""
    found = _PATH.fullmatch(path)
    return found[1] if found else None


def decode_cursor(data: bytes, *, where: str) -> Cursor:
    """Decode a cursor.

    Raises:
        CorruptionError: the bytes are not a cursor.
    """
    found = parse(data, where=where)
    return Cursor(
        position=found.position("position"),
        epoch_us=found.whole("epoch_us"),
        writer=found.text("writer"),
    )


def encode_cursor(cursor: Cursor) -> bytes:
    return render(
        {
            "position": position(cursor.position),
            "epoch_us": cursor.epoch_us,
            "writer": cursor.writer,
        }
    )
