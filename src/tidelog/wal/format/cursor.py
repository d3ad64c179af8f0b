"""Cursors: named positions in a log; what lies at or after one is not collected. Pure.

Source: wal3, "Cursors"; docs/internals/wal3.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidelog.arguments import quoted
from tidelog.errors import UsageError
from tidelog.wal.format.json import parse, position, render

INTRINSIC: Final = "compaction"  # The name of the cursor that every log of Chroma's has.
CURSORS: Final = "cursor/"
NAME_MAX: Final = 128  # Of a new cursor or pin: it becomes a part of a file's name.
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_PATH: Final = re.compile(r"cursor/([A-Za-z0-9_]+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where a reader is: it still needs ``position`` and all after it."""

    position: int
    epoch_us: int
    writer: str


def check_length(name: str, *, of: str) -> None:
    """Refuse a name that is too long for a new cursor or pin; others may have made such.

    Raises:
        UsageError: it is.
    """
    if len(name) > NAME_MAX:
        raise UsageError(f"{quoted(name)} is too long: a {of} has up to {NAME_MAX} characters")


def cursor_path(name: str) -> str:
    """Return where the cursor of a name lies.

    Raises:
        UsageError: wal3 could not bear the name.
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{quoted(name)} names no cursor: use letters, digits and _")
    return f"{CURSORS}{name}.json"


def cursor_name(path: str) -> str | None:
    """Return the name of the cursor that lies at a path; None if none can lie there."""
    found = _PATH.fullmatch(path)
    return found[1] if found else None


def decode_cursor(data: bytes, *, where: str) -> Cursor:
    """Read a cursor.

    Raises:
        CorruptionError: it is none.
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
