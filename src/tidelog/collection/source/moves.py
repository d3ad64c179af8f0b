"""Moves: files that were taken under another name than they have now. Pure.

A file that is new, and begins as one did that was taken and is gone, is that one, if it also goes
on as that did, and has its date or has grown: none of it is taken again. With the same bytes and
another date it may as well be another file, whose rows would be lost: it is taken, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidelog.collection.source.binding import CLOSED, SourceRange
from tidelog.collection.source.surveyed import FileCandidate, FileSurvey

ALIKE_BYTES_MIN = 1_024  # Of less, two objects are often as long as each other.

Beginning = tuple[int, bytes]  # How many bytes a file's beginning has, and their sum.


@dataclass(slots=True)
class Moves:
    """What a process found to be moved, until it is recorded, and what there is to tell of it."""

    found: dict[str, SourceRange] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def standing(
        self, taken: Mapping[str, SourceRange], sizes: Mapping[str, int]
    ) -> Mapping[str, SourceRange]:
        """Return the frontier with what is moved, of files that are there and not recorded yet."""
        for path in list(self.found):
            if path in taken or path not in sizes:
                del self.found[path]
        return {**taken, **self.found} if self.found else taken

    def learn(self, asked: FileCandidate, alike: Sequence[SourceRange]) -> bool:
        """Remember what a file is that goes on like some that are gone; say whether it is one."""
        # Of several that are alike, one is the file that is gone, and the others are copies.
        again = {found.moved for found in self.found.values()}
        same = [g for g in alike if is_dated_so(asked, g) and g.path not in again]
        if same:
            before = max(same, key=lambda gone: gone.limit)
            self.found[asked.path] = msgspec.structs.replace(
                before,
                path=asked.path,
                e_tag=asked.e_tag,
                size_bytes=asked.size_bytes,
                late=0,
                reached=CLOSED,
                moved=before.path,
                unread=1,
            )
            self.notes[asked.path] = f"it is {before.path!r}, which was taken, under another name"
        elif alike:
            self._doubt(asked, alike[0])
        return bool(same)

    def doubt_objects(
        self,
        new: Sequence[FileSurvey],
        taken: Mapping[str, SourceRange],
        sizes: Mapping[str, int],
    ) -> None:
        """Remember which objects are as long as ones that are gone: more is not known of them."""
        if not new:
            return
        gone = {
            found.size_bytes: found
            for path, found in taken.items()
            if path not in sizes and found.size_bytes >= ALIKE_BYTES_MIN
        }
        for one in new:
            if (before := gone.get(one.candidate.size_bytes)) is not None:
                self._doubt(one.candidate, before)

    def _doubt(self, asked: FileCandidate, before: SourceRange) -> None:
        self.notes[asked.path] = (
            f"it is taken, though it may be {before.path!r}, which was taken and is gone: then its "
            "rows are there twice"
        )


def gone_by_beginning(
    taken: Mapping[str, SourceRange], sizes: Mapping[str, int]
) -> Mapping[Beginning, Sequence[SourceRange]]:
    """Return what was taken and is gone, and was not found again, by how it begins."""
    again = {found.moved for found in taken.values() if found.moved}
    gone: dict[Beginning, list[SourceRange]] = {}
    for path, found in taken.items():
        has_records = found.head and found.limit > len(found.header)
        if path not in sizes and path not in again and has_records:
            gone.setdefault((found.head_bytes, found.head), []).append(found)
    return gone


def is_dated_so(asked: FileCandidate, before: SourceRange) -> bool:
    """Say whether a file has the date of one that was taken, or has grown since."""
    return asked.size_bytes > before.size_bytes or asked.e_tag == before.e_tag
