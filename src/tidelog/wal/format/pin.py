"""Pins: ranges of a log that stay readable while the log itself is collected. Pure.

A cursor holds back the start of the log for all readers. A pin holds back only the deletion of the
objects that it names: the part of the manifest's tree for its range.
A store deletes without a condition. So each new pin has a path of its own, with a random id in it.
Once a pin holds nothing, its object is deleted. A late deletion cannot hit a newer pin of the same
name.

Source: wal3-draft, "Snapshots of the log"; design page 3, "Manifest tree, setsum, cursors,
collection".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.wal.format.cursor import check_length
from tidelog.wal.format.fragment import Fragment, decode_fragment, encode_fragment
from tidelog.wal.format.json import CHECK, check_of, parse, position, render
from tidelog.wal.format.manifest import Manifest, overlaps
from tidelog.wal.format.snapshot import (
    Pointer,
    decode_pointer,
    encode_pointer,
    problems_of_children,
)

PINS: Final = "pin/"
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_PATH: Final = re.compile(r"pin/([A-Za-z0-9_]+)\.([0-9a-f]{16})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A hold on the records ``[start, limit)``. A pin with ``start == limit`` is released.

    ``id`` is random, so another pin of the same name has another one. ``is_sure`` is False until
    the creator has verified that no collection went past the range. Dead objects below ``swept``
    are deleted already. ``holder`` is the name of the log that shares the fragments, or "".
    ``writer`` differs with every write.
    """

    name: str
    id: str
    start: int
    limit: int
    swept: int
    epoch_us: int
    writer: str
    holder: str = ""
    is_sure: bool = False
    snapshots: tuple[Pointer, ...] = ()
    fragments: tuple[Fragment, ...] = ()

    @property
    def path(self) -> str:
        return f"{PINS}{self.name}.{self.id}.json"

    @property
    def is_held(self) -> bool:
        return self.start < self.limit

    @property
    def children(self) -> list[Pointer | Fragment]:
        """Return its snapshots and fragments, oldest first."""
        return [*self.snapshots, *self.fragments]


def check_pin_name(name: str, *, of: str = "pin") -> None:
    """Refuse an invalid name of a pin. A fork has the same rules, because its pin has its name.

    Raises:
        UsageError: the name is invalid.
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{quoted(name)} cannot be the name of a {of}: use letters, digits and _")
    check_length(name, of=of)


def pins_named(name: str) -> str:
    """Return the common prefix of the paths of all pins with a name."""
    return f"{PINS}{name}."


def pin_name(path: str) -> str | None:
    """Return the name of the pin at a path, or None if the path is not a pin's."""
    found = _PATH.fullmatch(path)
    return found[1] if found else None


def children_between(
    manifest: Manifest, start: int, limit: int
) -> tuple[tuple[Pointer, ...], tuple[Fragment, ...]]:
    """Return the children of a manifest that overlap the positions ``[start, limit)``."""
    inside = [child for child in manifest.children if overlaps(child, start, limit)]
    pointers = tuple(child for child in inside if isinstance(child, Pointer))
    return pointers, tuple(child for child in inside if isinstance(child, Fragment))


def decode_pin(data: bytes, *, where: str) -> Pin:
    """Decode a pin.

    Raises:
        CorruptionError: the bytes are not a pin, or are the pin of another path.
    """
    found = parse(data, where=where)
    rest = {name: value for name, value in found.found.items() if name != CHECK}
    if found.text(CHECK) != check_of(rest):
        raise found.wrong(CHECK, "does not match the other fields")
    pin = Pin(
        name=found.text("name"),
        id=found.text("id"),
        start=found.position("start"),
        limit=found.position("limit"),
        swept=found.position("swept"),
        epoch_us=found.whole("epoch_us"),
        writer=found.text("writer"),
        holder=found.text("holder"),
        is_sure=found.flag("is_sure", default=False),
        snapshots=tuple(decode_pointer(child) for child in found.children("snapshots")),
        fragments=tuple(decode_fragment(child) for child in found.children("fragments")),
    )
    if pin.path != where:
        raise found.wrong("name", "does not match the object's path")
    if not pin.swept <= pin.start <= pin.limit:
        raise found.wrong("start", "is not between swept and limit")
    return pin


def encode_pin(pin: Pin) -> bytes:
    """Encode a pin."""
    fields = {
        "name": pin.name,
        "id": pin.id,
        "start": position(pin.start),
        "limit": position(pin.limit),
        "swept": position(pin.swept),
        "epoch_us": pin.epoch_us,
        "writer": pin.writer,
        "holder": pin.holder,
        "is_sure": pin.is_sure,
        "snapshots": [encode_pointer(child) for child in pin.snapshots],
        "fragments": [encode_fragment(child) for child in pin.fragments],
    }
    return render({**fields, CHECK: check_of(fields)})


def problems_of_pin(pin: Pin) -> list[str]:
    """Return the faults that a held pin shows by itself."""
    children = [child for child in pin.children if child.limit > pin.start]
    problems = list(problems_of_children(children))
    if not children or children[0].start > pin.start or children[-1].limit < pin.limit:
        problems.append("it does not name all fragments that it holds")
    return problems
