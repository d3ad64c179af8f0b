"""Read-only connections: a store that refuses writes, and handles that refuse them earlier.

`ReadOnlyStore` gives the guarantee: it is next to the real store, below all other wrappers. The
methods of handles refuse first, so that a caller learns it before any request.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any, Final, TypeVar

from tidelog.core.arguments import check_kind, quoted
from tidelog.errors import UsageError
from tidelog.store.listing import known_folders
from tidelog.store.port import Entry, Object, Store

READ_ONLY_VARIABLE: Final = "TIDELOG_READ_ONLY"

_WRITES: Final = """
acknowledge add adopt advance alter append append_arrow appender apply begin check close_stream
collect commit_parts compact compare_and_append configure copy create create_checkpoint
create_cursor create_pin delete drop drop_checkpoint drop_cursor drop_hold drop_pin drop_writer
end_leases evolve_schema forget fork get_binding handover hold ingest ingest_all insert lease merge
meta_stream move_consensus move_cursor move_hold open_stream rebuild register retain retire seal
skip sweep tidy try_append try_compare_and_append update upsert write_parts
"""
# The public methods that write, of all handles. A test finds a method that is missing here.
WRITES: Final = frozenset(_WRITES.split())

C = TypeVar("C", bound=type)

_REFUSING: dict[type, type] = {}  # The classes of read-only handles, by their own class.


class ReadOnlyStore:
    """A store whose puts and deletes raise UsageError, and send nothing."""

    is_read_only: Final = True

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self._store.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._store.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        raise write_refused()

    async def delete(self, keys: Sequence[str]) -> None:
        raise write_refused()

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async for entry in self._store.list(prefix, after=after):
            yield entry

    async def folders(self, prefix: str) -> Sequence[str] | None:
        """Return the names of the folders directly below a prefix, if the store knows them."""
        return await known_folders(self._store, prefix)


def write_refused() -> UsageError:
    """Return the error of a write through a read-only connection."""
    return UsageError("the connection is read-only: connect without read_only= to write")


def is_read_only(store: Store) -> bool:
    """Return True if a store refuses writes, or wraps a `ReadOnlyStore`."""
    return getattr(store, "is_read_only", False)


def told_read_only(read_only: bool | None, *, create: bool = False) -> bool:
    """Return the argument, or the setting of the environment if it is None.

    Raises:
        UsageError: the setting is invalid, or a read-only connection would have to ``create``.
    """
    if (is_told := _told(read_only)) and create:
        raise write_refused()
    return is_told


def _told(read_only: bool | None) -> bool:
    if read_only is not None:
        check_kind(read_only, bool, "read_only must be True or False")
        return read_only
    told = os.environ.get(READ_ONLY_VARIABLE) or "off"
    if told not in ("on", "off"):
        raise UsageError(f"{READ_ONLY_VARIABLE} must be on or off, not {quoted(told)}")
    return told == "on"


def refuses_writes(place: str = "store") -> Callable[[C], C]:
    """Return a decorator for handles: if the store at ``place`` is read-only, `WRITES` refuse.

    A new handle then gets a class of its own, so that other connections pay nothing.

    Raises:
        UsageError: in these methods, before any request. NOT_APPLIED.
    """
    store_of: Callable[[object], Store] = attrgetter(place)

    def guarded(cls: C) -> C:
        begin: Callable[..., None] = vars(cls)["__init__"]

        @wraps(begin)
        def begun(self: object, *args: object, **named: object) -> None:
            begin(self, *args, **named)
            if is_read_only(store_of(self)):
                object.__setattr__(self, "__class__", _refusing(type(self)))

        setattr(cls, "__init__", begun)  # noqa: B010  mypy refuses the plain assignment.
        return cls

    return guarded


def _refusing(cls: type) -> type:
    """Return a class of the same handles, whose `WRITES` raise UsageError."""
    if cls not in _REFUSING:
        known = {name: getattr(cls, name, None) for name in WRITES}
        methods = {name: _refusal(one) for name, one in known.items() if inspect.isfunction(one)}
        own = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        made = type(cls)(cls.__name__, (cls,), {**own, **methods})
        _REFUSING[cls] = _REFUSING[made] = made
    return _REFUSING[cls]


def _refusal(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*_: object, **__: object) -> Any:
        raise write_refused()

    @wraps(method)
    async def awaited(*_: object, **__: object) -> Any:
        raise write_refused()

    return awaited if inspect.iscoroutinefunction(method) else call
