"""`connect` and `read_split` of the blocking API.

A connection owns one loop in one thread, from `connect` to its end (`tidelog.blocking.portal`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tidelog.blocking.location import Location
from tidelog.blocking.portal import Portal
from tidelog.location import open_location

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.persist.read.splits import Split


def connect(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    consensus: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    hedge: bool | None = None,
    read_only: bool | None = None,
) -> Location:
    """Connect to the location at a URL or a path; with ``create``, create it if it does not exist.

    ``consensus`` resolves concurrent commits. It is chosen when the location is created: ``store``
    (the default), ``sqlite:PATH`` or ``postgresql://...``.
    ``cache`` keeps parts that were read, in memory (``256MiB``) or in a folder. ``hedge`` sends
    slow reads again. With ``read_only``, the store and the consensus get no write, and each call
    that writes raises UsageError.

    Raises:
        NoSuchLocation: no location exists at the URL.
        UsageError, LocationError: see `tidelog.location.open_location`.
    """
    portal = Portal()
    try:
        opened = open_location(
            url,
            create=create,
            consensus=consensus,
            cache=cache,
            hedge=hedge,
            read_only=read_only,
        )
        return Location(portal, portal.run(opened))
    except BaseException:
        portal.close()
        raise


def read_split(split: Split, lake: Location) -> pa.Table:
    """Return the updates of a split; see `tidelog.aio.read_split`."""
    from tidelog.persist.read import splits

    inner = lake._inner
    return lake._portal.run(splits.read_split(split, store=inner.store, clock=inner.clock))
