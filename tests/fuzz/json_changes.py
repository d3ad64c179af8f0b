"""Changes of a value in a JSON object, with its checksums computed again as a hostile writer can.

Shape: objects are lists of pairs (`Pairs`), because a field may be repeated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fuzz.byte_changes import Change
from tidelog.wal.format.json import CHECK, check_of
from tidelog.wal.format.manifest import CHAIN

NUMBERS: Final = (
    *(0, 1, -1, 2**31, 2**32, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30),
    *(1.5, 1e400, True, None, "1"),
)
ODD_TEXTS: Final[tuple[Any, ...]] = (
    *("../../x", "/etc/passwd", "a\x00b", "\ud800", "", "x" * 5_000, ".", "..", "a//b"),
    *("../log/manifest/MANIFEST", "../fork/manifest/MANIFEST", "manifest/MANIFEST", "tidelog.json"),
    *("ÄÖ", "\u202e", "null", 0, None, [], {}),
)
DEPTHS: Final = (50, 500, 5_000, 200_000)


class Pairs(list[tuple[str, Any]]):
    """A JSON object with its fields in order, including repeated ones."""


@dataclass(frozen=True, slots=True)
class RawText:
    """A text that is written unchanged in place of a value."""

    text: str


@dataclass(slots=True)
class Place:
    """A value in a JSON object: its container, its index, and its path for people."""

    within: Any
    index: int
    path: str

    @property
    def value(self) -> Any:
        held = self.within[self.index]
        return held[1] if isinstance(self.within, Pairs) else held

    def put(self, value: Any) -> None:
        if isinstance(self.within, Pairs):
            self.within[self.index] = (self.within[self.index][0], value)
        else:
            self.within[self.index] = value


def parse_pairs(data: bytes) -> Pairs:
    found = json.loads(data, object_pairs_hook=Pairs)
    assert isinstance(found, Pairs)
    return found


def text_of(value: Any) -> str:
    """Return a value as JSON. Texts that are not valid UTF-8 are escaped."""
    if isinstance(value, RawText):
        return value.text
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{text_of(held)}" for name, held in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, float):
        return "1e400" if value == float("inf") else repr(value)
    odd = isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)
    return json.dumps(value, ensure_ascii=odd)


def places(value: Any, path: str = "") -> Iterator[Place]:
    """Yield every value that another value contains."""
    if isinstance(value, Pairs):
        named = [(n, name, held) for n, (name, held) in enumerate(value)]
    elif isinstance(value, list):
        named = [(n, str(n), held) for n, held in enumerate(value)]
    else:
        return
    for index, name, held in named:
        here = f"{path}.{name}" if path else name
        yield Place(value, index, here)
        yield from places(held, here)


def change_number(dice: random.Random, found: Pairs) -> str | None:
    held = [p for p in places(found) if type(p.value) is int]
    if not held:
        return None
    place = dice.choice(held)
    was: int = place.value
    near: tuple[Any, ...] = (was + 1, was - 1, was * 2, was ^ (1 << dice.randrange(64)))
    value = dice.choice([*NUMBERS, *near, *near])
    place.put(value)
    return f"{place.path}: {was} to {value!r}"


def swap_numbers(dice: random.Random, found: Pairs) -> str | None:
    held = [p for p in places(found) if type(p.value) is int]
    if len(held) < 2:
        return None
    one, other = dice.sample(held, 2)
    was = one.value, other.value
    one.put(was[1])
    other.put(was[0])
    return f"{one.path} and {other.path} swapped: {was}"


def change_text(dice: random.Random, found: Pairs) -> str | None:
    held = [p for p in places(found) if isinstance(p.value, str)]
    if not held:
        return None
    place = dice.choice(held)
    was: str = place.value
    others = [p.value for p in held]
    cased = was.upper() if was != was.upper() else was.lower()
    value = dice.choice([*ODD_TEXTS, "0" * 64, "f" * 64, *dice.choices(others, k=6), cased])
    place.put(value)
    return f"{place.path}: {was[:90]!r} to {value[:90] if isinstance(value, str) else value!r}"


def remove(dice: random.Random, found: Pairs) -> str | None:
    place = _any(dice, found)
    if place is None:
        return None
    del place.within[place.index]
    return f"{place.path} removed"


def double(dice: random.Random, found: Pairs) -> str | None:
    place = _any(dice, found)
    if place is None:
        return None
    place.within.insert(place.index, place.within[place.index])
    return f"{place.path} twice"


def empty(dice: random.Random, found: Pairs) -> str | None:
    place = _any(dice, found)
    if place is None:
        return None
    value: Any = dice.choice([None, [], Pairs(), "", 0, False])
    place.put(value)
    return f"{place.path} to {value!r}"


def swap_items(dice: random.Random, found: Pairs) -> str | None:
    lists = [p for p in places(found) if isinstance(p.value, list) and len(p.value) > 1]
    if not lists:
        return None
    place = dice.choice(lists)
    one, other = dice.sample(range(len(place.value)), 2)
    items = place.value
    items[one], items[other] = items[other], items[one]
    return f"{place.path}: items {one} and {other} swapped"


def cut_list(dice: random.Random, found: Pairs) -> str | None:
    lists = [p for p in places(found) if type(p.value) is list and p.value]
    if not lists:
        return None
    place, count = dice.choice(lists), dice.choice([1, 1, 2])
    if dice.random() < 0.5:
        del place.value[-count:]
        return f"{place.path}: without its last {count}"
    del place.value[:count]
    return f"{place.path}: without its first {count}"


def nest(dice: random.Random, found: Pairs) -> str | None:
    """Add an unknown field of some depth, which readers should ignore."""
    depth = dice.choice(DEPTHS)
    opening, closing = dice.choice([("[", "]"), ('{"a":', "}")])
    held = [found, *(p.value for p in places(found) if isinstance(p.value, Pairs))]
    inner = "0" if closing == "}" else ""
    dice.choice(held).append(("unknown", RawText(opening * depth + inner + closing * depth)))
    return f"an unknown field, {depth} deep"


def add(dice: random.Random, found: Pairs) -> str | None:
    """Copy a field of one object into another."""
    held = [found, *(p.value for p in places(found) if isinstance(p.value, Pairs))]
    fields = [field for each in held for field in each]
    if not fields:
        return None
    field = dice.choice(fields)
    dice.choice(held).append(field)
    return f"the field {field[0]} in another place as well"


JSON_CHANGES: Final[tuple[Callable[[random.Random, Pairs], str | None], ...]] = (
    *(change_number, change_number, change_number, swap_numbers, change_text, change_text),
    *(remove, double, empty, swap_items, cut_list, nest, add),
)


def change_json(dice: random.Random, data: bytes, *, sum_anew: bool) -> Change | None:
    """Return a description of the change and the bytes, or None if no change was possible."""
    found = parse_pairs(data)
    told = dice.choice(JSON_CHANGES)(dice, found)
    if told is None:
        return None
    changed = text_of(found).encode()
    return told, with_sums(changed) if sum_anew else changed


def with_sums(data: bytes) -> bytes:
    """Return an object with its checksums computed again, as far as it can be read."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(found, dict):
        return data
    _sum_children(found)
    chain = found.get(CHAIN)
    if isinstance(chain, dict) and CHECK in chain:
        chain = {name: value for name, value in chain.items() if name != CHECK}
        found[CHAIN] = {**chain, CHECK: check_of({**found, CHAIN: chain})}
    try:
        return json.dumps(found, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data


def _sum_children(found: dict[str, Any]) -> None:
    """Compute the checksums of a pin, a snapshot, and the snapshots of a plan."""
    for made in found.get("snapshots_to_make") or ():
        if isinstance(made, dict):
            _sum_children(made)
    if CHECK not in found:
        return
    rest = {name: value for name, value in found.items() if name != CHECK}
    if "swept" not in found:  # A snapshot's checksum covers only its children.
        rest = {n: found[n] for n in ("snapshots", "fragments") if n in found}
    found[CHECK] = check_of(rest)


def _any(dice: random.Random, found: Pairs) -> Place | None:
    return dice.choice(list(places(found)) or [None])
