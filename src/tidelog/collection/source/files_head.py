"""The files of a source at one time, and the choice of those to survey next. Pure.

The files are those of a listing, without those that the source ignores. A source must not read
files that are written into its own location.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Final

from tidelog.collection.formats.packed.packed import PACKED_RATIO, is_packed
from tidelog.collection.source.binding import AddressRange, FileRange, Taken
from tidelog.collection.source.moves import known_identity, with_identity
from tidelog.collection.source.survey_facts import WENT, FileCandidate, FileSurvey
from tidelog.errors import UsageError
from tidelog.store.keys import is_version, literal_parts, matches
from tidelog.store.port import Entry
from tidelog.store.urls import names_of, split_glob, split_query

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
                "the location is in the source's folder, so the source would read its own output: "
                "move the location, or name the files by a pattern, such as '*.jsonl'"
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


# The text to survey of one compressed file, unless a quarter of the tick is more. Several files
# are surveyed at once, so one must not use up the whole tick.
PACKED_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class SurveyMemory:
    """The results of earlier surveys in this process, so that it does not repeat useless ones.

    Shape: ``checked`` has the version of each file that was found to continue its bound bytes.
        ``stalled`` has each file of which nothing can be bound: the offset, the version and the
        reason. Its reason is "" if the listing was older than the progress.
    """

    checked: dict[str, str] = field(default_factory=dict)
    stalled: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    @property
    def waiting(self) -> dict[str, str]:
        return {path: why for path, (_, _, why) in self.stalled.items() if why}

    def learn(self, survey: FileSurvey) -> None:
        """Remember the result of a survey."""
        asked, found = survey.candidate, survey.found
        if asked.checked and found.waits is None:
            self.checked[asked.path] = asked.e_tag
        if survey.is_empty and found.waits is None and asked.start < asked.limit:
            # The listing is older than the progress. The next listing has another version.
            self.stalled[asked.path] = asked.start, asked.e_tag, ""
        elif found.waits is not None and survey.knows_all:
            # The next survey would begin at this offset, read the same bytes and find the same.
            self.stalled[asked.path] = survey.limit, asked.e_tag, found.waits

    def is_checked(self, entry: Entry, before: FileRange) -> bool:
        """Return True if a file continues its bound bytes, by its version or by a survey."""
        bound = with_identity(before.e_tag, known_identity(before))
        return is_version(entry.e_tag, bound) or self.checked.get(entry.key) == entry.e_tag

    def forget(self, sizes: Mapping[str, int], taken: Mapping[str, FileRange]) -> None:
        """Forget the stalled files that are no longer listed, or are bound to their end.

        Also forget those that had disappeared: if they are listed again, they may be readable.
        """
        for path, (_, _, why) in list(self.stalled.items()):
            before = taken.get(path)
            is_whole = before is not None and before.file_bytes >= sizes.get(path, 0)
            if why == WENT or path not in sizes or is_whole:
                del self.stalled[path]

    def is_stalled(self, entry: Entry, start: int) -> bool:
        """Return True if an earlier survey found nothing to bind in this version from ``start``."""
        known = self.stalled.get(entry.key)
        if known is None:
            return False
        if known[:2] == (start, entry.e_tag):
            return True
        # The file has another version now, or the progress has moved to another offset.
        del self.stalled[entry.key]
        return False


def choose_candidates(
    entries: Iterable[Entry],
    taken: Mapping[str, FileRange],
    known: SurveyMemory,
    *,
    bytes_max: int,
    block_bytes: int,
    format: str,
) -> tuple[list[FileCandidate], bool]:
    """Return the candidates for a survey, in the order of the listing, of about ``bytes_max``.

    The second result is True if no other file has new bytes. Compressed files do not count there:
    only a survey finds how much text they have.
    """
    found: list[FileCandidate] = []
    left = bytes_max
    for entry in entries:
        before = taken.get(entry.key)
        if before is not None and _is_done(entry, before, known):
            continue
        start = before.limit if before is not None else 0
        if known.is_stalled(entry, start):
            continue
        if left <= 0:
            return found, False
        unknown = is_packed(entry.key, format)
        size = start + max(PACKED_BYTES, left // 4) if unknown else entry.size_bytes
        limit = max(start, min(size, start + left))
        found.append(
            FileCandidate(
                path=entry.key,
                start=start,
                limit=limit,
                size_bytes=entry.size_bytes,
                e_tag=entry.e_tag,
                before=before,
                checked=before is not None and not known.is_checked(entry, before),
                block_bytes=block_bytes,
            )
        )
        left -= min(limit - start, PACKED_RATIO * entry.size_bytes) if unknown else limit - start
        if limit < entry.size_bytes and not unknown:
            return found, False
    return found, True


def _is_done(entry: Entry, before: FileRange, known: SurveyMemory) -> bool:
    return before.file_bytes >= entry.size_bytes and known.is_checked(entry, before)
