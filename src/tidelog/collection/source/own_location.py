"""A check against loops: a source must not read files that are written into its own location."""

from __future__ import annotations

from itertools import product
from typing import Final

from tidelog.errors import UsageError
from tidelog.store.patterns import literal_parts, matches
from tidelog.store.port import Entry
from tidelog.store.urls import names_of, split_glob, split_query

WRITTEN: Final = (
    "tidelog.json",
    "status/x.json",
    "shard/x/part/0/x.parquet",
    "log/x/cursor/x.json",
)


def refuse_own_location(url: str, pattern: str, location_url: str) -> None:
    """Check that a source reads no file that is written into its own location.

    Raises:
        UsageError: a pattern of the source matches such a file.
    """
    if location_url.startswith("memory:"):
        return  # It has no files.
    # A listing follows symbolic links, so each place is compared under all of its names.
    if url.startswith("file:"):
        parts = pattern.split("/")
        depth = min(literal_parts(pattern), len(parts) - 1)
        url, pattern = _folder(url) + "/".join(parts[:depth]), "/".join(parts[depth:])
    for around, within in product(names_of(url), names_of(split_glob(location_url)[0])):
        inner = _inner(within, around)
        if inner is not None and any(matches(pattern, f"{inner}{name}") for name in WRITTEN):
            raise UsageError(
                "the location is in the source's folder, so the source would read its own "
                "output: move the location, or give the files with a pattern, such as '*.jsonl'"
            )


def leads_into(entry: Entry, root: str) -> bool:
    """Return True if an entry is a symbolic link to a file below the location at ``root``."""
    return bool(root) and entry.target.startswith(f"{root}/")


def _inner(within: str, around: str) -> str | None:
    """Return the path of ``within`` relative to ``around``; None if it is not inside."""
    inside, outside = (_folder(split_query(url)[0]) for url in (within, around))
    return inside.removeprefix(outside) if inside.startswith(outside) else None


def _folder(place: str) -> str:
    """Return a URL with one slash at its end; the root of a disk has it already."""
    return place if place == "file:///" else f"{place.rstrip('/')}/"
