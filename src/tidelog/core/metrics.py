"""Metrics: counters and timings of tidelog's own work, and the sink that receives them.

The engine calls the ``observe_`` functions, which pass numbers to the current sink. By default no
sink is set, and they do nothing. `METRICS` is the table of all metrics.

The sink is a context variable, not an argument, because metrics are not part of the engine's
decisions. It is not a module global: two locations in one process may report to two sinks, and
concurrent tests stay separate. Tasks and ``asyncio.to_thread`` inherit it. A thread started in
another way begins with the default, unless it runs in ``contextvars.copy_context()``.
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
    """One metric: a counter, which only grows, or a histogram of sizes."""

    name: str
    kind: Literal["counter", "histogram"]
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()


# fmt: off
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (
    Metric("store_request_seconds", "histogram", "s", "duration of a store request", ("kind",)),
    Metric("store_bytes_in", "counter", "B", "bytes read from the store", ("kind",)),
    Metric("store_bytes_out", "counter", "B", "bytes written to the store", ("kind",)),
    Metric("store_sent_again", "counter", "1", "slow requests sent a second time", ("kind",)),
    Metric("store_cache_reads", "counter", "1", "reads of immutable objects", ("found",)),
    Metric("commit_seconds", "histogram", "s", "from a command to its commit", ("machine",)),
    Metric("commit_tries", "counter", "1", "compare-and-sets, failed ones too", ("machine",)),
    Metric("tick_seconds", "histogram", "s", "one tick of a source or rendition", ("collection",)),
    Metric("tick_updates", "counter", "1", "updates that ticks wrote", ("collection",)),
)}
# fmt: on


class Sink(Protocol):
    """The receiver of metrics. The event loop calls it, so it must neither raise nor block."""

    def observe(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Add ``value`` to a counter or a histogram."""
        ...


# Callers on a hot path look here first, because most processes have no sink.
SINK: ContextVar[Sink | None] = ContextVar("tidelog_sink", default=None)


@contextmanager
def use_sink(sink: Sink) -> Iterator[None]:
    """Send the numbers of this context, and of tasks begun in it, to ``sink``."""
    token = SINK.set(sink)
    try:
        yield
    finally:
        SINK.reset(token)


def observe_store_request(kind: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
    """Report a request to a store; ``kind`` is the port's verb, such as "get" or "put"."""
    _observe("store_request_seconds", seconds, kind=kind)
    _observe("store_bytes_in", bytes_in, kind=kind)
    _observe("store_bytes_out", bytes_out, kind=kind)


def observe_hedge(kind: str) -> None:
    """Report a second request for a slow one; ``kind`` is the port's verb."""
    _observe("store_sent_again", 1, kind=kind)


def observe_cache_read(found: str) -> None:
    """Report where an immutable object was found: "memory", "disk", "joined" or "store"."""
    _observe("store_cache_reads", 1, found=found)


def observe_commit(machine: str, seconds: float, tries: int) -> None:
    """Report a committed command; ``machine`` is the kind of its state, such as "shard"."""
    _observe("commit_seconds", seconds, machine=machine)
    _observe("commit_tries", tries, machine=machine)


def observe_tick(collection: str, seconds: float, updates: int) -> None:
    """Report that a collection advanced to a new time."""
    _observe("tick_seconds", seconds, collection=collection)
    _observe("tick_updates", updates, collection=collection)


def _observe(name: str, value: float, **labels: str) -> None:
    sink = SINK.get()
    if sink is None:
        return
    metric = METRICS[name]
    require(tuple(labels) == metric.labels, "a metric got wrong labels", name=name, labels=labels)
    sink.observe(metric, value, labels)
