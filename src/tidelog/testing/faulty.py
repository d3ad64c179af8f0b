"""Stores with injected faults and with slow requests.

A fault is two independent draws: was the request done, and was it answered?
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidelog.core.clock import Clock
from tidelog.errors import LocationError, Outcome, TidelogError
from tidelog.store.port import Entry, Object, Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, which gets two draws.

    ``index`` counts from 0. ``op`` is get, refresh, put, delete or list. ``key`` is the first of
    several keys, or the prefix of a listing.
    """

    index: int
    op: str
    key: str
    conditional: bool

    @property
    def changes(self) -> bool:
        return self.op in ("put", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The draws: ``happened`` if the store did the request, ``told`` if its answer arrives."""

    happened: bool = True
    told: bool = True


NO_FAULT = Fault()


class FaultyStore:
    """A store around another one; ``toss`` decides the fault of each request.

    - Happened and told: no fault.
    - Happened, not told: the change is applied, and LocationError has the outcome UNKNOWN.
    - Not happened, not told: nothing is applied, and LocationError has the outcome UNKNOWN.
    - Not happened, told: LocationError has the outcome NOT_APPLIED.

    A read that fails always has the outcome NOT_APPLIED.
    """

    def __init__(self, store: Store, *, toss: Callable[[Request], Fault]) -> None:
        self._store = store
        self._toss = toss
        self._count = 0

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        request = self._request("get", key)
        return await self._run(request, lambda: self._store.get(key, start=start, limit=limit))

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        request = self._request("refresh", key)
        return await self._run(request, lambda: self._store.refresh(key, e_tag))

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        request = self._request("put", key, conditional=if_absent or if_match is not None)
        return await self._run(
            request, lambda: self._store.put(key, data, if_absent=if_absent, if_match=if_match)
        )

    async def delete(self, keys: Sequence[str]) -> None:
        request = self._request("delete", keys[0] if keys else "")
        await self._run(request, lambda: self._store.delete(keys))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        request = self._request("list", prefix)
        fault = self._toss(request)
        if not (fault.happened and fault.told):
            raise _failure(request, fault)
        async for entry in self._store.list(prefix, after=after):
            yield entry

    def _request(self, op: str, key: str, *, conditional: bool = False) -> Request:
        request = Request(index=self._count, op=op, key=key, conditional=conditional)
        self._count += 1
        return request

    async def _run(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        fault = self._toss(request)
        if not fault.happened:
            raise _failure(request, fault)
        if fault.told:
            return await call()
        try:
            await call()
        except TidelogError as error:
            # The caller cannot know of a refusal whose answer is lost.
            raise _failure(request, fault) from error
        raise _failure(request, fault)


def _failure(request: Request, fault: Fault) -> LocationError:
    in_doubt = request.changes and not fault.told
    return LocationError(
        "a fault was injected",
        outcome=Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED,
        op=request.op,
        key=request.key,
        index=request.index,
    )


class DelayedStore:
    """A store around another one, which waits before each request.

    Units: ``delay_us(op, key)`` returns microseconds. ``op`` is get, refresh, put, delete or list.
    ``key`` is the first of several keys, or the prefix of a listing.
    """

    def __init__(self, store: Store, *, clock: Clock, delay_us: Callable[[str, str], int]) -> None:
        self._store = store
        self._clock = clock
        self._delay_us = delay_us

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        await self._wait("get", key)
        return await self._store.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        await self._wait("refresh", key)
        return await self._store.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await self._wait("put", key)
        return await self._store.put(key, data, if_absent=if_absent, if_match=if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._wait("delete", keys[0] if keys else "")
        await self._store.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        await self._wait("list", prefix)
        async for entry in self._store.list(prefix, after=after):
            yield entry

    async def _wait(self, op: str, key: str) -> None:
        await self._clock.sleep(self._delay_us(op, key))
