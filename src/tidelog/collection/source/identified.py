"""Which file a range is of, where a disk tells it: what a file is after it was renamed and grew.

What is said of it is in `moves`, which is pure; here files are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import msgspec

from tidelog.clock import Clock
from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.blocks import sum_of
from tidelog.collection.source.moves import Beginning, Moves
from tidelog.collection.source.opened import OpenedFile
from tidelog.collection.source.port import Plan
from tidelog.collection.source.survey import is_unchanged
from tidelog.collection.source.surveyed import FileSurvey
from tidelog.errors import GoneError
from tidelog.store.local.identity import identity_of
from tidelog.store.port import Store
from tidelog.store.urls import local_path


async def find_renamed(
    new: Sequence[FileSurvey],
    gone: Mapping[Beginning, Sequence[FileRange]],
    moves: Moves,
    *,
    info: SourceInfo,
    skipped: frozenset[str],
    store: Store,
    clock: Clock,
) -> bool:
    """Find files that were taken under other names, which are ``gone``; say whether there are any.

    Raises:
        LocationError: the store failed.
    """
    lengths, found = sorted({length for length, _ in gone}), False
    for one in new if gone else ():
        asked = one.candidate
        file = OpenedFile(store=store, path=asked.path, source=info.name)
        alike = [
            before
            for begins in await _beginnings(one, file, lengths, format=info.format)
            for before in gone.get(begins, ())
            if asked.size_bytes >= before.size_bytes
            and await is_unchanged(before, file, format=info.format)
        ]
        if alike:
            place = local_path(info.url, asked.path)
            identity = await clock.offload(partial(identity_of, place))
            found |= moves.learn(asked, alike, identity=identity, skipped=skipped)
    return found


async def _beginnings(
    one: FileSurvey, file: OpenedFile, lengths: Sequence[int], *, format: str
) -> list[Beginning]:
    """Return how a file begins, as one that it has grown from did, of each of these lengths."""
    if format == "parquet":
        return [(one.found.head_bytes, one.found.head)]
    try:
        data = await file.get(0, lengths[-1])
    except GoneError:
        return []
    return [(length, sum_of(data[:length])) for length in lengths if length <= len(data)]


async def identify(plan: Plan, url: str, *, clock: Clock) -> Plan:
    """Return a plan whose ranges say which files they are of."""
    ranges = cast("Sequence[FileRange]", plan.ranges)  # The caller plans no others.
    found = await clock.offload(lambda: tuple(_identified(one, url) for one in ranges))
    return Plan(found, plan.upper)


def _identified(found: FileRange, url: str) -> FileRange:
    """Return a range with the identity of its file beside its date.

    It stands where a store that numbers versions has the number: `is_version` knows both.
    """
    identity, date = identity_of(local_path(url, found.path)), found.e_tag.rpartition("|")[2]
    return msgspec.structs.replace(found, e_tag=f"{identity}|{date}") if identity else found
