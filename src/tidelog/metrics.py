"""What tidelog counts and times of its own work, and where the numbers go.

The engine calls the ``observe_`` functions; they hand numbers to the sink in use; by default
there is none, and they do nothing. `METRICS` is the one table of what there is.

The sink is a context variable, and not an argument of everything: numbers are no part of what the
engine decides. Nor is it a module's global: two locations in one process may report to two sinks,
and tests side by side do not mix. Tasks and ``asyncio.to_thread`` take it along; a thread started
in another way begins with the default, unless it is run in ``contextvars.copy_context()``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, Protocol

from tidelog.errors import require


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of number: a sum that only grows, or a spread of sizes."""

    name: str
    kind: Literal["counter", "histogram"]
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()


# fmt: off
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (
    Metric("store_request_seconds", "histogram", "s", "one request to a store", ("kind",)),
    Metric("store_bytes_in", "counter", "B", "bodies read from a store", ("kind",)),
    Metric("store_bytes_out", "counter", "B", "bodies written to a store", ("kind",)),
    Metric("store_sent_again", "counter", "1", "requests sent twice, being slow", ("kind",)),
    Metric("store_cache_reads", "counter", "1", "reads of what may be kept", ("found",)),
    Metric("commit_seconds", "histogram", "s", "from command to committed state", ("machine",)),
    Metric("commit_tries", "counter", "1", "compare-and-sets, lost ones included", ("machine",)),
    Metric("tick_seconds", "histogram", "s", "one tick of a source or rendition", ("collection",)),
    Metric("tick_updates", "counter", "1", "updates that ticks wrote", ("collection",)),
)}
# fmt: on


class Sink(Protocol):
    """Where numbers go. It must neither raise nor wait: it is called from the event loop."""

    def observe(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Add ``value`` to a counter, or to a histogram's spread."""
        ...


_sink: ContextVar[Sink | None] = ContextVar("tidelog_sink", default=None)


@contextmanager
def use_sink(sink: Sink) -> Iterator[None]:
    """Send the numbers of this context, and of tasks begun in it, to ``sink``."""
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)


def observe_store_request(kind: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
    """Report a request to a store; ``kind`` is the port's verb, such as "get" or "put"."""
    _observe("store_request_seconds", seconds, kind=kind)
    _observe("store_bytes_in", bytes_in, kind=kind)
    _observe("store_bytes_out", bytes_out, kind=kind)


def observe_hedge(kind: str) -> None:
    """Report that a slow request is sent a second time; ``kind`` is the port's verb."""
    _observe("store_sent_again", 1, kind=kind)


def observe_cache_read(found: str) -> None:
    """Report where an immutable object was found: "memory", "disk", "joined" or "store"."""
    _observe("store_cache_reads", 1, found=found)


def observe_commit(machine: str, seconds: float, tries: int) -> None:
    """Report a command committed; ``machine`` is the kind of its state, such as "shard"."""
    _observe("commit_seconds", seconds, machine=machine)
    _observe("commit_tries", tries, machine=machine)


def observe_tick(collection: str, seconds: float, updates: int) -> None:
    """Report that a collection got to a new time."""
    _observe("tick_seconds", seconds, collection=collection)
    _observe("tick_updates", updates, collection=collection)


def _observe(name: str, value: float, **labels: str) -> None:
    sink = _sink.get()
    if sink is None:
        return
    metric = METRICS[name]
    require(tuple(labels) == metric.labels, "a metric has other labels", name=name, labels=labels)
    sink.observe(metric, value, labels)
