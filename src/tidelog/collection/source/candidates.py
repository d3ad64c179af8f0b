"""The choice of the files to survey next, by a listing and the source's progress. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.collection.formats.packed.packed import PACKED_RATIO, is_packed
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.moves import known_identity, with_identity
from tidelog.collection.source.surveyed import WENT, FileCandidate, FileSurvey
from tidelog.store.port import Entry, is_version

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
