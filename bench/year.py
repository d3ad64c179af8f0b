"""The state of a shard that is written each second for a day, and an estimate for a year.

Each tick replaces some rows of a keyed collection, as an upsert source does. It is committed with
its retention in one request. Due merges run concurrently, and merged objects are deleted after an
hour. The wall clock is simulated: a second per tick. The store is in memory and counts requests, at
S3's prices. At each doubling of the time, the program prints these figures of a new handle.

- The number of batches, and the seconds to open the state and to read it.
- The writes of each row, by its tick and by merges.
- The stored rows for each row that a reader can distinguish. Such rows are the updates after since,
  and the rows as of since.

The estimate for a year follows the law of the doublings: a straight line over the logarithm of the
ticks, or over their inverse. It is fitted to the figures after the fourth hour. With several
shards, each has its share of the rows and keys and is written each second. The figures then cover
all shards.

    python bench/year.py [--hours N] [--rows N] [--keys N] [--retain forever|1h] [--shards N]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from figures import print_table
from tidelog.collection.catalog.retention import history_at, parse_retention_ms
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.compactor import CompactionReport, compact, is_due
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.store.memory import MemoryStore
from tidelog.store.prices import storage_dollars_a_year
from tidelog.store.wrappers.metered import MeteringStore

FIELDS: list[pa.Field[pa.DataType]] = [pa.field("k", pa.int64()), pa.field("v", pa.int64())]
SCHEMA = shard_schema(pa.schema(FIELDS), key=["k"])
AIM_AMPLIFICATION, AIM_SPACE = "1 + log2(batches)", 1.1
TICK_US = 1_000_000
HOUR_TICKS = 3_600
YEAR_TICKS = 365 * 86_400


class MadeUpClock(SystemClock):
    """The machine's clock, except that wall time advances one second per tick."""

    ticks = 0

    def now_us(self) -> int:
        return 1_700_000_000_000_000 + self.ticks * TICK_US


@dataclass(slots=True)
class Year:
    """A shard that is written once per simulated second."""

    rows: int
    keys: int
    retain_ms: int | None
    number: int = 0
    clock: MadeUpClock = field(default_factory=MadeUpClock)
    merged: CompactionReport = field(default_factory=CompactionReport)
    appended: int = 0
    memory: MemoryStore = field(default_factory=MemoryStore)
    by_tick: list[int] = field(default_factory=list)
    dice: np.random.Generator = field(init=False)
    newest: np.ndarray[Any, np.dtype[np.int64]] = field(init=False)
    store: MeteringStore = field(init=False)
    shard: Shard = field(init=False)

    def __post_init__(self) -> None:
        self.dice = np.random.default_rng(7 + self.number)
        self.store = MeteringStore(self.memory, clock=self.clock)
        self.shard = self.handle()
        self.newest = np.full(self.keys, -1, np.int64)

    def handle(self) -> Shard:
        return Shard(
            id=ShardId("year"),
            store=self.store,
            consensus=StoreConsensus(store=self.store, clock=self.clock),
            clock=self.clock,
            schema=SCHEMA,
            first_holds={HISTORY_HOLD: Frontier.at(0)},
        )

    async def tick(self) -> None:
        """Replace some rows, and run due merges."""
        moment = 1_000 * self.clock.ticks
        table = self.replaced(moment)
        self.appended += table.num_rows
        self.by_tick.append(table.num_rows)
        upper = moment + 1_000
        holds = {"ingest": Frontier.at(moment)}
        if self.retain_ms is not None:
            holds[HISTORY_HOLD] = history_at(upper, self.retain_ms)
        await self.shard.compare_and_append(table, moment, upper, holds=holds)
        self.clock.ticks += 1
        while is_due(self.shard):
            self.merged += await compact(self.shard, merges_max=1)

    def replaced(self, moment: int) -> pa.Table:
        """Return the updates of a tick: each chosen key gets the moment as its value."""
        # Some keys change often, and most keys seldom.
        chosen = np.unique((self.keys * self.dice.random(self.rows) ** 3).astype(np.int64))
        old = self.newest[chosen]
        there = old >= 0
        self.newest[chosen] = moment
        keys = np.concatenate([chosen[there], chosen])
        values = np.concatenate([old[there], np.full(len(chosen), moment)])
        diffs = np.concatenate([np.full(there.sum(), -1), np.full(len(chosen), 1)])
        columns = [keys, values, np.full(len(keys), moment), diffs]
        names = SCHEMA.updates.names
        return pa.table([pa.array(c, pa.int64()) for c in columns], names).cast(SCHEMA.updates)

    def told_apart(self) -> int:
        """Return the number of updates that a reader from since on can distinguish."""
        since = self.shard.state.since or 0
        if not since:
            return self.appended
        # No key is ever removed, so as of since about as many rows exist as now.
        return int((self.newest >= 0).sum()) + sum(self.by_tick[since // 1_000 + 1 :])

    async def measured(self) -> Figures:
        before = self.store.usage()
        start = time.perf_counter()
        newcomer = self.handle()
        state = await newcomer.refresh()
        opened_s = time.perf_counter() - start
        requests = (self.store.usage() - before).requests_count
        start = time.perf_counter()
        upper = state.upper or 1
        found = await newcomer.snapshot_of(state, upper - 1).to_arrow()
        read_s = time.perf_counter() - start
        reads = (self.store.usage() - before).requests_count - requests
        assert found.num_rows == int((self.newest >= 0).sum()), "rows are missing"
        usage = self.store.usage()
        batches = len(state.batches)
        return Figures(
            ticks=self.clock.ticks,
            updates=self.appended,
            batches=batches,
            open_requests=requests,
            open_ms=1e3 * opened_s,
            read_requests=reads,
            read_ms=1e3 * read_s,
            written=(self.merged.rows_written + self.appended) / self.appended,
            written_aim=1 + math.log2(max(1, batches)),
            stored=state.totals.rows / self.told_apart(),
            objects=len(self.memory.objects),
            requests_a_tick=usage.requests_count / self.clock.ticks,
            dollars_a_year=usage.dollars / self.clock.ticks * YEAR_TICKS,
            storage_dollars_a_year=storage_dollars_a_year(
                sum(len(one.data) for one in self.memory.objects.values())
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one shard, or of several: means of their figures, and sums of their costs."""

    ticks: int
    updates: int
    batches: float
    open_requests: float
    open_ms: float
    read_requests: float
    read_ms: float
    written: float
    written_aim: float
    stored: float
    objects: int
    requests_a_tick: float
    dollars_a_year: float
    storage_dollars_a_year: float

    def row(self) -> list[str]:
        return [
            f"{self.ticks / HOUR_TICKS:g} h",
            f"{self.updates:,}",
            f"{self.batches:.0f}",
            f"{self.open_requests:.0f} in {self.open_ms:.0f} ms",
            f"{self.read_requests:.0f} in {self.read_ms:.0f} ms",
            f"{self.written:.2f} ({self.written_aim:.2f})",
            f"{self.stored:.2f}",
            f"{self.objects:,}",
            f"{self.requests_a_tick:.2f}",
            f"{self.dollars_a_year:,.0f}",
            f"{self.storage_dollars_a_year:,.4f}",
        ]


SUMMED = ("updates", "objects", "requests_a_tick", "dollars_a_year", "storage_dollars_a_year")
COMPARED_TICKS = (20, 10_000)
COLUMNS = (
    "after",
    "updates",
    "batches",
    "opened by",
    "read as of now by",
    f"written a row (aim {AIM_AMPLIFICATION})",
    f"rows stored a row (aim {AIM_SPACE})",
    "objects",
    "requests a tick",
    "dollars a year for requests",
    "to keep what lies there then, for a year",
)


def together(found: list[Figures]) -> Figures:
    """Return the figures of several shards together."""
    total: dict[str, Any] = {}
    for name in Figures.__dataclass_fields__:
        values = [getattr(one, name) for one in found]
        total[name] = sum(values) if name in SUMMED else sum(values) / len(values)
    return Figures(**total)


def after_a_year(told: list[Figures]) -> str:
    """Return the estimate for a year, by the line that best fits the figures after the fourth hour.

    The line is over the logarithm of the ticks, or over their inverse for a figure that converges.
    """
    fitted = [one for one in told if one.ticks >= 4 * HOUR_TICKS]
    if len(fitted) < 3:
        return "for the law of a year, more hours are needed"
    ticks = np.array([one.ticks for one in fitted], np.float64)
    laws = {"log2(ticks)": np.log2, "1 / ticks": np.reciprocal}
    lines = []
    for name in ("batches", "written", "stored", "objects", "open_requests", "read_requests"):
        values = np.array([getattr(one, name) for one in fitted])
        found = []
        for law, of in laws.items():
            slope, start = np.polyfit(of(ticks), values, 1)
            rest = float(np.abs(values - start - slope * of(ticks)).max())
            found.append((rest, start + slope * of(np.float64(YEAR_TICKS)), law))
        rest, year, law = min(found)
        lines.append(f"{name} {year:.2f} (by {law}, within {rest:.2f})")
    return f"after a year, by the law of {len(fitted)} figures: {', '.join(lines)}"


async def main(hours: int, rows: int, keys: int, retain: str, shards: int) -> None:
    retain_ms = parse_retention_ms(retain, what="--retain")
    years = [Year(rows // shards, keys // shards, retain_ms, number) for number in range(shards)]
    told, due = [], HOUR_TICKS // 4
    compared = {}
    start = time.perf_counter()
    while years[0].clock.ticks < hours * HOUR_TICKS:
        for year in years:
            await year.tick()
        if years[0].clock.ticks in COMPARED_TICKS:
            few = [await year.measured() for year in years for _ in range(5)]
            compared[years[0].clock.ticks] = sorted(few, key=lambda one: one.read_ms)[len(few) // 2]
        if years[0].clock.ticks == due or years[0].clock.ticks == hours * HOUR_TICKS:
            told.append(together([await year.measured() for year in years]))
            due *= 2
    print_table(COLUMNS, [one.row() for one in told])
    print(f"{shards} shards, " if shards > 1 else "", end="")
    ticks = years[0].clock.ticks
    print(f"retention {retain}; {time.perf_counter() - start:.0f} s for {ticks:,} ticks")
    print(after_a_year(told))
    if len(compared) == 2:
        early, late = compared.values()
        requests = [one.open_requests + one.read_requests for one in (early, late)]
        times = [one.open_ms + one.read_ms for one in (early, late)]
        print(
            f"to open and read as of now: {requests[0]:.0f} requests and {times[0]:.1f} ms after "
            f"{early.ticks:,} ticks, {requests[1]:.0f} and {times[1]:.1f} ms after {late.ticks:,}: "
            f"{requests[1] / requests[0]:.2f} and {times[1] / times[0]:.2f} times (aim 2)"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--rows", type=int, default=10, help="rows that a tick replaces")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--retain", default="1h")
    parser.add_argument("--shards", type=int, default=1)
    given = parser.parse_args()
    asyncio.run(main(given.hours, given.rows, given.keys, given.retain, given.shards))
