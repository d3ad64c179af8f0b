"""Files as bytes: a text, or compressed members, which become visible step by step."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from kit.packing import packed
from messy.records import Unit

GARBAGE: Final = (b"no such file", b"\x1f\x8b\x08\x00rest", b"\x00" * 40, b"(\xb5/\xfdrest of it")


@dataclass(slots=True)
class Text:
    """A text of units as stored in a file.

    Shape: ``shown`` is the number of visible bytes of the file. ``members`` holds each compressed
    member and its number of bytes of text. ``damage`` is the place of a changed byte.
    """

    units: Sequence[Unit]
    suffix: str
    members: list[tuple[bytes, int]] = field(default_factory=list)
    shown: int = 0
    damage: int | None = None

    @property
    def text(self) -> bytes:
        return b"".join(unit.text for unit in self.units)

    @property
    def raw(self) -> bytes:
        return b"".join(data for data, _ in self.members) if self.suffix else self.text

    @property
    def data(self) -> bytes:
        """Return the bytes of the file as they are now."""
        found = bytearray(self.raw[: self.shown])
        if self.damage is not None and self.damage < len(found):
            found[self.damage] ^= 0xFF
        return bytes(found)

    @property
    def is_whole(self) -> bool:
        return self.shown >= len(self.raw) and self.damage is None

    @property
    def is_damaged(self) -> bool:
        return self.damage is not None and self.damage < self.shown

    @property
    def _ends(self) -> list[int]:
        """Return the ends of members in the file, starting with zero."""
        return [0, *accumulate(len(data) for data, _ in self.members)]

    @property
    def visible(self) -> tuple[int, bool]:
        """Return the visible bytes of text, and True if half of a member follows."""
        if not self.suffix:
            return self.shown, False
        ends = self._ends
        count = bisect_right(ends, self.shown) - 1
        return sum(size for _, size in self.members[:count]), ends[count] < self.shown

    def places(self) -> list[int]:
        """Return the places to cut the text: between units, before line ends, in good rows."""
        found, at = {0}, 0
        for unit in self.units:
            found |= {at + len(unit.text)}
            if not unit.is_header:
                found |= {at + unit.body}
                found |= {at + cut for cut in range(unit.cut_min + 1, unit.cut_max + 1)}
            at += len(unit.text)
        return sorted(found)


def pack(text: Text, dice: random.Random) -> None:
    """Compress a text in one or several members."""
    if not text.suffix:
        return
    data, places = text.text, text.places()
    cuts = sorted({0, *dice.choices(places, k=dice.randrange(4)), len(data)})
    pairs = list(pairwise(cuts)) or [(0, 0)]
    text.members = [(packed(data[a:b], text.suffix), b - a) for a, b in pairs]


def show(text: Text, dice: random.Random, *, may_tear: bool, whole: bool) -> None:
    """Show more of a file, or all of it. ``may_tear`` allows a cut inside a header."""
    size = len(text.raw)
    if whole:
        text.shown = size
        return
    if not text.suffix:
        places = [place for place in text.places() if place >= text.shown]
        header = text.units[0] if text.units and text.units[0].is_header else None
        if header is not None and may_tear and text.shown == 0 and dice.random() < 0.2:
            places = [dice.randrange(1, len(header.text))]
        text.shown = dice.choice(places)
        return
    ends = [end for end in text._ends if end >= text.shown]
    inside = range(text.shown, size + 1)
    text.shown = dice.choice(ends) if dice.random() < 0.6 else dice.choice(inside)


def damage(text: Text, dice: random.Random) -> None:
    """Damage a member of a compressed file that is not whole yet."""
    ends = text._ends
    new = [n for n, end in enumerate(ends[:-1]) if end >= text.shown]
    if not new or not text.suffix:
        return
    number = dice.choice(new)
    # The checksum of gzip; the first bytes of zstd, which may have no checksum.
    text.damage = ends[number + 1] - 8 if text.suffix == ".gz" else ends[number]
