"""The stores that a worker keeps open from task to task, to read parts.

If a collection is read by ranges of its key, the tasks of all ranges read the same parts. They read
them whole, since a checksum covers a whole part. So a worker caches the parts, unless the
location's URL sets another cache (``?cache=``), and repeats slow reads. A part that only one task
reads is not cached: the copy would only use memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tidelog.core.clock import SystemClock
from tidelog.spark.scan import Scan
from tidelog.store.port import Store
from tidelog.store.wrapping import (
    NOTHING_TOLD,
    WrappedStores,
    Wrapping,
    open_wrapped,
    split_wrapping,
)

BY_DEFAULT: Final = Wrapping(cache="256MiB", hedge=True)

# The key includes the process id, since Spark forks its workers.
_stores: dict[tuple[int, str], WrappedStores] = {}


@contextmanager
def reading_from(url: str, scans: Sequence[Scan]) -> Iterator[Store]:
    """Yield the store at a URL, opened or reused, in the layer that suits the scans.

    After a failure the next call opens the store again: the open connection may be the cause.
    """
    place = os.getpid(), url
    if place not in _stores:
        is_disk = url.startswith("file:")
        otherwise = NOTHING_TOLD if is_disk else BY_DEFAULT
        _stores[place] = open_wrapped(url, clock=SystemClock(), otherwise=otherwise)
    try:
        yield choose_layer(_stores[place], scans, split_wrapping(url)[1])
    except Exception:
        _stores.pop(place, None)
        raise


def open_fresh(url: str) -> Store:
    """Open the store at a URL, for a task that reads each part once; slow reads are repeated."""
    otherwise = NOTHING_TOLD if url.startswith("file:") else BY_DEFAULT
    return open_wrapped(url, clock=SystemClock(), otherwise=otherwise).fresh


def choose_layer(wrapped: WrappedStores, scans: Sequence[Scan], told: Wrapping) -> Store:
    """Return the layer for scans: without a cache, unless other tasks read the same parts."""
    is_shared = told.cache is not None or any(scan.bounds for scan in scans)
    return wrapped.whole if is_shared else wrapped.fresh
