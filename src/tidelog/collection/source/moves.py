"""Moves: files that were taken under another name than they have now. Pure.

A file that is new, and begins as one did that was taken and is gone, is that one, if it also goes
on as that did, and has its date, or its identity where the disk tells that (else, if it has grown):
none of it is taken again. Otherwise it is another file with the same bytes in it, whose rows would
be lost: it is taken, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidelog.collection.source.binding import CLOSED, FileRange
from tidelog.collection.source.surveyed import FileCandidate, FileSurvey
from tidelog.store.port import is_version

ALIKE_BYTES_MIN = 1_024  # Of less, two objects are often as long as each other.

Beginning = tuple[int, bytes]  # How many bytes a file's beginning has, and their sum.


@dataclass(slots=True)
class Moves:
    """What a process found to be moved, until it is recorded, and what there is to tell of it."""

    found: dict[str, FileRange] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def standing(
        self, taken: Mapping[str, FileRange], sizes: Mapping[str, int]
    ) -> Mapping[str, FileRange]:
        """Return the frontier with what is moved, of files that are there and not recorded yet."""
        names = names_by_path(taken) if self.found else {}
        for path, found in list(self.found.items()):
            # Other ingesters, whose listings are older, go on under the name that it had.
            last = _last(names.get(found.moved, (found.moved,)), taken)
            if path in taken or path not in sizes or last.limit != found.limit:
                del self.found[path]
        return {**taken, **self.found, **returned(taken, sizes)}

    def learn(
        self,
        asked: FileCandidate,
        alike: Sequence[FileRange],
        *,
        identity: str,
        skipped: frozenset[str],
    ) -> bool:
        """Remember what a file is that goes on like some that are gone; say whether it is one.

        Its ``identity`` is "" where that is not known. It is none that was ``skipped``: such a file
        is taken under another name, as users are told.
        """
        # Of several that are alike, one is the file that is gone, and the others are copies.
        names = {found.moved: path for path, found in self.found.items()}
        same = [
            gone
            for gone in alike
            if gone.path not in skipped
            and is_same_file(asked, gone, identity)
            and (gone.path not in names or identity == known_identity(gone) != "")
        ]
        if same:
            before = max(same, key=lambda gone: gone.limit)
            # It may have had another name for a moment, which nothing records.
            brief = self.found.pop(before.path, None)
            moved = before.path if brief is None else brief.moved
            other = self.found.get(names.get(moved, ""))
            if other is not None and known_identity(other) != identity:
                del self.found[other.path]  # It is the copy.
            self.found[asked.path] = msgspec.structs.replace(
                before,
                path=asked.path,
                e_tag=with_identity(asked.e_tag, identity),
                size_bytes=asked.size_bytes,
                late=0,
                reached=CLOSED,
                moved=moved,
                unread=1,
            )
            self.notes[asked.path] = f"it is {moved!r}, which was taken, under another name"
        elif alike:
            self._doubt(asked, alike[0])
        return bool(same)

    def doubt_objects(
        self,
        new: Sequence[FileSurvey],
        taken: Mapping[str, FileRange],
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

    def _doubt(self, asked: FileCandidate, before: FileRange) -> None:
        self.notes[asked.path] = (
            f"it is taken, though it may be {before.path!r}, which was taken and is gone: then its "
            "rows are there twice"
        )


def gone_by_beginning(
    taken: Mapping[str, FileRange], sizes: Mapping[str, int]
) -> Mapping[Beginning, Sequence[FileRange]]:
    """Return what was taken and is gone, under all names that it had, by how it begins."""
    names = names_by_path(taken)
    gone: dict[Beginning, list[FileRange]] = {}
    for path, found in taken.items():
        had = names.get(path, (path,))
        # Of no records, or of what was taken on under another name, none can be taken twice.
        if not found.head or found.limit <= len(found.header) or _last(had, taken) is not found:
            continue
        if not any(name in sizes for name in had):
            gone.setdefault((found.head_bytes, found.head), []).append(found)
    return gone


def returned(taken: Mapping[str, FileRange], sizes: Mapping[str, int]) -> Mapping[str, FileRange]:
    """Return what is in of files that have a former name again, where more was taken since.

    Whether they go on as that did is looked at as of any file whose date is another.
    """
    back: dict[str, FileRange] = {}
    for path, had in names_by_path(taken).items():
        last = _last(had, taken)
        if path in sizes and last.path not in sizes and last.limit > taken[path].limit:
            moved, late = taken[path].moved or last.path, taken[path].late
            back[path] = msgspec.structs.replace(
                last, path=path, late=late, reached=CLOSED, moved=moved, unread=1
            )
    return back


def named_twice(taken: Mapping[str, FileRange], sizes: Mapping[str, int]) -> set[str]:
    """Return the names in a listing of files that were moved, of which it has several names."""
    families = {id(names): names for names in names_by_path(taken).values()}
    listed = ([name for name in names if name in sizes] for names in families.values())
    return {name for names in listed if len(names) > 1 for name in names}


def names_by_path(taken: Mapping[str, FileRange]) -> Mapping[str, Sequence[str]]:
    """Return the names that files had which were moved, by each of them."""
    names: dict[str, list[str]] = {}
    for path, found in taken.items():
        if found.moved in taken:
            ours, theirs = (names.get(name, [name]) for name in (path, found.moved))
            if ours is not theirs:
                joined = [*ours, *theirs]
                names |= dict.fromkeys(joined, joined)
    return names


def _last(names: Sequence[str], taken: Mapping[str, FileRange]) -> FileRange:
    """Return what was taken last of a file, under whichever of its names."""
    return max((taken[name] for name in names), key=lambda found: found.limit)


def is_same_file(asked: FileCandidate, before: FileRange, identity: str) -> bool:
    """Say whether a file is one that was taken, and of which it has all that was.

    One with the date that it had is. Of others their identities say it, where both are known; where
    not, one that has grown is.
    """
    if asked.size_bytes == before.size_bytes and is_version(asked.e_tag, before.e_tag):
        return True
    known = known_identity(before)
    return identity == known if identity and known else asked.size_bytes > before.size_bytes


def known_identity(found: FileRange) -> str:
    """Return which file of its disk a range is of, as it was bound; "" where that is not known."""
    return found.e_tag.rpartition("|")[0]  # See `identified`.


def with_identity(e_tag: str, identity: str) -> str:
    """Return a file's date with the identity of the file beside it, where that is known.

    It stands where a store that numbers versions has the number: `is_version` knows both.
    """
    return f"{identity}|{e_tag.rpartition('|')[2]}" if identity else e_tag
