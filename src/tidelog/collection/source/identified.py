"""Which file a range is of, where a disk tells it: what a file is after it was renamed and grew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from tidelog.clock import Clock
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.port import Plan
from tidelog.store.local.identity import identity_of
from tidelog.store.urls import local_path


async def identity_at(url: str, path: str, *, clock: Clock) -> str:
    """Return the identity of a source's file as it is now; "" where that cannot be told."""
    return await clock.offload(lambda: identity_of(local_path(url, path)))


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
