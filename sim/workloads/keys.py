"""Keys of the records that a run appends to a slot log, and a check that they arrive.

A record's key is chosen when its body is first appended, and is stored by that body; all bodies
differ. In the end, each record must have its key, and a read of one key must return exactly its
records.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from sim.checkers.demands import demand
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.slot_protocol.reader import SlotReader

# The longest key is never listed in a link, so that links also have filters.
KEYS: Final = (None, None, b"", b"a", b"b", b"\xff", b"long " * 250)


@dataclass(slots=True)
class KeysGiven:
    """The keys of one run; ``is_used`` is True if it has any."""

    dice: random.Random
    is_used: bool
    by_body: dict[bytes, bytes | None] = field(default_factory=dict)

    def give(self, bodies: Sequence[bytes]) -> pa.BinaryArray | None:
        """Return a key for each body, or None; a body always gets the same key."""
        if not self.is_used:
            return None
        for body in bodies:
            if body not in self.by_body:
                self.by_body[body] = self.dice.choice(KEYS)
        keys: pa.BinaryArray = pa.array([self.by_body[body] for body in bodies], pa.binary())
        return keys

    def places(self) -> bool:
        """Return True if the next append must use `SlotWriter.place`; never without keys."""
        return self.is_used and self.dice.random() < 0.5

    async def check(self, reader: SlotReader) -> None:
        """Check the key of every record, and reads of each key."""
        everything = await _rows(reader, Selection())
        for row in everything:
            given = self.by_body.get(row["body"])
            demand(row["key"] == given, "a record has another key than it was given", row=row)
        for key in sorted({row["key"] for row in everything} - {None}) if self.is_used else ():
            wanted = [row for row in everything if row["key"] == key]
            found = await _rows(reader, Selection(key=key))
            demand(found == wanted, "a read of a key has other records than those with it", key=key)


async def _rows(reader: SlotReader, selection: Selection) -> list[dict[str, Any]]:
    found = reader.scan(selection=selection)
    return [row async for records in found for row in records.to_pylist()]
