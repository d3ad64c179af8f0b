"""What Spark's tasks do in an executor: read, compute, write parts, and say what they did.

Each function takes and gives an iterator of plain values, as Spark's RDDs do; what is computed is done by
the functions of `tidelog.collection.compute`, as everywhere. Nothing here talks to consensus.

Invariants: an error of ours is a value among the results, never an exception, so that it reaches the
driver as it was raised; anything else is raised, and Spark runs the task again.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.clock import Clock, SystemClock
from tidelog.collection.catalog import ERRORS_SCHEMA
from tidelog.collection.compute import Shaped, error_updates, shape_messages
from tidelog.collection.engine import (
    LocalEngine,
    describe_error,
    part_writer,
    split_by_bucket,
)
from tidelog.collection.envelope import RANK, messages_schema
from tidelog.collection.files import FilesSource
from tidelog.errors import TidelogError
from tidelog.persist.duck import duck
from tidelog.persist.part import Part
from tidelog.rowhash import bucket_of, hash_rows
from tidelog.spark.plan import Piece, Share, cut_piece
from tidelog.store.metered import Metered, Usage
from tidelog.store.port import Store
from tidelog.store.urls import open_store

CACHE_BYTES = 64 * 1024 * 1024
READS = 4


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one task did: the parts it wrote, by place of their shard, and what there is to tell.

    Shape: ``error`` is a pickled error, and then there is nothing else.
    """

    parts: dict[int, tuple[Part, ...]] = {}
    error_parts: tuple[Part, ...] = ()
    rows: int = 0
    bad: int = 0
    dropped: dict[str, int] = {}
    first_error: str | None = None
    usage: dict[str, int] = {}
    error: bytes = b""


# What a task hands on to the second stage: a place and messages in Arrow's stream format, or a share, a
# report of the first stage, or an error.
Handed = tuple[int, bytes] | Share | Found
First = tuple[bytes, tuple[bytes, ...]]  # a share, and those of the second stage for it to hand on


@dataclass(slots=True, kw_only=True)
class Bench:
    """What a worker keeps from one task to the next: open stores, and parts it read last."""

    clock: Clock
    location_url: str
    store: Metered = field(init=False)
    engine: LocalEngine = field(init=False)
    _stores: dict[str, Store] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = Metered(open_store(self.location_url, clock=self.clock), clock=self.clock)
        self.engine = LocalEngine(store=self.store, clock=self.clock, cache_bytes=CACHE_BYTES)
        # A task has one core, and a machine may run as many tasks as it has.
        pa.set_cpu_count(1)
        with duck() as connection:
            connection.execute("SET threads = 1")

    def source(self, share: Share) -> FilesSource:
        """Open the share's source, on a store that stays open."""
        info = share.job.source
        store = self._stores.get(info.url)
        if store is None:
            store = self._stores[info.url] = open_store(info.url, clock=self.clock)
        return FilesSource(
            store=store, clock=self.clock, info=info, schema=share.job.data_schema
        )


# One bench a process and location, since opening a store connects it anew. Keyed by process id too, as
# Spark forks its workers.
_benches: dict[tuple[int, str], Bench] = {}


def bench_for(location_url: str) -> Bench:
    """Give this process's bench for a location."""
    found = _benches.get((os.getpid(), location_url))
    if found is None:
        found = Bench(clock=SystemClock(), location_url=location_url)
        _benches[os.getpid(), location_url] = found
    return found


def run_shares(shares: Iterator[bytes]) -> Iterator[bytes]:
    """Do shares whole: read their ranges, or pieces of them, and write the output's parts."""
    # A worker that leaves input unread is thrown away: all of it is taken first.
    for data in list(shares):
        share = msgspec.msgpack.decode(data, type=Share)
        yield msgspec.msgpack.encode(_run(share))


def shape_shares(firsts: Iterator[First]) -> Iterator[tuple[int, bytes]]:
    """Decode shares, and give each message with the number of the partition that its key belongs to."""
    for data, finishes in list(firsts):
        share = msgspec.msgpack.decode(data, type=Share)
        for partition, finish in enumerate(finishes):
            yield partition, b"s" + finish
        yield from _hand_on(share)


def finish_shares(handed: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """Write the output's parts out of the messages that came together in this partition."""
    told = [item for _, item in handed]
    reports = [item[1:] for item in told if item[:1] == b"r"]
    yield from reports
    if any(msgspec.msgpack.decode(report, type=Found).error for report in reports):
        return
    shares = [msgspec.msgpack.decode(t[1:], type=Share) for t in told if t[:1] == b"s"]
    tables = [t[1:] for t in told if t[:1] == b"m"]
    for share in shares:
        yield msgspec.msgpack.encode(_finish(share, tables))


def _run(share: Share) -> Found:
    bench = bench_for(share.location_url)

    async def run() -> Found:
        if share.job.ranges:
            return await _compute(share, bench)
        shaped = await _shape(share, bench)
        found = await _report(share, bench, shaped)
        messages = pa.concat_tables([s.messages for s in shaped])
        buckets = split_by_bucket(messages, share.job)
        return msgspec.structs.replace(found, parts=await _write(share, bench, buckets))

    return _told(bench, run)
