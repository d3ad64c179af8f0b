"""A store wrapper that counts requests, and computes their price.

Source: persist, "Cost" (the price list of S3).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from typing import Final, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from tidelog.core.clock import Clock
from tidelog.core.metrics import SINK, observe_store_request
from tidelog.errors import ContentionError, CorruptionError, LocationError
from tidelog.store.listing import ListsFolders
from tidelog.store.port import Entry, Object, Store
from tidelog.store.prices import PRICES
from tidelog.store.wrappers.read_only import is_read_only

PAGE_ENTRIES = 1_000  # The entries that one request lists or deletes, at most.


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The requests sent. The difference of two values is the usage between them.

    Units:
        get_count, put_count, list_count, delete_count: requests (one per 1000 entries of a listing,
        and one per 1000 deleted keys).
        get_us, put_us, list_us, delete_us: sums of the calls' times, which can exceed the elapsed
        time.
        errors_count: failures of the store.
        refused_count: puts whose condition did not hold; they are paid for too.
    """

    get_count: int = 0
    put_count: int = 0
    list_count: int = 0
    delete_count: int = 0
    errors_count: int = 0
    refused_count: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    get_us: int = 0
    put_us: int = 0
    list_us: int = 0
    delete_us: int = 0

    @property
    def requests_count(self) -> int:
        return self.get_count + self.put_count + self.list_count + self.delete_count

    @property
    def dollars(self) -> float:
        """The price of the requests, without storage (see `prices`) and transfer."""
        return (
            self.get_count * PRICES["get"]
            + self.put_count * PRICES["put"]
            + self.list_count * PRICES["list"]
            + self.delete_count * PRICES["delete"]
        )

    def __add__(self, other: Usage) -> Usage:
        return self._combine(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        return self._combine(other, -1)

    def to_dict(self) -> dict[str, int | float]:
        # Rounded to a thousandth of the cheapest request, because further digits of float sums are
        # noise.
        dollars = round(self.dollars, 10)
        return {**asdict(self), "requests_count": self.requests_count, "dollars": dollars}

    def _combine(self, other: Usage, sign: int) -> Usage:
        sums = {
            field.name: getattr(self, field.name) + sign * getattr(other, field.name)
            for field in fields(self)
        }
        return Usage(**sums)


@dataclass(slots=True)
class _RequestBytes:
    """The bytes of one request's bodies."""

    read_bytes: int = 0
    written_bytes: int = 0


@runtime_checkable
class MeteredStore(Protocol):
    """A store that is metered, or wraps a metered one."""

    def usage(self) -> Usage: ...


def usage_of(store: Store) -> Usage:
    """Return the usage of a store so far; zero if it is not metered."""
    return store.usage() if isinstance(store, MeteredStore) else Usage()


class MeteringStore:
    """A store wrapper that keeps a `Usage`, also for each task that called `meter_apart`."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._sums = _zero()

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_read_only(self) -> bool:
        return is_read_only(self._store)

    def usage(self) -> Usage:
        """Return the usage so far; later requests do not change the result."""
        return Usage(**self._counted()[-1])

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        self._count("get", 1)
        with self._watch("get") as moved:
            stored = await self._store.get(key, start=start, limit=limit)
            moved.read_bytes = len(stored.data)
        return stored

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        self._count("get", 1)
        with self._watch("get") as moved:
            stored = await self._store.refresh(key, e_tag)
            moved.read_bytes = len(stored.data) if stored else 0
        return stored

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        self._count("put", 1)
        with self._watch("put") as moved:
            moved.written_bytes = len(data)
            return await self._store.put(key, data, if_absent=if_absent, if_match=if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        self._count("delete", -(-len(keys) // PAGE_ENTRIES))
        with self._watch("delete"):
            await self._store.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        self._count("list", 1)
        entries = aiter(self._store.list(prefix, after=after))
        entries_count = 0
        while True:
            # Only the wait is measured, not the caller's work between two entries.
            with self._watch("list"):
                entry = await anext(entries, None)
            if entry is None:
                return
            if entries_count and entries_count % PAGE_ENTRIES == 0:
                self._count("list", 1)
            entries_count += 1
            yield entry

    async def folders(self, prefix: str) -> Sequence[str] | None:
        """Return the names of the folders directly below a prefix, if the store knows them."""
        if not isinstance(self._store, ListsFolders):
            return None
        self._count("list", 1)
        with self._watch("list"):
            return await self._store.folders(prefix)

    @contextmanager
    def _watch(self, kind: str) -> Iterator[_RequestBytes]:
        counted, start_us, moved = self._counted(), self._clock.monotonic_us(), _RequestBytes()
        try:
            yield moved
        except ContentionError:
            self._count("refused", 1)
            raise
        except (LocationError, CorruptionError):
            self._count("errors", 1)
            raise
        finally:
            took_us = self._clock.monotonic_us() - start_us
            for sums in counted:
                sums[f"{kind}_us"] += took_us
                sums["read_bytes"] += moved.read_bytes
                sums["written_bytes"] += moved.written_bytes
            if SINK.get() is not None:
                observe_store_request(kind, took_us / 1e6, moved.read_bytes, moved.written_bytes)

    def _count(self, kind: str, count: int) -> None:
        for sums in self._counted():
            sums[f"{kind}_count"] += count

    def _counted(self) -> Sequence[dict[str, int]]:
        """Return the sums that a request changes; the last are those that `usage` returns."""
        apart = _APART.get()
        return (self._sums,) if apart is None else (self._sums, apart.setdefault(self, _zero()))


def _zero() -> dict[str, int]:
    return dict.fromkeys(Usage.__dataclass_fields__, 0)


_APART: Final[ContextVar[WeakKeyDictionary[MeteringStore, dict[str, int]] | None]] = ContextVar(
    "tidelog_metered_apart", default=None
)


def meter_apart() -> None:
    """Count the requests of this task, and of the tasks that it creates, apart from all others.

    In them, `usage_of` then returns this count. A request that serves several tasks counts once.
    """
    _APART.set(WeakKeyDictionary())
