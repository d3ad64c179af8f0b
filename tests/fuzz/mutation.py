"""One change of an object of a specimen, chosen by dice and described in words."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fuzz.byte_changes import change_bytes
from fuzz.json_changes import change_json
from fuzz.parquet_changes import change_parquet
from fuzz.specimens import Specimen
from tidelog.errors import TidelogError
from tidelog.wal.format.link import FenceLink
from tidelog.wal.format.slot_object import decode_link

# Errors of libraries over bytes that an earlier change made unreadable.
UNREADABLE: Final = (pa.ArrowException, ValueError, LookupError, OSError, RecursionError)
WEIGHTS: Final = {
    "manifest": 6,
    "snapshot": 4,
    "data": 5,
    "fence": 3,
    "fragment": 4,
    "pin": 3,
    "plan": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change of the object at ``key``, which has a ``role``.

    ``kind`` is bytes, json, parquet, or the change of the whole object. With ``is_summed``,
    tidelog's own checksums were computed again, so that only the meaning is wrong.
    """

    key: str
    role: str
    kind: str
    told: str
    is_summed: bool = False

    def __str__(self) -> str:
        summed = ", its sum made anew" if self.is_summed else ""
        return f"{self.role} {self.key} ({self.kind}{summed}): {self.told}"


def role_of(key: str, data: bytes) -> str:
    """Return the role of an object."""
    name = key.split("/", 2)[-1]
    for start, role in (
        ("manifest/", "manifest"),
        ("snapshot/", "snapshot"),
        ("cursor/", "cursor"),
        ("pin/", "pin"),
        ("gc/", "plan"),
        ("log/", "fragment"),
    ):
        if name.startswith(start):
            return role
    if name.startswith("epoch/"):
        try:
            is_fence = isinstance(decode_link(data, path=name), FenceLink)
        except TidelogError:
            return "slot"
        return "fence" if is_fence else "data"
    return "other"


def mutate(specimen: Specimen, dice: random.Random) -> tuple[dict[str, bytes], list[Mutation]]:
    """Return a specimen's objects with one or two changes, and the changes."""
    objects, done = dict(specimen.objects), list[Mutation]()
    roles: dict[str, list[str]] = {}
    for key, data in objects.items():
        roles.setdefault(role_of(key, data), []).append(key)
    wanted = 2 if dice.random() < 0.1 else 1
    while len(done) < wanted:
        names = list(roles)
        (role,) = dice.choices(names, [WEIGHTS.get(name, 1) for name in names])
        key = dice.choice(roles[role])
        if key in objects:
            done += _change(dice, objects, key, role, roles[role])
    return objects, done


def _change(
    dice: random.Random, objects: dict[str, bytes], key: str, role: str, alike: list[str]
) -> list[Mutation]:
    """Change an object, or exchange two. Return no change if the bytes stayed the same."""
    if dice.random() < 0.15:
        return _change_whole(dice, objects, key, role, alike)
    data, is_summed = objects[key], False
    kind = "bytes"
    changed = change_bytes(dice, data) if dice.random() < 0.3 else None
    if changed is None:
        is_summed = dice.random() < 0.6
        is_parquet = key.endswith(".parquet")
        kind = "parquet" if is_parquet else "json"
        try:
            how = change_parquet if is_parquet else change_json
            changed = how(dice, data, sum_anew=is_summed)
        except UNREADABLE:  # An earlier change made it unreadable.
            return []
    if changed is None or changed[1] == data:
        return []
    objects[key] = changed[1]
    return [Mutation(key=key, role=role, kind=kind, told=changed[0], is_summed=is_summed)]


def _change_whole(
    dice: random.Random, objects: dict[str, bytes], key: str, role: str, alike: list[str]
) -> list[Mutation]:
    """Delete an object, copy it to another place, or exchange two; mostly of one role."""
    kind = dice.choice(["lost", "copied", "swapped", "strayed"])
    others = [other for other in (alike if dice.random() < 0.7 else list(objects)) if other != key]
    if kind == "lost":
        del objects[key]
        return [Mutation(key=key, role=role, kind=kind, told="it is gone")]
    if kind == "strayed":
        place = _stray_place(dice, key)
        if place in objects:
            return []
        objects[place] = objects[key]
        return [Mutation(key=place, role=role, kind=kind, told=f"a copy of {key}")]
    others = [other for other in others if objects.get(other, objects[key]) != objects[key]]
    if not others:
        return []
    other = dice.choice(others)
    if kind == "copied":
        objects[key] = objects[other]
        return [Mutation(key=key, role=role, kind=kind, told=f"it is a copy of {other}")]
    told = f"they changed places: {other}"
    role_there = role_of(other, objects[other])
    objects[key], objects[other] = objects[other], objects[key]
    return [
        Mutation(key=key, role=role, kind=kind, told=told),
        Mutation(key=other, role=role_there, kind=kind, told=f"they changed places: {key}"),
    ]


def _stray_place(dice: random.Random, key: str) -> str:
    """Return an empty place close by, as a typing error might choose it."""
    folder, _, name = key.rpartition("/")
    log = "/".join(key.split("/")[:2])
    beside: Mapping[str, str] = {
        "cursor": f"{log}/cursor/{dice.choice(['x', 'x-y', 'compaction', 'X.Y'])}.json",
        "pin": f"{log}/pin/{dice.choice(['x', 'x-y', 'new'])}.json",
        "next": f"{folder}/{_next_name(name)}",
        "copy": f"{key}.bak",
        "plan": f"{log}/gc/GARBAGE",
        "other": f"{log}/notes.txt",
    }
    return dice.choice(list(beside.values()))


def _next_name(name: str) -> str:
    stem, dot, end = name.rpartition(".")
    digits = stem[-16:]
    try:
        return f"{stem[:-16]}{int(digits, 16) + 1:016x}{dot}{end}"
    except ValueError:
        return f"{name}1"
