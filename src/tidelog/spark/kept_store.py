"""The store that a worker reads parts from: it stays open from task to task.

Where a collection is read by ranges of its key, the tasks of all ranges read the same parts, whole,
since a checksum is of the whole. So a worker keeps those that it read, unless it was told otherwise
(``?cache=`` of the location), and sends again what is slow. Parts that one task alone reads are not
kept: they would only take memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tidelog.clock import SystemClock
from tidelog.spark.scan import Scan
from tidelog.store.port import Store
from tidelog.store.wrapping import NOTHING_TOLD, Dressed, Wrapping, open_dressed, split_wrapping

BY_DEFAULT: Final = Wrapping(cache="256MiB", hedge=True)

# By process id too, for Spark forks its workers.
_stores: dict[tuple[int, str], Dressed] = {}


@contextmanager
def reading_from(url: str, scans: Sequence[Scan]) -> Iterator[Store]:
    """Open the store at a URL, or take the one that is open, for reading what scans name.

    After a failure it is opened anew: what stayed open may be what failed.
    """
    place = os.getpid(), url
    if place not in _stores:
        is_disk = url.startswith("file:")
        otherwise = NOTHING_TOLD if is_disk else BY_DEFAULT
        _stores[place] = open_dressed(url, clock=SystemClock(), otherwise=otherwise)
    try:
        yield choose_layer(_stores[place], scans, split_wrapping(url)[1])
    except Exception:
        _stores.pop(place, None)
        raise


def open_fresh(url: str) -> Store:
    """Open the store at a URL, for who reads each part once: slow reads are sent again."""
    otherwise = NOTHING_TOLD if url.startswith("file:") else BY_DEFAULT
    return open_dressed(url, clock=SystemClock(), otherwise=otherwise).fresh


def choose_layer(dressed: Dressed, scans: Sequence[Scan], told: Wrapping) -> Store:
    """Return the layer that scans are read from: without copies, if no other task needs them."""
    is_shared = told.cache is not None or any(scan.bounds for scan in scans)
    return dressed.whole if is_shared else dressed.fresh
