"""Metrics: numbers reach the sink in use, and no other sink."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pyarrow as pa
import pytest

from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.core.metrics import (
    METRICS,
    Metric,
    _observe,
    observe_cache_read,
    observe_commit,
    observe_hedge,
    observe_store_request,
    observe_tick,
    use_sink,
)
from tidelog.errors import InvariantError
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.cached import CachedStore
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrappers.hedging import Hedging
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing import DelayedStore


class ListSink:
    """Keeps all it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, dict[str, str]]] = []

    def observe(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        self.seen.append((metric.name, value, dict(labels)))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.seen]


def _observe_all() -> None:
    observe_store_request("get", 0.25, bytes_in=10, bytes_out=0)
    observe_hedge("get")
    observe_cache_read("memory")
    observe_commit("shard", 0.125, tries=2)
    observe_tick("flights", 1.5, updates=7)


def test_each_metric_in_the_table_is_observed() -> None:
    """Each metric in the table has a function that observes it."""
    sink = ListSink()
    with use_sink(sink):
        _observe_all()

    assert sink.names == list(METRICS)
    assert ("store_bytes_in", 10, {"kind": "get"}) in sink.seen
    assert ("commit_tries", 2, {"machine": "shard"}) in sink.seen
    assert ("tick_seconds", 1.5, {"collection": "flights"}) in sink.seen


def test_every_row_of_the_table_says_what_it_means() -> None:
    """Each row has a meaning, and its name ends in a unit or in the things counted."""
    for name, metric in METRICS.items():
        assert name == metric.name
        assert metric.meaning
        assert metric.unit in {"s", "B", "1"}
        assert (metric.unit == "s") == name.endswith("_seconds") == (metric.kind == "histogram")
        assert metric.unit != "B" or "_bytes" in name


def test_wrappers_report_what_they_do() -> None:
    """The hedging and caching wrappers report the numbers that show their benefit."""
    sink = ListSink()

    async def main() -> None:
        clock = SimClock(1)
        slow = DelayedStore(MemoryStore(), clock=clock, delay_us=lambda op, key: 5_000)
        eager = Hedging(least_us=1_000, most_us=1_000, samples_min=1, extra_permille=1_000)
        store = CachedStore(
            HedgedStore(slow, clock=clock, hedging=eager),
            clock=clock,
            is_immutable=lambda key: True,
        )
        await slow.put("a", b"")
        await slow.put("b", b"")
        for key in ("a", "b", "b"):
            await store.get(key)

    with use_sink(sink):
        run(main, 1)

    assert [labels["found"] for name, _, labels in sink.seen if name == "store_cache_reads"] == [
        "store",
        "store",
        "memory",
    ]
    assert ("store_sent_again", 1, {"kind": "get"}) in sink.seen


def test_by_default_numbers_go_nowhere() -> None:
    """Without a sink, and after one, nothing happens, not even an error."""
    sink = ListSink()
    _observe_all()
    with pytest.raises(KeyError), use_sink(sink):
        raise KeyError
    _observe_all()

    assert sink.seen == []


def test_sinks_nest() -> None:
    """The innermost gets the numbers, as with any context."""
    outer, inner = ListSink(), ListSink()
    with use_sink(outer):
        with use_sink(inner):
            observe_commit("shard", 1, 1)
        observe_tick("flights", 1, 1)

    assert inner.names == ["commit_seconds", "commit_tries"]
    assert outer.names == ["tick_seconds", "tick_updates"]


async def test_tasks_and_offloaded_work_keep_the_sink_they_began_with() -> None:
    """Two locations in one loop must not report to each other's sink."""
    sinks = ListSink(), ListSink()

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(observe_tick, str(number), 1, number)

    async with asyncio.TaskGroup() as group:
        for number, sink in enumerate(sinks):
            with use_sink(sink):
                group.create_task(work(number))

    for number, sink in enumerate(sinks):
        assert [labels for _, _, labels in sink.seen] == [{"collection": str(number)}] * 2


def test_another_thread_begins_with_the_default() -> None:
    """A new thread starts with the default sink."""
    sink = ListSink()
    with use_sink(sink):
        thread = threading.Thread(target=_observe_all)
        thread.start()
        thread.join()

    assert sink.seen == []


def test_labels_must_be_those_of_the_table() -> None:
    """A sink makes its series from the table."""
    with use_sink(ListSink()), pytest.raises(InvariantError, match="wrong labels"):
        _observe("commit_seconds", 1, kind="get")


async def test_the_engine_feeds_each_metric() -> None:
    """Real work of the engine feeds each metric of the table."""
    sink = ListSink()

    async def work() -> None:
        clock = SystemClock()
        store = MeteringStore(MemoryStore(), clock=clock)
        consensus = StoreConsensus(store=store, clock=clock)
        schema = shard_schema(pa.schema([pa.field("k", pa.string())]))
        shard = Shard(id=ShardId("s"), store=store, consensus=consensus, clock=clock, schema=schema)
        await shard.compare_and_append(None, 0, 1)

    with use_sink(sink):
        await work()

    assert {"store_request_seconds", "store_bytes_out", "commit_seconds"} <= set(sink.names)
