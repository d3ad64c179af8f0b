"""A store wrapper that sends slow requests a second time, and takes the first answer.

It sends reads twice (`get`, `refresh`, the first page of `list`), and the creation of objects that
the caller declares immutable. Each try of a read takes place within the call, so the answer of
either is valid.

Never sent twice, for these reasons:

- a plain put: the losing try may be stored later, over another object put in between;
- a delete: it may later delete an object created in between;
- a put with ``if_match``: it can lose against itself. It recognizes its own body only until another
  process replaces it. After that the outcome is unknown (`OutcomeUnknown`), though a put sent once
  would have known it. `tidelog.store.conditional` sends it again after a failure, and reads back.

Invariants: no try outlives its call. An error is NOT_APPLIED only if no try was or will be stored.
Time decides only the number of requests.
Source: wal3-draft, '"Robust" Object Storage Abstraction' and "Reduced Tail Latency".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tidelog.core.clock import Clock
from tidelog.core.metrics import observe_hedge
from tidelog.errors import (
    LocationError,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    TidelogError,
)
from tidelog.store.listing import known_folders
from tidelog.store.port import Entry, Object, Store
from tidelog.store.wrappers.hedging import (
    ANSWERS,
    DEFAULT_HEDGING,
    Answer,
    Budget,
    Hedging,
    LatencyWindow,
    Result,
    may_be_ours,
    settle,
)
from tidelog.store.wrappers.metered import Usage, usage_of
from tidelog.store.wrappers.read_only import is_read_only

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedges:
    """Counts of hedged requests so far.

    Units:
        requests_count: calls that may be sent twice.
        slow_count: calls that outlasted their delay.
        again_count: slow calls that were sent again; the budget forbade the others.
    """

    requests_count: int = 0
    slow_count: int = 0
    again_count: int = 0


class HedgedStore:
    """A store whose slow requests are sent again; `Hedging` states when and how many.

    ``is_immutable(key)`` is the caller's promise about objects of that key. An object is never
    replaced by another body, each body is unique (it carries a write id), and no object is deleted
    while a put of it may be in flight. Without this promise, only reads are sent twice.
    A caller that cannot promise the last point must not take ObjectExists as a proof, but read
    back. An example is a log's slot, which may be collected while its writer is suspended.
    Each kind of request has its own latency window. Requests of one kind share it whatever their
    size, so large ones are sent again more often, within the common budget.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        is_immutable: Callable[[str], bool] | None = None,
        hedging: Hedging = DEFAULT_HEDGING,
    ) -> None:
        self._store = store
        self._clock = clock
        self._is_immutable = is_immutable or _none
        self._hedging = hedging
        self._paces: dict[str, LatencyWindow] = {}
        self._budget = Budget()
        self._hedges = Hedges()

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_read_only(self) -> bool:
        return is_read_only(self._store)

    def usage(self) -> Usage:
        """Return the usage of the wrapped store so far."""
        return usage_of(self._store)

    async def folders(self, prefix: str) -> Sequence[str] | None:
        """Return the names of the folders directly below a prefix, if the store knows them."""
        return await known_folders(self._store, prefix)

    def hedges(self) -> Hedges:
        """Return the counts so far; later requests do not change the result."""
        return self._hedges

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self._run("get", lambda: self._store.get(key, start=start, limit=limit))

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._run("refresh", lambda: self._store.refresh(key, e_tag))

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Store an object and return its e_tag; only an immutable one is sent twice.

        Raises:
            ObjectExists: ``if_absent``, and the object exists; if the put was sent twice, the
            object is another process's. NOT_APPLIED.
            ObjectChanged: ``if_match``, and the object has another version or does not exist.
            NOT_APPLIED.
            LocationError: the store failed; UNKNOWN if one try may be stored.
        """
        if if_absent and if_match is None and self._is_immutable(key):
            return await self._create(key, data)
        return await self._store.put(key, data, if_absent=if_absent, if_match=if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete(keys)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        """Yield the objects under a prefix; only the wait for the first entry is hedged.

        After the first entry, starting again would cost more than it saves.
        """
        first, rest = await self._run("list", lambda: _begun(self._store.list(prefix, after=after)))
        if first is None:
            return
        yield first
        async for entry in rest:
            yield entry

    async def _create(self, key: str, data: bytes) -> str:
        async def put() -> str:
            return await self._store.put(key, data, if_absent=True)

        try:
            return await self._run("put", put)
        except _InDoubt as doubt:
            refusal = doubt.refusal
        # Only the bytes show whose object it is. The cancelled try does not matter: the key is
        # taken, so it cannot be stored any longer.
        try:
            stored = await self.get(key)
        except (LocationError, ObjectNotFound) as error:
            raise LocationError(
                "a put was sent twice and refused once, perhaps because the other try was "
                "stored, and the object could not be read: read it back before a retry",
                outcome=Outcome.UNKNOWN,
                key=key,
                store=self.url,
                reason=error,
            ) from error
        if stored.data != data:
            raise refusal
        return stored.e_tag

    async def _run(self, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        self._budget = self._budget.earned(self._hedging)
        self._hedges = replace(self._hedges, requests_count=self._hedges.requests_count + 1)
        delay_us = self._paces.get(kind, LatencyWindow()).delay_us(self._hedging)
        begin_us = self._clock.monotonic_us()
        try:
            value = await (call() if delay_us is None else self._race(kind, call, delay_us))
        except (*ANSWERS, _InDoubt):
            self._note(kind, begin_us)
            raise
        # A failure is not counted: its speed does not predict the time of an answer.
        self._note(kind, begin_us)
        return value

    async def _race(self, kind: str, call: Callable[[], Awaitable[T]], delay_us: int) -> T:
        failed: BaseException
        try:
            settled, results = await self._attempts(kind, call, delay_us)
        except BaseExceptionGroup as errors:
            # Raised below, outside this block, so that the group does not become its context.
            failed = errors.exceptions[0]
        else:
            if isinstance(settled, Answer):
                return settled.value
            if isinstance(settled, ObjectExists) and may_be_ours(results):
                raise _InDoubt(settled)
            failed = settled
        raise failed

    async def _attempts(
        self, kind: str, call: Callable[[], Awaitable[T]], delay_us: int
    ) -> tuple[Answer[T] | TidelogError, Sequence[Result[T]]]:
        """Send a request, again after a delay; return the result that counts, and all results."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_attempt(call))]
            alarm = group.create_task(self._clock.sleep(delay_us))
            await asyncio.wait((*tasks, alarm), return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done() and self._may_send_again(kind):
                tasks.append(group.create_task(_attempt(call)))
            while (settled := settle(results := _results(tasks))) is None:
                under_way = [task for task in tasks if not task.done()]
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            # The group waits until the tasks have ended.
            for task in (alarm, *tasks):
                task.cancel()
        return settled, results

    def _may_send_again(self, kind: str) -> bool:
        left = self._budget.spent()
        again = left is not None
        self._budget = left or self._budget
        self._hedges = replace(
            self._hedges,
            slow_count=self._hedges.slow_count + 1,
            again_count=self._hedges.again_count + again,
        )
        if again:
            observe_hedge(kind)
        return again

    def _note(self, kind: str, begin_us: int) -> None:
        took_us = self._clock.monotonic_us() - begin_us
        self._paces[kind] = self._paces.get(kind, LatencyWindow()).after(took_us, self._hedging)


def _none(_: str) -> bool:
    return False


class _InDoubt(Exception):
    """A put was refused, and another try of it may be stored: only a read can decide."""

    def __init__(self, refusal: ObjectExists) -> None:
        super().__init__(refusal)
        self.refusal = refusal


async def _attempt(call: Callable[[], Awaitable[T]]) -> Result[T]:
    try:
        return Answer(await call())
    except TidelogError as error:
        return error


def _results(tasks: Sequence[asyncio.Task[Result[T]]]) -> list[Result[T]]:
    return [task.result() if task.done() else None for task in tasks]


async def _begun(entries: AsyncIterator[Entry]) -> tuple[Entry | None, AsyncIterator[Entry]]:
    return await anext(entries, None), entries
