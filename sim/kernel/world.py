"""A world: one store that everybody shares, and clients that reach it over a network that is bad.

Each client has a store of its own (its way to the shared one), a clock, and a consensus. A request
happens at the store whether or not its client still waits for it, lives, or was told otherwise.
Every request goes into a trace, whose hash is equal for equal seeds.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sim.kernel.clock import SimClock
from sim.kernel.fates import Fate, Fates, Request
from tidelog.consensus.store import StoreConsensus
from tidelog.errors import LocationError, Outcome, TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object
from tidelog.testing.recorded import Recorded

T = TypeVar("T")


class Crashed(BaseException):
    """A client is dead. No `Exception`, so that nothing in it handles this and goes on."""


class Watcher(Protocol):
    """Who looks at the shared store itself, right after each change of it."""

    def on_put(self, key: str, data: bytes) -> None: ...

    def on_delete(self, keys: Sequence[str]) -> None: ...


@dataclass(slots=True)
class World:
    """See the module. ``attempts``: how often a client's consensus sends a call again."""

    seed: int | str
    fates: Fates
    attempts: int = 20
    store: MemoryStore = field(default_factory=MemoryStore)
    watchers: list[Watcher] = field(default_factory=list)
    clients: dict[str, Client] = field(default_factory=dict)
    requests_count: int = 0
    _trace: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def client(self, name: str, *, skew_us: int = 0) -> Client:
        """Return a new client; each has a name of its own, for its clock's dice."""
        client = Client(self, name, skew_us=skew_us)
        if name in self.clients:
            raise ValueError(f"there was a client {name} already")
        self.clients[name] = client
        return client

    def trace(self) -> str:
        """Return the hash of what was asked of the store so far, in order, with its outcomes."""
        return str(self._trace.hexdigest())

    def note(self, *facts: object) -> None:
        """Put facts into the trace."""
        self._trace.update(repr(facts).encode())


class Client:
    """One process, as far as the store can tell."""

    def __init__(self, world: World, name: str, *, skew_us: int = 0) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.requests_count = 0
        self.clock = SimClock(f"{world.seed} {name}", skew_us=skew_us, check_alive=self.check_alive)
        self.store = Recorded(WayToStore(self))
        self.consensus = StoreConsensus(store=self.store, clock=self.clock, attempts=world.attempts)

    def kill(self) -> None:
        self.is_dead = True

    def check_alive(self) -> None:
        if self.is_dead:
            raise Crashed(self.name)

    async def live(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do ``work`` as this client; None if it died over it.

        Raises:
            whatever ``work`` does.
        """
        try:
            return await work
        except BaseException as error:
            if self.is_dead and not isinstance(error, asyncio.CancelledError):
                return None
            raise


class WayToStore:
    """A client's store: the shared one, and what may befall a request on the way there and back."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._world = client.world
        self._here = client.world.store

    @property
    def url(self) -> str:
        return f"{self._here.url}{self._client.name}"

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self._send(
            "get", key, (start, limit), lambda: self._here.get(key, start=start, limit=limit)
        )

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self._send("refresh", key, (e_tag,), lambda: self._here.refresh(key, e_tag))

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        body = bytes(data)

        async def put() -> str:
            e_tag = await self._here.put(key, body, if_absent=if_absent, if_match=if_match)
            for watcher in self._world.watchers:
                watcher.on_put(key, body)
            return e_tag

        return await self._send("put", key, (if_absent, if_match, body), put)

    async def delete(self, keys: Sequence[str]) -> None:
        gone = list(keys)

        async def delete() -> None:
            await self._here.delete(gone)
            for watcher in self._world.watchers:
                watcher.on_delete(gone)

        await self._send("delete", gone[0] if gone else "", tuple(gone), delete)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async def listed() -> list[Entry]:
            return [entry async for entry in self._here.list(prefix, after=after)]

        for entry in await self._send("list", prefix, (after,), listed):
            yield entry

    async def _send(self, op: str, key: str, details: object, act: Callable[[], Awaitable[T]]) -> T:
        client, world = self._client, self._world
        client.check_alive()
        request = Request(client=client.name, index=client.requests_count, op=op, key=key)
        client.requests_count += 1
        world.requests_count += 1
        fate = world.fates.of(request)
        journey = _Journey(world, request, details, act)
        there, back = world.fates.delay_us(request), world.fates.delay_us(request)
        if fate.happened:
            journey.happen_in(there)
        elif fate.late_us is not None:
            journey.happen_in(there + back + fate.late_us)
        await asyncio.sleep((there + back) / 1e6)
        client.check_alive()
        if fate.dies:
            client.kill()
            if not fate.told:
                raise Crashed(client.name)
        if fate.happened and fate.told:
            answer: T = journey.answer()
            return answer
        if client.is_dead:
            raise Crashed(client.name)
        raise failure_of(request, fate)


class _Journey:
    """A request on its way: it happens when it arrives, whoever waits for it."""

    def __init__(
        self, world: World, request: Request, details: object, act: Callable[[], Awaitable[Any]]
    ) -> None:
        self._world = world
        self._request = request
        self._details = details
        self._act = act
        self._result: Any = None
        self._error: TidelogError | None = None

    def happen_in(self, delay_us: int) -> None:
        asyncio.get_running_loop().call_later(delay_us / 1e6, self._happen)

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def _happen(self) -> None:
        try:
            self._result = at_once(self._act())
        except TidelogError as error:
            self._error = error
        told = self._result if self._error is None else type(self._error).__name__
        self._world.note(self._request, self._details, told)


def at_once(work: Awaitable[T]) -> T:
    """Run what never waits to its end, here and now."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("the shared store waited")


def failure_of(request: Request, fate: Fate) -> LocationError:
    """Return what the caller of a failed request is told."""
    in_doubt = request.changes and not fate.told
    return LocationError(
        "the network failed",
        outcome=Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED,
        client=request.client,
        index=request.index,
        op=request.op,
        key=request.key,
    )
