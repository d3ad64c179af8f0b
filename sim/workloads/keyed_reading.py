"""Readers of a keyed log, in all ways, and the checks of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.keyed_reads import Question, Wants
from sim.checkers.keyed_truth import KeyedTruth, Row
from sim.checkers.liveness import Deadline
from sim.kernel.world import Client
from sim.workloads.keyed import KEYS, KeyedRun
from tidelog.errors import NoSuchCheckpoint, NoSuchSegment, SequenceRetired
from tidelog.keyed.port import KeyedReads, KeyedScan
from tidelog.keyed.values import Keys


def rows_of(table: pa.Table) -> list[Row]:
    """Return the records of a table."""
    rows = table.to_pylist()
    return [(r["key"], r["sequence"], r["timestamp_us"], r["value"]) for r in rows]


async def everything_of(scan: KeyedScan) -> list[Row]:
    """Return all rows of a scan."""
    return [row async for table in scan for row in rows_of(table)]


@dataclass(slots=True)
class ReadHandle:
    """A handle that is read. ``known`` returns the sequence before which all must be shown."""

    scenario: KeyedRun
    client: Client
    log: KeyedReads
    truth: KeyedTruth
    known: Callable[[], int]
    own: Mapping[bytes, bytes] = field(default_factory=dict)

    async def any_read(self) -> None:
        """Read in one of the possible ways."""
        ways = [self.scan, self.scan, self.count, self.keys, self.look, self.at_time]
        await self.scenario.dice.choice(ways)()

    async def scan_all(self) -> list[Row] | None:
        """Read all records that are left."""
        return await self._scan("all", lambda _: True, lambda **o: self.log.scan(Keys.all(), **o))

    async def scan(self) -> None:
        """Read one key, a prefix or a range, with random bounds and limits."""
        dice, log = self.scenario.dice, self.log
        key = dice.choice(KEYS)
        kind = dice.choice(["key", "key", "prefix", "range"])
        wants: Wants = lambda one: one == key  # noqa: E731
        begin: Callable[..., KeyedScan] = lambda **o: log.scan(key, **o)  # noqa: E731
        if kind == "prefix":
            wants = lambda one: one.startswith(key)  # noqa: E731
            begin = lambda **o: log.scan(Keys.prefix(key), **o)  # noqa: E731
        if kind == "range":
            last = dice.choice([None, b"b", b"\xff"])
            last = None if last is not None and last < key else last
            wants = lambda one: key <= one and (last is None or one < last)  # noqa: E731
            begin = lambda **o: log.scan(Keys.between(key, last), **o)  # noqa: E731
        most = max(2, self.truth.next)
        start = dice.choice([0, 0, dice.randrange(most)])
        asked = {
            "start": start,
            "limit": dice.choice([None, None, start + dice.randrange(most)]),
            "rows": dice.choice([None, None, 1, 3]),
            "newest_first": dice.random() < 0.25,
        }
        await self._scan(f"{kind} {key!r} {asked}", wants, begin, **asked)

    async def count(self) -> None:
        """Count a key's records, exactly or approximately."""
        dice, log, key = self.scenario.dice, self.log, self.scenario.dice.choice(KEYS)
        start = dice.choice([0, 0, dice.randrange(max(2, self.truth.next))])
        question = self._question(f"count of {key!r}", lambda one: one == key, start=start)
        try:
            with self.scenario.trouble(self.truth.name):
                async with Deadline(self.client, question.about):
                    if dice.random() < 0.3:
                        about = await log.count_approximate(key, start)
                        least, most = about.least, about.most
                        demand(least <= about.value <= most, "a count is out of its bounds")
                    else:
                        least = most = await log.count(key, start)
                self._now(question).check_count(least, most)
        except SequenceRetired:
            self._demand_retired(start)

    async def keys(self) -> None:
        """List keys."""
        dice = self.scenario.dice
        prefix = dice.choice([b"", b"", b"a", b"b"])
        after = dice.choice([None, None, b"a"])
        after = None if after is not None and not after.startswith(prefix) else after
        question = self._question(
            f"keys of {prefix!r} after {after!r}",
            lambda one: one.startswith(prefix) and (after is None or one > after),
        )
        with self.scenario.trouble(self.truth.name):
            async with Deadline(self.client, question.about):
                found = [
                    tuple(row.values())
                    async for page in self.log.keys(prefix, after=after)
                    for row in page.to_pylist()
                ]
            self._now(question).check_keys(found)

    async def look(self) -> None:
        """Check segments, checkpoints and the next sequence."""
        log, truth, known = self.log, self.truth, self.known()
        with self.scenario.trouble(truth.name):
            async with Deadline(self.client, "a look"):
                following = await log.next_sequence()
                segments = await log.segments()
                info = await log.describe()
                names = [one.name for one in await log.checkpoints()]
            most = truth.next + len(self.own)
            demand(known <= following <= most, "the next sequence is told wrongly", it=following)
            for before, after in pairwise(segments):
                demand(before.limit == after.start, "segments do not follow each other")
                demand(before.id + 1 == after.id, "ids of segments do not follow each other")
            limits = {one.limit for one in segments} - {None}
            demand(limits <= truth.sealed_ever, "a segment ends where none was sealed")
            demand(info.oldest <= truth.retired, "more was let go of than is known", info=info)
            demand(sorted(names) == names, "checkpoints are not in order")

    async def at_time(self) -> None:
        """Look up the first sequence of a time."""
        times = [one[2] for one in self.truth.records.values()] or [1]
        when = self.scenario.dice.choice([1, *times[-8:], max(times) + 1])
        known, truth = self.known(), self.truth
        with self.scenario.trouble(truth.name):
            async with Deadline(self.client, "a sequence of a time"):
                found = await self.log.sequence_at(when)
            there = truth.records.get(found)
            is_first = there is not None and there[2] >= when
            if self.own:
                return
            demand(is_first or found >= known, "no such record is there", at=found, when=when)
            late = [
                at
                for at, one in truth.records.items()
                if truth.retired <= at < min(found, truth.next) and one[2] >= when
            ]
            demand(not late, "an earlier record has the time", at=found, late=late, when=when)

    async def _scan(
        self, about: str, wants: Wants, begin: Callable[..., KeyedScan], **asked: Any
    ) -> list[Row] | None:
        question = self._question(about, wants, **asked)
        try:
            with self.scenario.trouble(self.truth.name, NoSuchCheckpoint, NoSuchSegment):
                async with Deadline(self.client, about):
                    scan = begin(**asked)
                    rows = await everything_of(scan)
                self._now(question).check_scan(rows, scan.next_sequence)
                self.scenario.report.reads += 1
                return rows
        except SequenceRetired as error:
            # A scan under which records retire is refused at the sequence where it would continue.
            begun = int(str(error.facts["start"]))
            demand(begun >= question.start, "another start was refused", begun=begun)
            self._demand_retired(begun)
        return None

    def _question(self, about: str, wants: Wants, **asked: Any) -> Question:
        return Question(
            truth=self.truth,
            wants=wants,
            about=f"{self.client.name}: {about}",
            start=asked.get("start", 0),
            limit=asked.get("limit"),
            count=asked.get("rows"),
            newest_first=asked.get("newest_first", False),
            known=self.known(),
            own=self.own,
        )

    def _now(self, question: Question) -> Question:
        """Return the question for the check of its answer, which may show newer records too."""
        fields = {name: getattr(question, name) for name in question.__dataclass_fields__}
        fields["reached"] = self.truth.next + len(self.own)
        return Question(**fields)

    def _demand_retired(self, start: int) -> None:
        demand(
            0 < start < self.truth.retired,
            "a read was refused as if what it asks for were let go of",
            log=self.truth.name,
            start=start,
            retired=self.truth.retired,
        )
        self.scenario.report.refused += 1


async def read_on(scenario: KeyedRun, client: Client) -> None:
    """Read by read-only handles that refresh themselves, until no writer is left."""
    within_us = 100_000
    while not scenario.is_over:
        await client.clock.sleep(scenario.dice.randrange(within_us))
        within_us += within_us // 4
        name = scenario.dice.choice(scenario.watch.living() or ["k"])
        refresh_us = scenario.dice.choice([0, 0, 200_000])
        with scenario.trouble(name):
            log = await scenario.logs(client).reader(name, refresh_us=refresh_us)
            truth = scenario.truth(name)

            def known(truth: KeyedTruth = truth, late_us: int = refresh_us) -> int:
                return truth.known_at(scenario.now() - late_us / 1e6)

            reading = ReadHandle(scenario, client, log, truth, known)
            for _ in range(scenario.dice.randrange(1, 5)):
                await reading.any_read()
                await client.clock.sleep(scenario.dice.choice([0, 30_000]))
            await log.close()
