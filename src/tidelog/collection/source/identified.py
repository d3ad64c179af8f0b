"""The search for moved files on a disk, by their identities and their bytes.

The decisions are in `moves`, which is pure. This module reads the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.packed.packed import codec_of, encode_packed, is_packed
from tidelog.collection.source.binding import FileRange, sum_of
from tidelog.collection.source.fetch import OpenedFile
from tidelog.collection.source.files_head import FilesHead
from tidelog.collection.source.moves import (
    Beginning,
    Moves,
    date_of,
    family_of,
    former_path,
    identity_in,
    is_same_file,
    known_identity,
    named_twice,
    names_by_path,
    shown_path,
    with_identity,
)
from tidelog.collection.source.survey import has_text_of, is_unchanged
from tidelog.collection.source.survey_facts import FileCandidate, FileSurvey
from tidelog.collection.source.survey_packed import read_text
from tidelog.core.clock import Clock, run_all
from tidelog.errors import CorruptionError, GoneError, ObjectNotFound
from tidelog.store.local.files import FileState, identity_of, is_beside, state_of, tag_at
from tidelog.store.port import Entry, Store
from tidelog.store.urls import local_path

_AT_ONCE: Final = 16
_HEAD_BYTES: Final = 64 * 1024  # Compressed bytes that surely contain the longest beginning.


@dataclass(frozen=True, slots=True)
class RenameSearch:
    """The result of a search: ``found`` is True if some file was ingested under another name.

    ``went`` are new files that have changed since the listing. They wait for the next listing.
    """

    found: bool
    went: tuple[FileCandidate, ...]


@dataclass(frozen=True, slots=True)
class _RenameCandidate:
    """A new file, its beginnings, and the rows of the missing files whose bound bytes it has."""

    one: FileSurvey
    file: OpenedFile
    begins: Sequence[Beginning]
    gone: Sequence[FileRange]
    identity: str


@dataclass(slots=True, kw_only=True)
class Search:
    """A search for files that were ingested under other names than they have now.

    Shape: ``gone`` are the files that are at none of their names. ``kin`` are existing files with
        the family name of a new one. ``listed`` are all listed names, also of empty files. ``tags``
        are the versions of the files that are not empty. ``is_complete`` is True if the survey has
        all new files.
    """

    gone: Mapping[Beginning, Sequence[FileRange]]
    kin: Mapping[Beginning, Sequence[FileRange]]
    moves: Moves
    info: SourceInfo
    skipped: Collection[str]
    listed: Collection[str]
    tags: Mapping[str, str]
    is_complete: bool
    store: Store
    clock: Clock

    async def run(self, new: Sequence[FileSurvey]) -> RenameSearch:
        """Find which of the new files were ingested before. Files that disappear meanwhile wait.

        Raises:
            LocationError: the store failed.
        """
        lengths, found = sorted({length for length, _ in (*self.gone, *self.kin)}), False
        went: list[FileCandidate] = []
        rest: list[_RenameCandidate] = []
        for one in new if lengths else ():
            file = OpenedFile(store=self.store, path=one.candidate.path, source=self.info.name)
            try:
                like = await self._alike(one, file, lengths)
            except GoneError:
                went.append(one.candidate)
                continue
            # First decide for files with the date or the identity of a missing one: each is that
            # file. Others with the same bytes are then known to be copies.
            if any(is_same_file(one.candidate, row, like.identity) for row in like.gone):
                found |= self._learn(like, ())
            else:
                rest.append(like)
        for like in rest if not found and not went else ():
            kin = [row.path for row in like.gone if self._is_kin(row, like.one.candidate)]
            if like.gone:
                found |= self._learn(like, kin)
            elif not await self._doubt_copies(like.one, like.file, self._others(like)):
                went.append(like.one.candidate)
        return RenameSearch(found, tuple(went))

    async def _alike(
        self, one: FileSurvey, file: OpenedFile, lengths: Sequence[int]
    ) -> _RenameCandidate:
        """Return a new file with the missing files whose bound bytes it has.

        Raises:
            GoneError: the file no longer exists. Or it is longer than its listing shows, and
                another ingester has bound the rest.
        """
        asked, other = one.candidate, self.moves.replaced.get(one.candidate.path)
        begins = await self._beginnings(one, file, lengths)
        gone = [
            like
            for before in _each(self.gone, begins)
            if (other is None or before.path != former_path(other.row))
            and (like := await self._like(before, one, file)) is not None
        ]
        if any(
            asked.size_bytes < like.file_bytes
            for like in gone
            if not self._has_other_form(like, asked)
        ):
            raise file.gone()
        if gone:
            await file.get(0, 1)
            if not await self._is_in_place(asked.path):
                raise file.gone()
        return _RenameCandidate(one, file, begins, gone, identity_in(asked.e_tag))

    async def _is_in_place(self, path: str) -> bool:
        """Return False if the path no longer has the file that the listing shows there."""
        gone = await replaced_since({path: self.tags.get(path, "")}, self.info.url, self.clock)
        return not gone

    def _learn(self, like: _RenameCandidate, kin: Collection[str]) -> bool:
        return self.moves.learn(
            like.one.candidate,
            like.gone,
            identity=like.identity,
            skipped=self.skipped,
            kin=kin,
        )

    def _others(self, like: _RenameCandidate) -> list[FileRange]:
        """Return the files of which a new one may be a copy.

        The file whose path the new one has taken is not among them: rotated logs may begin alike.
        """
        path = like.one.candidate.path
        others = [row for row in _each(self.kin, like.begins) if row.path != path]
        if path not in self.moves.replaced:
            return others
        return [
            row
            for row in others
            if shown_path(row.moved) != path
            and (row.path not in self.moves.found or self._is_whole_in(row, like.one.candidate))
        ]

    def _is_whole_in(self, before: FileRange, asked: FileCandidate) -> bool:
        """Return True if a new file can have all of another that is longer than a first record."""
        if self._has_other_form(before, asked):
            return True
        return before.head_bytes < before.limit <= asked.size_bytes

    async def _like(self, before: FileRange, one: FileSurvey, file: OpenedFile) -> FileRange | None:
        """Return the row, in the new file's form, if the file has its bound bytes; else None.

        The forms are compressed and plain: a tool may have compressed the file when it moved it.
        """
        asked, form = one.candidate, self.info.format
        if not self._has_other_form(before, asked):
            if before.file_bytes <= asked.size_bytes < before.size_bytes:
                return None
            if await is_unchanged(before, file, format=form):
                return before
            if not before.packed:
                return None
        if form == "parquet" or not before.is_summed:
            return None
        if not await has_text_of(before, file, format=form, clock=self.clock):
            return None
        return msgspec.structs.replace(
            before,
            head=one.found.head,
            head_bytes=one.found.head_bytes,
            packed=encode_packed(one.found.packed),
        )

    def _has_other_form(self, before: FileRange, asked: FileCandidate) -> bool:
        return bool(before.packed) != is_packed(asked.path, self.info.format)

    def _is_kin(self, before: FileRange, asked: FileCandidate) -> bool:
        """Return True if a file with the bytes of a missing one is that file, by name or date.

        A tool that compresses a log, or copies and truncates it, creates another inode, so
        identities differ. The file then has the date of the former one. Or it has its name except
        for a number or a suffix, and another or an empty file is at the former path.
        """
        if self.moves.is_elsewhere(before.path) and not self.is_complete:
            return False
        shown = shown_path(before.path)
        is_compressed = codec_of(shown) != codec_of(asked.path)
        if is_compressed and _date(before.e_tag) == _date(asked.e_tag):
            return True
        is_family = family_of(shown) == family_of(asked.path)
        return is_family and (is_compressed or shown in self.listed)

    async def _doubt_copies(
        self, one: FileSurvey, file: OpenedFile, others: Sequence[FileRange]
    ) -> bool:
        """Note a file that has the rows of an existing file with the same family name.

        Return False if that other file was moved or replaced since it was listed.
        """
        asked = one.candidate
        with suppress(GoneError):
            for before in others:
                if asked.size_bytes < before.file_bytes and not self._has_other_form(before, asked):
                    other = OpenedFile(store=self.store, path=before.path, source=self.info.name)
                    limit = min(asked.size_bytes, before.block_bytes)
                    is_copy = await file.get(0, limit) == await other.get(0, limit)
                else:
                    is_copy = await self._like(before, one, file) is not None
                if is_copy and not await self._is_in_place(before.path):
                    return False
                if is_copy:
                    self.moves.doubt(asked, before, is_gone=False)
        return True

    async def _beginnings(
        self, one: FileSurvey, file: OpenedFile, lengths: Sequence[int]
    ) -> list[Beginning]:
        """Return the sums of a file's beginning, and of its text's, for each of these lengths.

        Raises:
            GoneError: the file no longer exists.
        """
        if self.info.format == "parquet":
            return [(one.found.head_bytes, one.found.head)]
        data, texts = await file.get(0, lengths[-1]), [b""]
        if is_packed(one.candidate.path, self.info.format):
            with suppress(CorruptionError):
                limit = min(one.candidate.size_bytes, _HEAD_BYTES)
                texts = await read_text(file, [(0, lengths[-1])], limit=limit, clock=self.clock)
        return [
            (length, sum_of(some[:length]))
            for some in (data, *texts)
            for length in lengths
            if length <= len(some)
        ]


def _each(
    by_beginning: Mapping[Beginning, Sequence[FileRange]], begins: Sequence[Beginning]
) -> list[FileRange]:
    found = {row.path: row for one in begins for row in by_beginning.get(one, ())}
    return list(found.values())


def _date(e_tag: str) -> str:
    """Return the time of change in a local file's version; see `store.local.files.tag_of`."""
    return e_tag.rpartition("|")[2].partition("-")[0]


@dataclass(frozen=True, slots=True)
class OtherFiles:
    """Paths whose file is another one than that of the recorded row.

    Shape: ``replaced`` are those whose former file is at another path. The files of ``unlike`` only
        have another identity: such a file may be the former one, rewritten with more records.
    """

    replaced: frozenset[str]
    unlike: frozenset[str]


async def find_others(
    changed: Sequence[Entry],
    head: FilesHead,
    taken: Mapping[str, FileRange],
    sizes: Mapping[str, int],
    *,
    url: str,
    clock: Clock,
) -> OtherFiles:
    """Find the changed files that are others than the recorded ones, by their identities."""
    names = names_by_path(taken)
    found = {entry.key: identity_in(entry.e_tag) for entry in changed}
    moved = {path for path in found if _is_elsewhere(path, found, names, taken, sizes)}
    unlike = {
        path: known
        for path, identity in found.items()
        if (known := known_identity(taken[path])) and identity and identity != known
    }
    if not unlike:
        return OtherFiles(frozenset(moved), frozenset())
    elsewhere = {identity_in(entry.e_tag) for entry in head.entries}

    def find() -> set[str]:
        return {
            path
            for path, known in unlike.items()
            if known in elsewhere or is_beside(local_path(url, path), known)
        }

    replaced = await clock.offload(find)
    return OtherFiles(frozenset(moved | replaced), frozenset(unlike.keys() - replaced))


def paths_of(identity: str, entries: Sequence[Entry]) -> list[str]:
    """Return the listed paths of the file with an identity."""
    return [entry.key for entry in entries if identity and identity_in(entry.e_tag) == identity]


async def listed_now(entries: Sequence[Entry], url: str, clock: Clock) -> Sequence[Entry]:
    """Return the entries of a disk's listing with the files' current sizes and identities.

    A listing takes a while. If a file is renamed during it, the listing may have the file twice. So
    paths with the same file are read a second time: only those that still exist remain. Hard links
    remain as two entries.
    """
    if not local_path(url, ""):
        return entries

    def look_again(some: Sequence[Entry]) -> list[Entry]:
        found = ((entry, state_of(local_path(url, entry.key))) for entry in some)
        return [
            replace(
                entry,
                size_bytes=state.size_bytes,
                e_tag=with_identity(tag_at(state.changed_ns, state.size_bytes), state.identity),
            )
            for entry, state in found
            if state is not None
        ]

    def look() -> Sequence[Entry]:
        found = {entry.key: entry for entry in look_again(entries)}
        counts = Counter(identity_in(entry.e_tag) for entry in found.values())
        twice = [e for e in found.values() if counts[i := identity_in(e.e_tag)] > 1 and i]
        for entry in twice:
            del found[entry.key]
        return [*found.values(), *look_again(twice)]

    return await clock.offload(look)


async def replaced_since(tags: Mapping[str, str], url: str, clock: Clock) -> set[str]:
    """Return the paths that no longer have the file of the listed version."""

    def find() -> set[str]:
        return {
            path
            for path, tag in tags.items()
            if (identity := identity_in(tag)) and identity_of(local_path(url, path)) != identity
        }

    return await clock.offload(find)


def _is_elsewhere(
    path: str,
    found: Mapping[str, str],
    names: Mapping[str, Sequence[str]],
    taken: Mapping[str, FileRange],
    sizes: Mapping[str, int],
) -> bool:
    """Return True if the former file of a path is known to be at a later one of its names.

    This is so after a tool has copied a log and truncated it: the inode stays at the path, and the
    records are in the copy.
    """
    for name in names.get(path, ()):
        later, known = taken[name], known_identity(taken[name])
        if name == path or name not in sizes or not later.moved or later.limit < taken[path].limit:
            continue
        if not known or (found.get(name, known) == known and found[path] != known):
            return True
    return False


async def sizes_now(
    taken: Mapping[str, FileRange], sizes: Mapping[str, int], *, store: Store
) -> Mapping[str, int]:
    """Return the sizes of a listing, without former names at which moved files no longer are.

    If a file is renamed during a listing, the listing may have both of its names.

    Raises:
        LocationError: the store failed.
    """
    twice = named_twice(taken, sizes)
    return _without(sizes, await _gone(twice, store)) if twice else sizes


def _without(sizes: Mapping[str, int], old: set[str]) -> Mapping[str, int]:
    return {path: size for path, size in sizes.items() if path not in old} if old else sizes


async def _gone(paths: Iterable[str], store: Store) -> set[str]:
    """Return the paths at which no file exists."""

    async def is_gone(path: str) -> bool:
        try:
            await store.get(path, limit=1)
        except ObjectNotFound:
            return True
        return False

    asked = [*paths]
    found = await run_all([partial(is_gone, path) for path in asked], at_once=_AT_ONCE)
    return {path for path, gone in zip(asked, found, strict=True) if gone}


async def find_moved_on(
    ranges: Sequence[FileRange], source: SourceInfo, *, store: Store, clock: Clock
) -> list[FileRange]:
    """Return the ranges whose files are no longer at their paths, or no longer have their bytes.

    Raises:
        LocationError: the store failed.
    """

    def look() -> list[FileState | None]:
        return [state_of(local_path(source.url, found.path)) for found in ranges]

    now = await clock.offload(look)
    work = [
        partial(_is_there, found, state, source, store)
        for found, state in zip(ranges, now, strict=True)
    ]
    there = await run_all(work, at_once=_AT_ONCE)
    return [found for found, is_there in zip(ranges, there, strict=True) if not is_there]


async def _is_there(
    found: FileRange, state: FileState | None, source: SourceInfo, store: Store
) -> bool:
    """Return True if a path still has the file of a range, with the range's bytes.

    A file that has not changed since it was listed is not read.
    """
    identity = known_identity(found)
    if state is None and not found.is_read:
        return not identity
    if state is not None:
        if identity and state.identity != identity:
            return False
        if not found.is_read or date_of(found.e_tag) == tag_at(state.changed_ns, state.size_bytes):
            return True
    file = OpenedFile(store=store, path=found.path, source=source.name)
    try:
        return await is_unchanged(found, file, format=source.format)
    except GoneError:
        return False
