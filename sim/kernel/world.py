"""A world: one shared store, and clients that reach it over an unreliable network.

Each client has its own path to the shared store, a clock and a consensus. A request may happen at
the store even if its client no longer waits, is dead, or got an error. Every request goes into a
trace, whose hash is equal for equal seeds.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from sim.kernel.clock import SimClock
from sim.kernel.faults import Fault, ReportedError, Request, Schedule
from sim.kernel.loop import Crashed, SimLoop, owned_by
from tidelog.consensus.store import StoreConsensus
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    Outcome,
    StoreRefused,
    TidelogError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object
from tidelog.testing.recorded import RecordedStore

T = TypeVar("T")


class Watcher(Protocol):
    """An observer of the shared store, called directly after each change."""

    def on_put(self, key: str, data: bytes) -> None: ...

    def on_delete(self, keys: Sequence[str]) -> None: ...


class LateChange(Protocol):
    """A change that is under way."""

    @property
    def key(self) -> str: ...

    @property
    def op(self) -> str: ...

    async def land(self, store: MemoryStore, watcher: Watcher) -> None:
        """Apply the change to a store, which may refuse it."""
        ...


@dataclass(frozen=True, slots=True)
class Copy:
    """The stored objects at one moment, and the changes that were under way."""

    store: MemoryStore
    late: Sequence[LateChange]

    async def land_all(self, watcher: Watcher, *, but: str) -> None:
        """Apply the changes under way to the copy, except those of the key ``but``."""
        for change in self.late:
            if change.key != but:
                await change.land(self.store, watcher)


@dataclass(slots=True)
class World:
    """A world; see the module. ``attempts``: how often a client's consensus retries a call.

    ``struck`` counts, by kind, the faults that took effect on a request, a client or its clock.
    """

    seed: int | str
    schedule: Schedule
    attempts: int = 20
    store: MemoryStore = field(default_factory=MemoryStore)
    watchers: list[Watcher] = field(default_factory=list)
    clients: dict[str, Client] = field(default_factory=dict)
    requests_count: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    _under_way: dict[LateChange, float] = field(default_factory=dict)
    _trace: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def client(self, name: str, *, skew_us: int = 0) -> Client:
        """Return a new client; its name must be new, because it seeds the client's clock."""
        client = Client(self, name, skew_us=skew_us)
        if name in self.clients:
            raise ValueError(f"there was a client {name} already")
        self.clients[name] = client
        return client

    def trace(self) -> str:
        """Return the hash of all requests to the store so far, in order, with their outcomes."""
        return str(self._trace.hexdigest())

    def note(self, *facts: object) -> None:
        """Put facts into the trace."""
        self._trace.update(repr(facts).encode())

    def sent(self, put: LateChange, moment: float) -> None:
        """Record a change under way, and the moment at which it reaches the store."""
        self._under_way[put] = moment

    def arrived(self, put: LateChange) -> None:
        """Record that a change has arrived."""
        self._under_way.pop(put, None)

    def copy(self) -> Copy:
        """Return the stored objects and the changes under way, in their order of arrival."""
        store = type(self.store)(objects=dict(self.store.objects), puts_count=self.store.puts_count)
        late = sorted(self._under_way, key=self._under_way.__getitem__)
        return Copy(store, late)

    async def until_all_has_landed(self) -> None:
        """Wait until no change is under way, however late it is."""
        if self._under_way:
            left = max(self._under_way.values()) - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, left) + 1e-6)
            await self.until_all_has_landed()


class Client:
    """One process, as the store sees it. `start` begins its tasks."""

    def __init__(self, world: World, name: str, *, skew_us: int = 0) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.requests_count = 0
        self.clock = SimClock(
            f"{world.seed} {name}",
            skew_us=skew_us,
            check_alive=self.check_alive,
            jumps=world.schedule.jumps_of(name),
            on_jump=self._on_jump,
        )
        self.store = RecordedStore(WayToStore(self))
        self.consensus = StoreConsensus(store=self.store, clock=self.clock, attempts=world.attempts)

    def kill(self) -> None:
        self.is_dead = True

    def check_alive(self) -> None:
        if self.is_dead:
            raise Crashed(self.name)

    @property
    def stopped_for(self) -> float:
        """Return the seconds until a paused client resumes."""
        return _loop().stopped_for(self.name)

    @property
    def stopped_seconds(self) -> float:
        """Return how long the client has paused, including the rest of a pause under way."""
        return _loop().stopped_seconds(self.name)

    def stop(self, seconds: float) -> None:
        """Pause the client: its tasks and timers wait while the world continues."""
        self.world.struck["stopped"] += 1
        self.world.note(self.name, "stops", seconds)
        _loop().stop_owner(self.name, seconds)

    def start(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this client; the tasks that it starts belong to the client too."""
        return group.create_task(work, name=self.name, context=owned_by(self.name))

    def _on_jump(self) -> None:
        self.world.struck["jumped"] += 1

    async def live(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run ``work`` as this client; return None if the client died during it.

        Raises:
            whatever ``work`` raises.
        """
        try:
            return await work
        except BaseException as error:
            if self.is_dead and not isinstance(error, asyncio.CancelledError):
                return None
            raise


class WayToStore:
    """A client's store: the shared store, behind a network with faults in both directions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._world = client.world
        self._here = client.world.store

    @property
    def url(self) -> str:
        return f"{self._here.url}{self._client.name}"

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        async def get(share: float, here: MemoryStore, _: object) -> Object:
            found = await here.get(key, start=start, limit=limit)
            if share >= 1.0:
                return found
            self._world.struck["short"] += 1
            return replace(found, data=found.data[: int(len(found.data) * share)])

        return await self._send("get", key, (start, limit), get)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        async def refresh(_: float, here: MemoryStore, __: object) -> Object | None:
            return await here.refresh(key, e_tag)

        return await self._send("refresh", key, (e_tag,), refresh)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        body = bytes(data)

        async def put(_: float, here: MemoryStore, watchers: Sequence[Watcher]) -> str:
            e_tag = await here.put(key, body, if_absent=if_absent, if_match=if_match)
            for watcher in watchers:
                watcher.on_put(key, body)
            return e_tag

        return await self._send("put", key, (if_absent, if_match, body), put)

    async def delete(self, keys: Sequence[str]) -> None:
        gone = list(keys)

        async def delete(share: float, here: MemoryStore, watchers: Sequence[Watcher]) -> None:
            going = self._share_of(gone, share)
            await here.delete(going)
            for watcher in watchers:
                watcher.on_delete(going)

        key = gone[0] if gone else ""
        await self._send("delete", key, tuple(gone), delete, size=len(gone))

    def _share_of(self, keys: list[str], share: float) -> list[str]:
        """Return the part of a deletion's keys that is deleted: any of them, in any order."""
        if share >= 1.0:
            return keys
        dice = random.Random(f"{self._world.seed} {self._client.name} {len(keys)} {share}")
        there = [key for key in keys if key in self._here.objects]
        going = dice.sample(keys, round(len(keys) * share))
        self._world.struck["cut"] += 0 < len(set(there) - set(going)) < len(there)
        return going

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async def listed(_: float, here: MemoryStore, __: object) -> list[Entry]:
            return [entry async for entry in here.list(prefix, after=after)]

        for entry in await self._send("list", prefix, (after,), listed):
            yield entry

    async def _send(
        self,
        op: str,
        key: str,
        details: object,
        act: Callable[[float, MemoryStore, Sequence[Watcher]], Awaitable[T]],
        *,
        size: int = 1,
    ) -> T:
        client, world = self._client, self._world
        client.check_alive()
        at_us = round(asyncio.get_running_loop().time() * 1e6)
        index, client.requests_count = client.requests_count, client.requests_count + 1
        request = Request(client=client.name, index=index, op=op, key=key, size=size, at_us=at_us)
        world.requests_count += 1
        fault = world.schedule.of(request)
        # A cut counts only if it left some existing object undeleted.
        if fault.kind and fault.share == 1.0:
            world.struck[fault.kind] += 1
        journey = _Journey(world, request, details, partial(act, fault.share))
        there, back = world.schedule.delay_us(request), world.schedule.delay_us(request)
        if fault.happened:
            journey.happen_in(there)
        elif fault.late_us is not None:
            journey.happen_in(there + back + fault.late_us)
        if fault.stops_us:
            client.stop(fault.stops_us / 1e6)
        await asyncio.sleep((there + back) / 1e6)
        answer: T = self._end_of(request, fault, journey)
        return answer

    def _end_of(self, request: Request, fault: Fault, journey: _Journey) -> Any:
        """Return the answer if it arrives; a client that has died in between does not get it."""
        client = self._client
        client.check_alive()
        if fault.dies:
            client.kill()
            if not fault.told:
                raise Crashed(client.name)
        if fault.happened and fault.told:
            return journey.answer()
        if client.is_dead:
            raise Crashed(client.name)
        if fault.error is ReportedError.SHORT:
            journey.answer()  # A get of a missing object raises; it cannot be cut short.
        raise failure_of(request, fault)


class _Journey:
    """A request on its way: it happens on arrival, even if its client no longer waits."""

    def __init__(
        self,
        world: World,
        request: Request,
        details: object,
        act: Callable[[MemoryStore, Sequence[Watcher]], Awaitable[Any]],
    ) -> None:
        self._world = world
        self._request = request
        self._details = details
        self._act = act
        self._result: Any = None
        self._error: TidelogError | None = None

    def happen_in(self, delay_us: int) -> None:
        loop = _loop()
        if self._request.changes:
            self._world.sent(self, loop.time() + delay_us / 1e6)
        # From here it belongs to the world, and continues while its client is paused.
        loop.call_later(delay_us / 1e6, self._happen, context=contextvars.Context())

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def op(self) -> str:
        return self._request.op

    @property
    def key(self) -> str:
        return self._request.key

    async def land(self, store: MemoryStore, watcher: Watcher) -> None:
        with suppress(TidelogError):
            await self._act(store, [watcher])

    def _happen(self) -> None:
        self._world.arrived(self)
        try:
            self._result = at_once(self._act(self._world.store, self._world.watchers))
        except TidelogError as error:
            self._error = error
        told = self._result if self._error is None else type(self._error).__name__
        self._world.note(self._request, self._details, told)


def _loop() -> SimLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), "a world lives on a loop of its own kind"
    return loop


def at_once(work: Awaitable[T]) -> T:
    """Run to its end, in one step, a coroutine that never waits."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("the shared store waited")


def failure_of(request: Request, fault: Fault) -> TidelogError:
    """Return the error that the caller of a failed request gets."""
    facts: dict[str, Any] = {
        "client": request.client,
        "index": request.index,
        "op": request.op,
        "key": request.key,
    }
    if fault.error is ReportedError.BUSY:
        # Stores answer so whatever the outcome of an earlier attempt of the same put.
        return ContentionError("the store is busy with other conditional writes", **facts)
    if fault.error is ReportedError.DENIED:
        return StoreRefused("the store denies this", **facts)
    if fault.error is ReportedError.SHORT:
        return CorruptionError("the store gave other bytes than it announced", **facts)
    in_doubt = request.changes and not fault.told
    outcome = Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED
    return LocationError("the network failed", outcome=outcome, **facts)
