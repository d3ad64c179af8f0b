"""Moves: files that were ingested under another name than they have now. Pure.

A new file may be a moved one: some ingested file is no longer at its path, and the new file has all
of its bound bytes. It is the same file if it also has the same date, or the same identity (see
`store.local.identity`). If an identity is unknown, it is the same file if it has grown. The
ingester then does not ingest its bytes again.
Otherwise it may be another file with the same bytes, whose rows would be lost. So it is ingested,
and a note reports that its rows may exist twice.

A log is rotated: the file at ``app.log`` gets another name, and a new file takes its place. The
remap shard holds one row per path, so the row of the former file moves to the file's new path. If
the source no longer has that file, the row moves to a former path, which no file can have.
Source: decision 26.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidelog.collection.formats.packed.packed import codec_of, decode_packed
from tidelog.collection.source.binding import ANY_TIME, CLOSED, FileRange
from tidelog.collection.source.survey_facts import FileCandidate, FileSurvey

OTHER: Final = (
    "it is a different file from the one ingested under this name, or was rewritten: it is "
    "ingested from its start, so rows that both files have occur twice"
)
Beginning = tuple[int, bytes]  # How many bytes a file's beginning has, and their sum.


@dataclass(frozen=True, slots=True)
class ReplacedPath:
    """A path that has another file now: the new file's listed version, and the displaced row.

    ``proven`` is True if the file of the row is known to be at another path.
    """

    e_tag: str
    row: FileRange
    proven: bool


@dataclass(slots=True)
class Moves:
    """The moves that a process found, until a binding records them, and its notes on files.

    ``replaced`` has the paths whose file is another one than that of the recorded row.
    """

    found: dict[str, FileRange] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, ReplacedPath] = field(default_factory=dict)

    def progress(
        self,
        taken: Mapping[str, FileRange],
        sizes: Mapping[str, int],
        tags: Mapping[str, str],
    ) -> Mapping[str, FileRange]:
        """Return the progress with the moves that are found but not recorded yet.

        Moves that the listing or the recorded progress contradicts are forgotten first.
        """
        for path, other in list(self.replaced.items()):
            if taken.get(path) != other.row or tags.get(path) != other.e_tag:
                del self.replaced[path]
                self.found.pop(path, None)
        known = displaced(taken, self.replaced)
        names = names_by_path(known) if self.found else {}
        for path, found in list(self.found.items()):
            # Another ingester with an older listing may have bound more under the old name.
            is_known = found.moved in known and path not in known and path in sizes
            is_known &= may_be_one(known_identity(found), identity_in(tags.get(path, "")))
            if not is_known or _last(names.get(found.moved, (found.moved,)), known).limit != (
                found.limit
            ):
                del self.found[path]
        return {**known, **self.found, **returned(known, sizes)}

    def replace(self, path: str, e_tag: str, row: FileRange, *, proven: bool) -> None:
        """Remember that a listing shows another file at the path of a row.

        Unless it is ``proven`` that the file of the row is elsewhere, the two files may share rows,
        and a note reports that.
        """
        self.replaced[path] = ReplacedPath(e_tag, row, proven)
        if proven:
            self._shares_none(path)
        else:
            self.notes[path] = OTHER

    def is_elsewhere(self, path: str) -> bool:
        """Return True if the file of a former path exists at a path that is not surveyed yet."""
        displaced_by = self.replaced.get(shown_path(path))
        return (
            displaced_by is not None
            and displaced_by.proven
            and former_path(displaced_by.row) == path
        )

    def _shares_none(self, path: str) -> None:
        if self.notes.get(path) == OTHER:
            del self.notes[path]

    def count_as_grown(self, path: str) -> None:
        """Note that a file has the path and all bound bytes of another one, and counts as that."""
        self.notes[path] = (
            "it was replaced by a file that begins with all its ingested bytes, and counts as "
            "the same file: if it is a different file, its first rows are missing"
        )

    def learn(
        self,
        asked: FileCandidate,
        alike: Sequence[FileRange],
        *,
        identity: str,
        skipped: Collection[str],
        kin: Collection[str] = (),
    ) -> bool:
        """Decide which missing file a new one is, and remember the move; True if it is one.

        Shape: ``alike`` are the missing files whose bound bytes the new file has. ``identity`` is
            that of the new file, "" if unknown. A file that was ``skipped`` does not count, so it
            is ingested under another name. A file at a path of ``kin`` counts without a comparison
            of date and identity.
        """
        # If several new files have the bytes of a missing one, one is that file, and the others
        # are copies.
        names = {found.moved: path for path, found in self.found.items()}
        same = [
            gone
            for gone in alike
            if not is_skipped(gone, skipped)
            and (gone.path in kin or is_same_file(asked, gone, identity))
            and (gone.path not in names or identity == known_identity(gone) != "")
        ]
        if same:
            before = max(same, key=lambda gone: gone.limit)
            # If the file has moved twice since the last binding, record only the last move.
            brief = self.found.pop(before.path, None)
            moved = before.path if brief is None else brief.moved
            other = self.found.get(names.get(moved, ""))
            if other is not None and known_identity(other) != identity:
                del self.found[other.path]  # That file is the copy.
                self.notes.pop(other.path, None)
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
            shown = shown_path(moved)
            self.notes[asked.path] = (
                f"it is {shown!r} under another name, so its rows are already ingested"
            )
            # The former file of the path is found here, so the file now there shares no rows.
            self._shares_none(shown)
        elif alike:
            self.doubt(asked, alike[0])
        return bool(same)

    def doubt_objects(
        self,
        new: Sequence[FileSurvey],
        taken: Mapping[str, FileRange],
        sizes: Mapping[str, int],
    ) -> None:
        """Note the new objects with the size of a missing one, as possible copies.

        An object is not read before it is bound, so only its size can be compared.
        """
        if not new:
            return
        gone = {found.size_bytes: found for path, found in taken.items() if path not in sizes}
        for one in new:
            before = gone.get(one.candidate.size_bytes)
            if before is not None and one.candidate.path not in self.replaced:
                self.doubt(one.candidate, before)

    def doubt(self, asked: FileCandidate, before: FileRange, *, is_gone: bool = True) -> None:
        """Note that a file may have the rows of another file that was ingested."""
        gone = "was ingested and no longer exists" if is_gone else "was ingested"
        self.notes[asked.path] = (
            f"it is ingested, but may be the file {shown_path(before.path)!r}, which {gone}: then "
            "its rows occur twice"
        )


def gone_by_beginning(
    taken: Mapping[str, FileRange], sizes: Mapping[str, int]
) -> Mapping[Beginning, Sequence[FileRange]]:
    """Return the ingested files that are at none of their names, by their beginnings."""
    names = names_by_path(taken)
    return _by_beginning(
        found
        for found in _last_rows(taken, names)
        if not any(name in sizes for name in names.get(found.path, (found.path,)))
    )


def kin_by_beginning(
    taken: Mapping[str, FileRange], sizes: Mapping[str, int], new: Sequence[FileSurvey]
) -> Mapping[Beginning, Sequence[FileRange]]:
    """Return the existing files of which a new one may be a copy, or the reverse, by beginnings.

    They have the family name and the first record of a new file. Other new files may be among them.
    """
    own = [one.range_until(None, late=0, time_max=ANY_TIME, reached=CLOSED) for one in new]
    firsts = Counter((begin, family_of(row.path)) for row in own for begin in beginnings_of(row))
    begins = {begin for begin, _ in firsts}
    twice = {path for path, count in firsts.items() if count > 1}
    kin = [
        row
        for row in _last_rows(taken, names_by_path(taken))
        if row.path in sizes
        and any(
            begin in begins and (begin, family_of(row.path)) in firsts
            for begin in beginnings_of(row)
        )
    ]
    kin += [
        row
        for row in own
        if twice and any((begin, family_of(row.path)) in twice for begin in beginnings_of(row))
    ]
    return _by_beginning(kin)


def beginnings_of(row: FileRange) -> list[Beginning]:
    """Return the beginning of a row's file, and if it is compressed, that of its text."""
    packed = decode_packed(row.packed)
    begins = [(row.head_bytes, row.head)]
    if packed is not None and packed.text_head:
        begins.append((packed.text_head_bytes, packed.text_head))
    return begins


def _last_rows(
    taken: Mapping[str, FileRange], names: Mapping[str, Sequence[str]]
) -> Iterator[FileRange]:
    for path, found in taken.items():
        # A row without records, or one that a newer row of the same file continues, has no rows
        # that could be ingested twice.
        has_records = found.head and found.limit > len(found.header)
        if has_records and _last(names.get(path, (path,)), taken) is found:
            yield found


def _by_beginning(rows: Iterable[FileRange]) -> Mapping[Beginning, Sequence[FileRange]]:
    found: dict[Beginning, list[FileRange]] = {}
    for row in rows:
        for begin in beginnings_of(row):
            found.setdefault(begin, []).append(row)
    return found


def returned(taken: Mapping[str, FileRange], sizes: Mapping[str, int]) -> Mapping[str, FileRange]:
    """Return rows for moved files that have a former name again.

    More of such a file was bound under the later name. So its row there gets the later progress.
    The next survey compares its bytes, because its version is not the one of the row.
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
    """Return the listed names of those moved files that a listing has under several names."""
    families = {id(names): names for names in names_by_path(taken).values()}
    listed = ([name for name in names if name in sizes] for names in families.values())
    return {name for names in listed if len(names) > 1 for name in names}


def _last(names: Sequence[str], taken: Mapping[str, FileRange]) -> FileRange:
    """Return the row of a file with the most progress, among all of its names."""
    return max((taken[name] for name in names), key=lambda found: found.limit)


def is_same_file(asked: FileCandidate, before: FileRange, identity: str) -> bool:
    """Return True if a file with all bound bytes of a row is the row's file, not a copy.

    It is if size and date are equal. Otherwise the identities decide, if both are known. If not, a
    file that has grown counts as the same.
    """
    if asked.size_bytes == before.size_bytes and date_of(asked.e_tag) == date_of(before.e_tag):
        return True
    known = known_identity(before)
    return identity == known if identity and known else asked.size_bytes > before.size_bytes


def may_be_one(identity: str, other: str) -> bool:
    """Return False if both identities are known and differ."""
    return not identity or not other or identity == other


def identity_in(e_tag: str) -> str:
    """Return the identity in the version of a local file; "" if it is unknown.

    An older version of tidelog put the number of the device first. A later mount may change that.
    """
    return ".".join(e_tag.rpartition("|")[0].split(".")[-3:])


def known_identity(found: FileRange) -> str:
    """Return the identity of a range's file, as it was bound; "" if it is unknown."""
    return identity_in(found.e_tag)


def date_of(e_tag: str) -> str:
    """Return the part of a version that each listing shows; for a local file, time and size."""
    return e_tag.rpartition("|")[2]


def with_identity(e_tag: str, identity: str) -> str:
    """Return the version of a local file with its identity, if that is known.

    A store that numbers versions puts the number in the same place; `is_version` handles both.
    """
    return f"{identity}|{date_of(e_tag)}" if identity else e_tag


def without_stale(
    sizes: Mapping[str, int],
    new: Iterable[FileCandidate],
    taken: Mapping[str, FileRange],
    tags: Mapping[str, str],
) -> Mapping[str, int]:
    """Return the sizes of a listing, without paths whose ingested file is now a ``new`` one.

    Such a path has another file now, so it must not hide that its former file has moved.
    """
    ours = {identity_in(asked.e_tag) for asked in new} - {""}
    stale = {
        path
        for path, found in taken.items()
        if path in sizes
        and (identity := known_identity(found)) in ours
        and identity_in(tags.get(path, "")) != identity
    }
    return {path: size for path, size in sizes.items() if path not in stale} if stale else sizes


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
