"""Objects of runs: byte ranges, fetched in few requests and checked; and key directories, cached.

A small directory is read as a whole, a large one in pieces.
Invariants: cached pieces are checked, and their total size is bounded; the least recently used
    piece is evicted. Concurrent callers of one piece share a request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tidelog.core.clock import Clock, run_all
from tidelog.core.lookahead import SharedCalls, in_order
from tidelog.errors import CorruptionError, TidelogError
from tidelog.keyed.format.directory import (
    DirectoryHead,
    KeyPiece,
    decode_directory,
    fitted,
    read_head,
)
from tidelog.keyed.format.pages import decode_groups, read_metadata
from tidelog.keyed.format.part import KeyRows, PartLayout, RunPart, Span
from tidelog.store.port import Store
from tidelog.store.wrappers.cached import CachedStore

WHOLE_BYTES_MAX: Final = 1024 * 1024  # The size of a directory of about 100,000 keys.
# Large keys may compress well, so the stored size alone is no limit for memory.
WHOLE_GROUPS_MAX: Final = 16
CACHE_BYTES: Final = 256 * 1024 * 1024
ENTRY_BYTES: Final = 512
METADATA_RATIO: Final = 6  # The approximate ratio of a decoded footer to its stored size.
_WHAT: Final = "a key directory"
_AHEAD: Final = 4


class _CacheValue(Protocol):
    @property
    def nbytes(self) -> int: ...


V = TypeVar("V", bound=_CacheValue)
_Name: TypeAlias = tuple[bytes, int]


class DirectoryCache:
    """A cache of directories and footers with a limit in bytes.

    Readers of one event loop may share a cache, even with different stores, because the checksum of
    the directory is part of a piece's key.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Name, _CacheValue] = OrderedDict()
        self._used_bytes = 0
        self._calls: SharedCalls[_Name, Any] = SharedCalls()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    async def get(self, part: RunPart, piece: int, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return a piece of a part's directory, or its footer; load it if it is not cached.

        Raises:
            the errors of ``load``.
        """
        name = (part.directory_xxh3, piece)
        kept = self._kept.get(name)
        if kept is not None:
            self._kept.move_to_end(name)
            return cast("V", kept)
        value: V = await self._calls.wait(name, self._calls.join(name, load))
        self._keep(name, value)
        return value

    def _keep(self, name: _Name, value: _CacheValue) -> None:
        if name in self._kept or _cost(value) > self._bytes_max:
            return
        self._kept[name] = value
        self._used_bytes += _cost(value)
        while self._used_bytes > self._bytes_max:
            _, oldest = self._kept.popitem(last=False)
            self._used_bytes -= _cost(oldest)


def _cost(value: _CacheValue) -> int:
    return value.nbytes + ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class OpenDirectory:
    """An open directory: its head, and either all its keys or its footer."""

    head: DirectoryHead
    whole: KeyPiece | None
    metadata: pq.FileMetaData | None

    @property
    def nbytes(self) -> int:
        """The approximate memory in bytes."""
        footer = 0 if self.metadata is None else METADATA_RATIO * self.metadata.serialized_size
        return self.head.nbytes + footer + (0 if self.whole is None else self.whole.nbytes)


class DirectoryReader:
    """Answers queries from directories; see `DirectoryCache`."""

    def __init__(self, store: Store, clock: Clock, cache: DirectoryCache) -> None:
        self._store = store
        self._clock = clock
        self._cache = cache

    async def layout(self, part: RunPart) -> PartLayout:
        """Return the layout of a part. Raises: see `find`."""
        return (await self.open(part)).head.layout

    async def find(self, part: RunPart, key: bytes) -> KeyRows | None:
        """Return the place of a key's rows in a part; None if the part does not have the key.

        Raises:
            ObjectNotFound: the directory is missing. CorruptionError: it belongs to another part,
                or was changed. LocationError: the store failed.
        """
        if not part.first_key <= key <= part.last_key:
            return None
        return (await self._piece_with(part, key)).find(key)

    async def rows_from(self, part: RunPart, key: bytes | None) -> int:
        """Return the first row at or after a key; with None, the number of rows."""
        if key is None or key > part.last_key:
            return part.rows
        if key <= part.first_key:
            return 0
        return (await self._piece_with(part, key)).first_row_from(key)

    async def pieces(
        self, part: RunPart, first: bytes, last: bytes | None
    ) -> AsyncGenerator[KeyPiece, None]:
        """Yield pieces of the directory that include all keys ``[first, last)``, in order."""
        opened = await self.open(part)
        if opened.whole is not None:
            yield opened.whole
            return
        limit = opened.head.groups if last is None else opened.head.group_of(last) + 1

        async def numbers() -> AsyncGenerator[int, None]:
            for group in range(opened.head.group_of(first), limit):
                yield group

        # Do not cache these pieces: a listing of all keys would evict all other pieces.
        load = partial(self._load_piece, part, opened)
        ahead = in_order(numbers(), load, size_of=lambda _: 0, at_once=_AHEAD)
        async with aclosing(ahead) as pieces:
            async for _, piece in pieces:
                yield piece

    async def open(self, part: RunPart) -> OpenDirectory:
        """Return the directory of a part, with all its keys if it is small. Raises: see `find`."""
        opened = await self._cache.get(part, -1, partial(self._load, part))
        if opened.head.path != part.path or opened.head.num_bytes != part.num_bytes:
            raise CorruptionError(
                "a key directory belongs to another part: restore it",
                path=part.directory,
                of=opened.head.path,
            )
        return opened

    async def _piece_with(self, part: RunPart, key: bytes) -> KeyPiece:
        opened = await self.open(part)
        if opened.whole is not None:
            return opened.whole
        group = opened.head.group_of(key)
        load = partial(self._load_piece, part, opened, group)
        return await self._cache.get(part, group, load)

    async def _load(self, part: RunPart) -> OpenDirectory:
        is_small = part.directory_bytes <= WHOLE_BYTES_MAX
        size = part.directory_bytes if is_small else part.tail_bytes
        span = Span(part.directory_bytes - size, part.directory_bytes)
        decode = _whole if is_small else _tail

        async def check(data: bytes) -> OpenDirectory:
            return await self._clock.offload(partial(decode, part, data))

        return await get_checked(self._store, part.directory, span, check)

    async def _load_piece(self, part: RunPart, opened: OpenDirectory, group: int) -> KeyPiece:
        async def check(data: bytes) -> KeyPiece:
            return await self._clock.offload(partial(_piece, part, opened, group, data))

        span = opened.head.group_span(group)
        return await get_checked(self._store, part.directory, span, check)


def _whole(part: RunPart, data: bytes) -> OpenDirectory:
    check_sum(part.directory_xxh3, xxhash.xxh3_128_digest(data), part.directory, _WHAT)
    with told_as_damage(part.directory, _WHAT):
        metadata = read_metadata(data)
        if metadata.num_row_groups > WHOLE_GROUPS_MAX:
            return OpenDirectory(read_head(metadata), None, metadata)
        head, piece = decode_directory(data)
        return OpenDirectory(head, piece, None)


def _tail(part: RunPart, data: bytes) -> OpenDirectory:
    check_sum(part.tail_xxh3, xxhash.xxh3_128_digest(data), part.directory, _WHAT)
    with told_as_damage(part.directory, _WHAT):
        metadata = read_metadata(data)
        return OpenDirectory(read_head(metadata), None, metadata)


def _piece(part: RunPart, opened: OpenDirectory, group: int, data: bytes) -> KeyPiece:
    checksum = xxhash.xxh3_64_intdigest(data)
    check_sum(int(opened.head.group_xxh3[group]), checksum, part.directory, _WHAT)
    assert opened.metadata is not None, "it is not whole"
    with told_as_damage(part.directory, _WHAT):
        span = opened.head.group_span(group)
        return KeyPiece(fitted(decode_groups(opened.metadata, span, data, [group])))


T = TypeVar("T")
Fetched: TypeAlias = Sequence[tuple[Span, bytes]]  # Bytes of an object, with their places.

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
    return await get_spans(store, path, [span], lambda fetched: check(fetched[0][1]))


async def get_spans(
    store: Store, path: str, spans: Sequence[Span], check: Callable[[Fetched], Awaitable[T]]
) -> T:
    """Return the result of ``check`` on bytes that include all of some spans; see `get_checked`.

    The spans are read in few requests; see `join_spans`.
    """
    joined = join_spans(spans)
    gets = [partial(_get, store, path, span) for span in joined]

    async def once() -> T:
        bodies = await run_all(gets, at_once=AT_ONCE)
        return await check(list(zip(joined, bodies, strict=True)))

    try:
        return await once()
    except CorruptionError:
        if not isinstance(store, CachedStore):
            raise
        await store.forget([path])
        return await once()


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
    except (pa.ArrowMemoryError, TidelogError):
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
