"""Generations: the files that had the same path, one after another. Pure.

A log is rotated: the file at ``app.log`` gets another name, and a new file takes its place. The
remap shard holds one row per path, so the row of the former file moves to the file's new path. If
the source no longer has that file, the row moves to a former path, which no file can have.

Source: decision 26.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tidelog.collection.formats.packed.packed import codec_of
from tidelog.collection.source.binding import CLOSED, FileRange

_FORMER: Final = "//"  # No store reads a path with an empty part, so no file has such a path.
_BACKUP: Final = re.compile(r"(~|\.(old|prev|bak|orig|save))+$")
_NUMBER: Final = re.compile(r"[-_.]\d[\d\-_.:T]*(?=\.|$)")


def former_path(found: FileRange) -> str:
    """Return the path of a range's file after another file has taken its path."""
    return f"{found.path}{_FORMER}{found.e_tag}"


def shown_path(path: str) -> str:
    """Return the name that a file had, of a former path too."""
    return path.partition(_FORMER)[0]


def is_skipped(found: FileRange, skipped: Collection[str]) -> bool:
    """Return True if a range is skipped: by its path, or by its path and version."""
    return found.path in skipped or former_path(found) in skipped


def family_of(path: str) -> str:
    """Return the part of a name that rotation keeps.

    Example: ``app.log``, of ``app.log.1``, ``app.log-20261125.gz``, ``app-2026-11-25.log``.
    """
    name = shown_path(path).rpartition("/")[2]
    if codec_of(name) is not None:
        name = name.rpartition(".")[0]
    return _NUMBER.sub("", _BACKUP.sub("", name))


def displaced(taken: Mapping[str, FileRange], paths: Iterable[str]) -> Mapping[str, FileRange]:
    """Return the frontier after other files have taken some paths."""
    formers = {path: former_path(taken[path]) for path in paths}
    if not formers:
        return taken
    known = dict(taken)
    for path, former in formers.items():
        known[former] = _renamed(known.pop(path), former)
    for path, found in known.items():
        if found.moved in formers:
            known[path] = msgspec.structs.replace(found, moved=formers[found.moved])
    return known


def record_displaced(
    ranges: Sequence[FileRange], taken: Mapping[str, FileRange], paths: Iterable[str]
) -> list[FileRange]:
    """Return the ranges of a binding in which other files take some of ``paths``.

    Shape: the rows of the files that had those paths come with them, unread, unless a later row of
        the same file exists. Late messages count by path, so a new file goes on with that count.
    """
    placed = {found.path for found in ranges}
    formers = {path: former_path(taken[path]) for path in paths}
    now = [path for path in formers if path in placed]
    later = {former: path for path, former in formers.items() if path not in placed}
    after = displaced(taken, now)
    rows = {
        found.path: msgspec.structs.replace(
            found,
            moved=later.get(found.moved, found.moved),
            late=found.late + (taken[found.path].late if found.path in now else 0),
        )
        for found in ranges
    }
    for path, found in after.items():
        if path not in rows and path in taken and found.moved != taken[path].moved:
            rows[path] = msgspec.structs.replace(found, reached=CLOSED, unread=1)
    names = names_by_path({**after, **rows})
    for path in now:
        former = after[formers[path]]
        others = [rows.get(name, after.get(name)) for name in names.get(former.path, ())]
        last = max((o.limit for o in others if o is not None and o.path != former.path), default=-1)
        if last < former.limit:
            rows[former.path] = former
            continue
        for name, found in rows.items():
            if found.moved == former.path:
                rows[name] = msgspec.structs.replace(found, moved=former.moved)
    return list(rows.values())


def _renamed(found: FileRange, path: str) -> FileRange:
    return msgspec.structs.replace(found, path=path, late=0, reached=CLOSED, unread=1)


def names_by_path(taken: Mapping[str, FileRange]) -> Mapping[str, Sequence[str]]:
    """Return all names of each file that was moved, by each of its names."""
    names: dict[str, list[str]] = {}
    for path, found in taken.items():
        if found.moved in taken:
            ours, theirs = (names.get(name, [name]) for name in (path, found.moved))
            if ours is not theirs:
                joined = [*ours, *theirs]
                names |= dict.fromkeys(joined, joined)
    return names
