"""Computations of one call on several threads.

Arrow, numpy and compiled hashes release the interpreter's lock, so threads use all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")


def cores() -> int:
    """Return the number of cores that this process may use: 1 in a task of Spark."""
    return pa.cpu_count()


def on_cores(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls that compute, in order; the calls share the cores.

    Raises:
        The first error of a call, after all calls have ended.
    """
    if len(calls) < 2 or cores() < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(len(calls), cores())) as pool:
        return list(pool.map(lambda call: call(), calls))
