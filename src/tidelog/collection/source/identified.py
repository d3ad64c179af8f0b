"""Which file a range is of, where a disk tells it: what a file is after it was renamed and grew.

What is said of it is in `moves`, which is pure; here files are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import msgspec

from tidelog.clock import Clock, run_all
from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.blocks import sum_of
from tidelog.collection.source.moves import (
    Beginning,
    Moves,
    known_identity,
    named_twice,
    with_identity,
)
from tidelog.collection.source.opened import OpenedFile
from tidelog.collection.source.port import Plan
from tidelog.collection.source.survey import is_unchanged
from tidelog.collection.source.surveyed import FileCandidate, FileSurvey
from tidelog.errors import GoneError, ObjectNotFound
from tidelog.store.local.identity import identity_of
from tidelog.store.port import Store
from tidelog.store.urls import local_path

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Renamed:
    """Whether files were found that were taken under other names.

    Shape: ``went`` are new ones that are not what their listing shows: they wait for another.
    """

    found: bool
    went: tuple[FileCandidate, ...]


async def find_renamed(
    new: Sequence[FileSurvey],
    gone: Mapping[Beginning, Sequence[FileRange]],
    moves: Moves,
    *,
    info: SourceInfo,
    skipped: frozenset[str],
    store: Store,
    clock: Clock,
) -> Renamed:
    """Find files that were taken under other names, which are ``gone``.

    Of one that goes meanwhile it cannot be told, and none of it may be taken under this name.

    Raises:
        LocationError: the store failed.
    """
    lengths, found = sorted({length for length, _ in gone}), False
    went: list[FileCandidate] = []
    for one in new if gone else ():
        asked = one.candidate
        file = OpenedFile(store=store, path=asked.path, source=info.name)
        try:
            alike = [
                before
                for begins in await _beginnings(one, file, lengths, format=info.format)
                for before in gone.get(begins, ())
                if not before.file_bytes <= asked.size_bytes < before.size_bytes
                and await is_unchanged(before, file, format=info.format)
            ]
            if any(asked.size_bytes < before.file_bytes for before in alike):
                # It has more than its listing shows: others took that under the other name.
                went.append(asked)
                continue
            if alike:
                place = local_path(info.url, asked.path)
                identity = await clock.offload(partial(identity_of, place))
                await file.get(0, 1)  # Of one that is there, the identity is its own.
                found |= moves.learn(asked, alike, identity=identity, skipped=skipped)
        except GoneError:
            went.append(asked)
    return Renamed(found, tuple(went))


async def sizes_now(
    taken: Mapping[str, FileRange], sizes: Mapping[str, int], *, store: Store
) -> Mapping[str, int]:
    """Return the sizes of a listing, without names of moved files that are not theirs any more.

    Who renames a file while the source is listed may leave both of its names in the listing.

    Raises:
        LocationError: the store failed.
    """
    twice = named_twice(taken, sizes)
    return _without(sizes, await _gone(twice, store)) if twice else sizes


async def sizes_beside(
    new: Sequence[FileSurvey],
    taken: Mapping[str, FileRange],
    sizes: Mapping[str, int],
    *,
    url: str,
    clock: Clock,
) -> Mapping[str, int]:
    """Return the sizes of a listing, without those of taken files that are ``new`` ones by now."""
    ours = await clock.offload(
        lambda: {identity_of(local_path(url, one.candidate.path)) for one in new} - {""}
    )
    listed = {
        path: identity
        for path, found in taken.items()
        if (identity := known_identity(found)) in ours and path in sizes
    }

    def renamed() -> set[str]:
        return {
            path
            for path, identity in listed.items()
            if identity_of(local_path(url, path)) != identity
        }

    return _without(sizes, await clock.offload(renamed)) if listed else sizes


def _without(sizes: Mapping[str, int], old: set[str]) -> Mapping[str, int]:
    return {path: size for path, size in sizes.items() if path not in old} if old else sizes


async def _gone(paths: Iterable[str], store: Store) -> set[str]:
    """Return those paths at which there is no file."""

    async def is_gone(path: str) -> bool:
        try:
            await store.get(path, limit=1)
        except ObjectNotFound:
            return True
        return False

    asked = [*paths]
    found = await run_all([partial(is_gone, path) for path in asked], at_once=_AT_ONCE)
    return {path for path, gone in zip(asked, found, strict=True) if gone}


async def _beginnings(
    one: FileSurvey, file: OpenedFile, lengths: Sequence[int], *, format: str
) -> list[Beginning]:
    """Return how a file begins, as one that it has grown from did, of each of these lengths.

    Raises:
        GoneError: it is gone.
    """
    if format == "parquet":
        return [(one.found.head_bytes, one.found.head)]
    data = await file.get(0, lengths[-1])
    return [(length, sum_of(data[:length])) for length in lengths if length <= len(data)]


async def identify(
    plan: Plan, taken: Mapping[str, FileRange], url: str, *, store: Store, clock: Clock
) -> tuple[Plan, list[FileRange]]:
    """Return a plan whose ranges say which files they are of, and those whose files are not there.

    What such a file is, could not be told afterwards, but by its date.

    Raises:
        LocationError: the store failed.
    """
    ranges = cast("Sequence[FileRange]", plan.ranges)  # The caller plans no others.
    told = await clock.offload(lambda: [identity_of(local_path(url, r.path)) for r in ranges])
    gone = await _gone(
        [r.path for r, identity in zip(ranges, told, strict=True) if r.is_read and not identity],
        store,
    )
    found = [
        msgspec.structs.replace(
            one,
            e_tag=with_identity(one.e_tag, identity or known_identity(taken.get(one.path, one))),
        )
        for one, identity in zip(ranges, told, strict=True)
    ]
    return Plan(tuple(found), plan.upper), [one for one in ranges if one.path in gone]
