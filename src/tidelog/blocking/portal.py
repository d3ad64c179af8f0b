"""An event loop in a thread of its own, for programs without a loop.

The portal does not survive a fork: its calls in a child raise HandleError. It never touches a loop
of the caller.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # It registers its end first: see `_register`.
import inspect
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Protocol, Self, TypeVar

from tidelog.core.arguments import check_kind
from tidelog.core.clock import MAY_WAIT
from tidelog.errors import HandleError, Outcome, TidelogError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
A = TypeVar("A")
F = TypeVar("F")

# Each thread keeps memory for itself: with more threads, reads and upserts take longer.
THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)
WAITING_MAX: Final = 2**20  # Each thread of the caller has one call at a time, with one such work.


class Workers(ThreadPoolExecutor):
    """One portal's use of the threads of all portals; it ends when its own work has ended.

    Threads outlive a connection, because they keep memory. A later connection reads into that
    memory; new memory costs as much time as the decoding of rows.
    """

    _pool: ClassVar[ThreadPoolExecutor]
    _waiting: ClassVar[ThreadPoolExecutor]

    def __init__(self) -> None:
        super().__init__(1)  # The loop demands this class; its own threads never start.
        self._running: set[Future[Any]] = set()

    @classmethod
    def begin(cls) -> None:
        """Begin with no thread: a forked child has none of its parent's."""
        cls._pool = ThreadPoolExecutor(THREADS_MAX, "tidelog-work")
        cls._waiting = ThreadPoolExecutor(WAITING_MAX, "tidelog-rows")

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        pool = self._waiting if MAY_WAIT.get() else self._pool
        future = pool.submit(fn, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if wait:
            concurrent.futures.wait(list(self._running))


Workers.begin()
os.register_at_fork(after_in_child=Workers.begin)


class Portal:
    """One event loop in one thread; `run` executes coroutines in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(Workers())
        self._process = os.getpid()
        self._is_closing = False
        # A coroutine that enters under this lock is in the loop before `_end` cancels all tasks.
        self._door = threading.Lock()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidelog", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def __reduce__(self) -> NoReturn:
        # pickle and copy call this for each object that refers to the connection.
        raise TypeError(
            "a connection and its handles cannot be pickled or copied: pass the URL, and connect "
            "in the process that needs it"
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; interrupting the wait cancels it.

        Raises:
            HandleError: the connection was closed, or belongs to the process before a fork. The
                outcome is UNKNOWN if another thread closed it during the call.
            Any error of ``work``.
        """
        if os.getpid() != self._process:
            work.close()
            raise HandleError(
                "the connection was opened before a fork: connect again in this process"
            )
        with self._door:
            if self._is_closing:
                work.close()
                raise HandleError("the connection is closed: connect again")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError as error:
            if not self._is_closing:
                raise
            raise HandleError(
                "another thread closed the connection during the call: connect again, and check "
                "whether the change was applied",
                outcome=Outcome.UNKNOWN,
            ) from error
        except BaseException:
            future.cancel()
            raise

    def call(self, work: Callable[[], T]) -> T:
        """Call a plain function in the loop and wait for its result."""

        async def called() -> T:
            return work()

        return self.run(called())

    def close(self) -> None:
        """Cancel the running tasks, then end the loop and its threads.

        A second call does nothing. In a forked child, a call does nothing.
        """
        self._close()
        _OPEN.discard(self)

    def _close(self, *, exits: bool = False) -> None:
        if os.getpid() != self._process:
            return
        with self._door:
            self._is_closing = True
        with self._ending:
            if self._loop.is_closed():
                return
            asyncio.run_coroutine_threadsafe(self._end(exits), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self, exits: bool) -> None:
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        if not exits:  # It starts a thread, which fails while the interpreter exits.
            await self._loop.shutdown_default_executor()

    def iterate(self, stream: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of a stream, which runs only while the caller waits for an item.

        A caller that stops before the end, as by ``break``, ends the stream with its tasks.
        """

        async def next_one() -> tuple[T] | None:
            try:
                return (await anext(stream),)
            except StopAsyncIteration:
                return None

        try:
            while (item := self.run(next_one())) is not None:
                yield item[0]
        except GeneratorExit:
            self._end_stream(stream)
            raise

    def _end_stream(self, stream: AsyncIterator[Any]) -> None:
        if self._is_closing or sys.is_finalizing() or threading.current_thread() is self._thread:
            return  # The loop ends its streams itself, and cannot wait for its own thread.

        async def end() -> None:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

        with suppress(TidelogError):
            self.run(end())


# The open portals. Each is closed at exit; otherwise the interpreter warns of pending tasks.
_OPEN: Final[weakref.WeakSet[Portal]] = weakref.WeakSet()


def _close_at_exit() -> None:
    for portal in list(_OPEN):
        portal._close(exits=True)


# `atexit` comes too late: the pools of threads have shut down by then, and a task at work would
# fail. Functions registered here run in reverse order, and the pools' own was registered before.
_register = getattr(threading, "_register_atexit", atexit.register)
_register(_close_at_exit)


class BlockingTwin(Generic[A]):
    """A blocking twin: its methods run those of the awaited ``inner`` by a portal."""

    def __init__(self, portal: Portal, inner: A) -> None:
        self._portal = portal
        self._inner = inner


class AsyncHandle(Protocol):
    """A handle that ends with its ``async with`` block."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


C = TypeVar("C", bound=AsyncHandle)


class ClosingTwin(BlockingTwin[C]):
    """A blocking twin that ends with its ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(self._inner.__aexit__(kind, error, trace))


class Connection(BlockingTwin[A]):
    """A blocking twin that owns its portal; close it, or use it in ``with``."""

    def close(self) -> None:
        """Close the connection and all that was opened by it."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AwaitedRows(Protocol):
    """Rows that are read on demand."""

    async def to_arrow(self) -> pa.Table: ...


R = TypeVar("R", bound=AwaitedRows)


class RowsTwin(BlockingTwin[R]):
    """A blocking twin of rows, which other libraries read by the Arrow C stream interface."""

    def __len__(self) -> int:
        return self._portal.run(self._inner.to_arrow()).num_rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        table = self._portal.run(self._inner.to_arrow())
        stream: object = table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
        return stream


def unwrapped(twin: BlockingTwin[A], kind: type[BlockingTwin[A]]) -> A:
    """Return the awaited object of a blocking argument.

    Raises:
        UsageError: the argument has another type.
    """
    check_kind(twin, kind, f"the argument must be a tidelog.{kind.__name__}")
    return twin._inner


def documented_as(awaited: type) -> Callable[[type[F]], type[F]]:
    """Return a class decorator that copies the docstrings of an awaited class.

    A method or property with a docstring of its own keeps it.
    """

    def document(twin: type[F]) -> type[F]:
        for name, member in vars(twin).items():
            if isinstance(member, property | FunctionType) and not member.__doc__:
                member.__doc__ = inspect.getdoc(getattr(awaited, name, None))
        return twin

    return document
