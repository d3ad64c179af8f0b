"""Which files may be taken from next, by a listing and what was taken before. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.collection.formats.packed.packed import PACKED_RATIO, is_packed
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.moves import known_identity, with_identity
from tidelog.collection.source.surveyed import WENT, FileCandidate, FileSurvey
from tidelog.store.port import Entry, is_version

# So much of a compressed file's text, or a share of a larger tick: several are read at once.
PACKED_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class Known:
    """What a process remembers of its surveys, so that it asks for none twice in vain.

    Shape: by path, the version that was found to go on as it was taken; and of files of which
        nothing can be taken, from where on, in which version, and why not yet.
    """

    checked: dict[str, str] = field(default_factory=dict)
    stalled: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    @property
    def waiting(self) -> dict[str, str]:
        return {path: why for path, (_, _, why) in self.stalled.items() if why}

    def learn(self, survey: FileSurvey) -> None:
        """Remember what a survey found."""
        asked, found = survey.candidate, survey.found
        if asked.checked and found.waits is None:
            self.checked[asked.path] = asked.e_tag
        if survey.is_empty and found.waits is None and asked.start < asked.limit:
            # The listing is older than what was taken: the next one will know.
            self.stalled[asked.path] = asked.start, asked.e_tag, ""
        elif found.waits is not None and survey.knows_all:
            # From where the next survey would begin, of the same bytes, it would find the same.
            self.stalled[asked.path] = survey.limit, asked.e_tag, found.waits

    def is_checked(self, entry: Entry, before: FileRange) -> bool:
        """Return True if a file is known to go on as it was taken: by its version, or a survey."""
        bound = with_identity(before.e_tag, known_identity(before))
        return is_version(entry.e_tag, bound) or self.checked.get(entry.key) == entry.e_tag

    def forget(self, sizes: Mapping[str, int], taken: Mapping[str, FileRange]) -> None:
        """Forget of files that wait, those that are gone, or were taken whole after all.

        One that went, and is listed, may be there again as it was.
        """
        for path, (_, _, why) in list(self.stalled.items()):
            before = taken.get(path)
            is_whole = before is not None and before.file_bytes >= sizes.get(path, 0)
            if why == WENT or path not in sizes or is_whole:
                del self.stalled[path]

    def is_stalled(self, entry: Entry, start: int) -> bool:
        """Say whether nothing more of a file can be taken, as far as is known."""
        known = self.stalled.get(entry.key)
        if known is None:
            return False
        if known[:2] == (start, entry.e_tag):
            return True
        # It is another file now, or another part of it was taken than all that there was.
        del self.stalled[entry.key]
        return False


def choose_candidates(
    entries: Iterable[Entry],
    taken: Mapping[str, FileRange],
    known: Known,
    *,
    bytes_max: int,
    block_bytes: int,
    format: str,
) -> tuple[list[FileCandidate], bool]:
    """Choose what to look into, in the order of the listing, of about ``bytes_max``.

    Also say whether there is nothing else that is new, but for more of compressed files, of which
    only a survey knows how much they hold.
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


def _is_done(entry: Entry, before: FileRange, known: Known) -> bool:
    return before.file_bytes >= entry.size_bytes and known.is_checked(entry, before)
