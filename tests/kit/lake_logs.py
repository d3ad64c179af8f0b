"""Logs of both protocols in a location on disk, for tests with other processes that read them.

Only `roll_up` and `collect` roll up or collect a log, so a test knows the place of each record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from kit.protocols import SMALL
from tidelog.core.clock import SystemClock
from tidelog.location import open_location
from tidelog.store.local.store import LocalStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest import MANIFEST, encode_manifest, tail_of
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.snapshot import sum_of
from tidelog.wal.log import LOG_RECORDS, Log
from tidelog.wal.logs import log_folder
from tidelog.wal.opening import PROTOCOLS
from tidelog.wal.read.head import load_head
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.shape import Shape

T = TypeVar("T")

CLOCK = SystemClock()
NEVER = 10**15


def folder_of(lake: Path, name: str) -> Path:
    return lake / log_folder(name)


def store_of(lake: Path, name: str) -> LocalStore:
    return LocalStore(folder_of(lake, name), clock=CLOCK)


def make(lake: Path, name: str, protocol: str) -> None:
    """Make a log, and the location if it does not exist."""

    async def work() -> None:
        location = await open_location(str(lake), create=True)
        await location.logs.create(name, protocol=protocol)

    asyncio.run(work())


def append(
    lake: Path, name: str, batches: Sequence[Sequence[bytes]], *, rollover: Rollover = SMALL
) -> None:
    """Append batches, each as one object; a slot log gets one epoch for this call."""
    shape = Shape(rollup_slots=NEVER, rollup_interval_us=NEVER, rollover=rollover)

    async def work() -> None:
        location = await open_location(str(lake))
        # The log is not closed, because a close would roll up.
        log = await location.log(name, shape=shape, batching=Batching(interval_us=0))
        for batch in batches:
            await log.append(batch)

    asyncio.run(work())


def batches_of(count: int, *, of: int = 10, first: int = 0) -> list[list[bytes]]:
    """Return batches with distinct bodies."""
    return [[b"%d.%d" % (first + n, k) * (1 + k % 3) for k in range(of)] for n in range(count)]


def roll_up(lake: Path, name: str, *, rollover: Rollover = SMALL) -> None:
    """Roll up all slots of a slot log into its manifest."""

    async def work() -> None:
        store = store_of(lake, name)
        head, steps = await load_head(store), list[Step]()
        async for passed in ChainReader(store=store, clock=CLOCK).walk(tail_of(head.manifest)):
            steps.append(passed.step)
        roller = Checkpointer(store=store, clock=CLOCK, writer="roller", rollover=rollover)
        await roller.roll_up(head, steps)

    asyncio.run(work())


def collect(lake: Path, name: str, count: int) -> int:
    """Collect the first fragments of the manifest itself; return the oldest position left."""

    async def work() -> int:
        store = store_of(lake, name)
        manifest = (await load_head(store)).manifest
        gone, left = manifest.fragments[:count], manifest.fragments[count:]
        assert not manifest.snapshots
        assert left
        after = replace(
            manifest,
            fragments=left,
            collected=manifest.collected + sum_of(gone),
            initial_offset=left[0].start,
            initial_seq_no=left[0].seq_no,
        )
        await store.put(MANIFEST, encode_manifest(after))
        await store.delete([fragment.path for fragment in gone])
        return left[0].start

    return asyncio.run(work())


def records(lake: Path, name: str, start: int = 0, limit: int | None = None) -> pa.Table:
    """Return the records of a plain scan."""

    async def work(log: Log) -> pa.Table:
        tables = [table async for table in log.scan(start, limit=limit)]
        return pa.concat_tables([LOG_RECORDS.empty_table(), *tables])

    return on_log(lake, name, work)


def scrubbed(lake: Path, name: str) -> ScrubReport:
    """Return the result of a plain scrub."""
    return on_log(lake, name, lambda log: log.scrub())


def on_log(lake: Path, name: str, work: Callable[[Log], Awaitable[T]]) -> T:
    """Open a log, do work with it, and return the result."""

    async def whole() -> T:
        location = await open_location(str(lake))
        async with await location.log(name) as log:
            return await work(log)

    return asyncio.run(whole())


def make_two(lake: Path, count: int) -> None:
    """Make a log of each protocol; the slot log has a roll-up and a tail of two more epochs."""
    for protocol in PROTOCOLS:
        make(lake, protocol, protocol)
        append(lake, protocol, batches_of(count))
    roll_up(lake, "slot")
    for first in (count, count + 3):
        append(lake, "slot", batches_of(3, first=first))
