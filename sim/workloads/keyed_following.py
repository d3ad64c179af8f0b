"""Followers of a keyed log: each gets every record once and in order, whatever faults strike."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sim.checkers.demands import demand
from sim.checkers.keyed_reads import Wants
from sim.checkers.keyed_truth import KeyedTruth, Row
from sim.checkers.liveness import Deadline
from sim.kernel.faults import Dice
from sim.kernel.world import Client
from sim.workloads.keyed import KEYS, KeyedRun
from sim.workloads.keyed_reading import rows_of
from tidelog.errors import SequenceRetired
from tidelog.keyed.port import KeyedReads, KeyedScan
from tidelog.keyed.values import Keys


@dataclass(slots=True)
class Follower:
    """A follower that resumes where it ended; ``rows`` are the rows it received, in order."""

    scenario: KeyedRun
    client: Client
    truth: KeyedTruth
    log: KeyedReads
    wants: Wants
    keys: Keys
    start: int = 1
    rows: list[Row] = field(default_factory=list)
    following: KeyedScan | None = None

    @property
    def reached(self) -> int:
        return self.start if self.following is None else self.following.next_sequence

    async def follow(self) -> None:
        """Follow until it is cancelled; resume after a failure."""
        while True:
            self.following = self.log.follow(self.keys, start=self.start)
            try:
                with self.scenario.trouble(self.truth.name):
                    async for table in self.following:
                        self._take(rows_of(table))
            except SequenceRetired:
                demand(self.reached < self.truth.retired, "a follower was refused what is there")
                self.start = self.truth.retired
            else:
                self.start = max(self.start, self.following.next_sequence)
            self.following = None
            if self.truth.is_dropped:
                return
            # Rows after the resume point arrive again.
            self.rows = [row for row in self.rows if row[1] < self.start]
            await self.client.clock.sleep(100_000)

    def _take(self, rows: list[Row]) -> None:
        last = {key: sequence for key, sequence, _, _ in self.rows}
        for row in rows:
            key, sequence, time_us, value = row
            demand(self.wants(key), "a follower was given another key", row=row)
            demand(sequence > last.get(key, 0), "a follower was given a record twice", row=row)
            demand(
                self.truth.records.get(sequence) == (key, value, time_us),
                "a follower was given what is not durable",
                row=row,
            )
            last[key] = sequence
        self.rows += rows
        self.scenario.report.followed += len(rows)

    def check(self, begin: int) -> None:
        """Check all received rows against the log, up to the point reached."""
        wanted = self.truth.rows(self.wants, begin, self.reached)
        given = set(self.rows)
        missing = [row for row in wanted if row not in given and row[1] >= self.truth.retired]
        demand(not missing, "a follower passed over records", missing=missing, at=self.reached)


async def follow_on(scenario: KeyedRun, client: Client) -> None:
    """Follow a key, a prefix or all keys from the beginning, until every record has arrived."""
    dice, truth = scenario.dice, scenario.truth("k")
    key = dice.choice(KEYS)
    asks: list[tuple[Keys, Wants]] = [
        (Keys.one(key), lambda one: one == key),
        (Keys.prefix(key), lambda one: one.startswith(key)),
        (Keys.all(), lambda _: True),
    ]
    log: KeyedReads | None = None
    while log is None:
        with scenario.trouble("k"):
            log = await scenario.logs(client).reader("k", refresh_us=0)
        await client.clock.sleep(10_000)
    followers = [
        Follower(scenario, client, truth, log, wants, keys) for keys, wants in dice.sample(asks, 2)
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [client.start(group, one.follow()) for one in followers]
        while not scenario.is_over:
            await client.clock.sleep(200_000)
        if isinstance(scenario.world.schedule, Dice):
            # In a storm, a read of many requests may never end.
            scenario.world.schedule.calm = True
        async with Deadline(client, "a follower"):
            while any(one.reached < truth.next for one in followers):
                await client.clock.sleep(200_000)
        # A group of tasks that fails at the same time swallows a cancellation (CPython 3.11).
        while left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()
            await client.clock.sleep(10_000)
    for one in followers:
        one.check(1)
    await log.close()
