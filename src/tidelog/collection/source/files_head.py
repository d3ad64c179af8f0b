"""The files of a source at one time: the files of a listing, without those it ignores. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tidelog.collection.source.binding import AddressRange, FileRange, Taken
from tidelog.store.patterns import literal_parts, matches
from tidelog.store.port import Entry

# Suffixes by which Hadoop, rsync, browsers, copy tools and editors mark unfinished or backup files.
UNFINISHED: Final = (
    ".tmp",
    ".temp",
    "._COPYING_",
    ".crc",
    ".part",
    ".partial",
    ".filepart",
    ".crdownload",
    ".download",
    ".inprogress",
    ".pending",
    ".pendingset",
    ".swp",
    ".swo",
    ".swx",
    "~",
    "#",
)


@dataclass(frozen=True)
class FilesHead:
    """The files of a listing, in the order of their paths, with their sizes.

    Units: ``listed_us`` is the time at which the listing began, on the monotonic clock. ``empty``
        are the files without bytes.
    """

    entries: tuple[Entry, ...]
    listed_us: int = 0
    empty: frozenset[str] = frozenset()

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Return the size of each file, in bytes."""
        return {entry.key: entry.size_bytes for entry in self.entries}

    @cached_property
    def tags(self) -> Mapping[str, str]:
        """Return the version of each file."""
        return {entry.key: entry.e_tag for entry in self.entries}

    def left_bytes(self, taken: Taken) -> int:
        left = 0
        for entry in self.entries:
            before = taken.get(entry.key)
            if before is None:
                left += entry.size_bytes
            else:
                left += max(0, entry.size_bytes - _file_bytes(before))
        return left

    def left_after(self, left_bytes: int, taken: Taken, ranges: Iterable[AddressRange]) -> int:
        for found in ranges:
            size = self.sizes.get(found.path, 0)
            before = taken.get(found.path)
            start = _file_bytes(before) if before is not None else 0
            left_bytes -= max(0, size - start) - max(0, size - _file_bytes(found))
        return left_bytes


def _file_bytes(found: AddressRange) -> int:
    return found.file_bytes if isinstance(found, FileRange) else found.limit


def each_once(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield each file once: by its own entry, or else by the first symbolic link to it."""
    seen = {entry.key for entry in entries if not entry.target}
    for entry in entries:
        if not entry.target or entry.target not in seen:
            yield entry
        seen.add(entry.target)


def is_asked_for(key: str, patterns: Sequence[str]) -> bool:
    """Return True if one of a source's patterns selects a file."""
    return any(matches(one, key) and not is_passed_over(key, one) for one in patterns)


def empty_places(
    places: Sequence[str], patterns: Sequence[str], entries: Sequence[Entry]
) -> list[str]:
    """Return the places whose pattern selects none of the listed files."""
    return [
        place
        for place, pattern in zip(places, patterns, strict=True)
        if not any(is_asked_for(entry.key, (pattern,)) for entry in entries)
    ]


def is_passed_over(key: str, pattern: str) -> bool:
    """Return True if a file is a tool's own, or is still being written, and not data.

    Such a file has a part of its path that begins with ``.`` or ``_`` and that the pattern does not
    name. Or it has a suffix of `UNFINISHED`, unless the pattern ends with one too.
    """
    named = literal_parts(pattern)
    parts = key.split("/")
    # A part "." or ".." does not hide a file: the source reports such an object, which no request
    # can name.
    if any(part.startswith((".", "_")) and part not in (".", "..") for part in parts[named:]):
        return True
    return key.endswith(UNFINISHED) and not pattern.endswith(UNFINISHED)
