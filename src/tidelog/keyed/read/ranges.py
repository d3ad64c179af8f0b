"""Byte ranges of objects, checked on arrival, and fetched in few requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

import pyarrow as pa

from tidelog.core.clock import run_all
from tidelog.errors import CorruptionError
from tidelog.keyed.format.layout import Span
from tidelog.store.port import Store
from tidelog.store.wrappers.cached import Cached

T = TypeVar("T")

# At about 80 MB/s this takes half a millisecond; a request takes 25 ms.
WASTE_BYTES: Final = 40 * 1024
AT_ONCE: Final = 8
_FOREIGN: Final = (pa.ArrowException, ValueError, LookupError, TypeError, OSError)


async def get_checked(
    store: Store, path: str, span: Span, check: Callable[[bytes], Awaitable[T]]
) -> T:
    """Return the result of ``check`` on a byte range; if a cached copy is damaged, read it again.

    Raises:
        ObjectNotFound: the object is missing. LocationError: the store failed. CorruptionError:
            ``check`` failed, or the object is too short.
    """
    try:
        return await check(await _get(store, path, span))
    except CorruptionError:
        if not isinstance(store, Cached):
            raise
        await store.forget([path])
        return await check(await _get(store, path, span))


async def get_spans(store: Store, path: str, spans: Sequence[Span]) -> list[tuple[Span, bytes]]:
    """Return bytes that include all of some spans, in few requests; see `join_spans`.

    Raises:
        ObjectNotFound, LocationError, CorruptionError: see `get_checked`.
    """
    joined = join_spans(spans)
    found = await run_all([partial(_get, store, path, span) for span in joined], at_once=AT_ONCE)
    return list(zip(joined, found, strict=True))


async def _get(store: Store, path: str, span: Span) -> bytes:
    data = (await store.get(path, start=span.start, limit=span.limit)).data
    if len(data) != span.limit - span.start:
        raise CorruptionError(
            "an object of a run is truncated: restore it",
            path=path,
            wanted=span.limit,
        )
    return data


def join_spans(spans: Sequence[Span], waste_bytes: int = WASTE_BYTES) -> list[Span]:
    """Merge spans into fewer ones, with at most ``waste_bytes`` of unwanted bytes.

    The smallest gaps are filled first. A quarter of the wanted bytes may be wasted in addition.
    """
    ordered = sorted(spans)
    if not ordered:
        return []
    allowed = waste_bytes + sum(span.limit - span.start for span in ordered) // 4
    gaps = sorted(
        (max(later.start - earlier.limit, 0), number)
        for number, (earlier, later) in enumerate(pairwise(ordered))
    )
    filled = set[int]()
    for gap, number in gaps:
        allowed -= gap
        if allowed < 0:
            break
        filled.add(number)
    joined = [ordered[0]]
    for number, span in enumerate(ordered[1:]):
        if number in filled:
            joined[-1] = Span(joined[-1].start, max(span.limit, joined[-1].limit))
        else:
            joined.append(span)
    return joined


@contextmanager
def told_as_damage(path: str, what: str) -> Iterator[None]:
    """Convert a library's error about stored bytes into an error that names the object.

    Raises:
        CorruptionError: the library refused the bytes.
    """
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except _FOREIGN as error:
        raise CorruptionError(
            f"{what} cannot be read: restore the object ({str(error)[:300]})", path=path
        ) from error


def check_sum(expected: object, found: object, path: str, what: str) -> None:
    """Compare checksums. Raises: CorruptionError: they differ."""
    if expected != found:
        raise CorruptionError(
            f"{what} does not match its checksum: restore the object, or drop the data", path=path
        )
