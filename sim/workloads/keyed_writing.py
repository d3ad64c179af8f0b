"""Writers of a keyed log: appends in all ways, flushes, and reads of their own records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.keyed_truth import KeyedTruth
from sim.checkers.liveness import Deadline
from sim.kernel.world import Client
from sim.workloads.keyed import KEYS, KeyedRun
from sim.workloads.keyed_reading import ReadHandle
from tidelog.errors import HandleError, LogFull, LogSealed, NoSuchLog, Outcome, TidelogError
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.values import MEMORY

Pairs = Sequence[tuple[bytes, bytes]]
ENDED: tuple[type[TidelogError], ...] = (HandleError, LogSealed)


@dataclass(slots=True)
class WriteHandle:
    """One handle, and its owner's knowledge; ``ordered`` are values to check at the next flush.

    ``is_well``: all appends of this handle succeeded so far.
    """

    scenario: KeyedRun
    client: Client
    log: KeyedLog
    truth: KeyedTruth
    own: dict[bytes, bytes] = field(default_factory=dict)
    ordered: list[bytes] = field(default_factory=list)
    hidden: list[bytes] = field(default_factory=list)
    acknowledged: int = 1
    durable: int = 1
    is_well: bool = True
    is_over: bool = False
    fences: int = -1

    def reading(self, known: int | None = None) -> ReadHandle:
        """Return a reading of this handle, with the records that it must show."""
        return ReadHandle(
            self.scenario,
            self.client,
            self.log,
            self.truth,
            known=lambda: max(self.acknowledged, known or 1),
            own=self.own if self.log.visibility == MEMORY else {},
        )

    async def append(self) -> None:
        """Append a few records in one of the possible ways."""
        dice, scenario = self.scenario.dice, self.scenario
        pairs = []
        for _ in range(dice.choice([1, 1, 2, 4])):
            scenario.numbers += 1
            pairs.append(
                (dice.choice(KEYS), b"%s %d" % (self.client.name.encode(), scenario.numbers))
            )
        way = dice.choice(["append", "append", "append", "arrow", "try", "timeout"])
        durable = dice.random() < 0.5
        time_us = dice.choice([None, None, dice.randrange(1, 1_000)])
        self.own.update({value: key for key, value in pairs})

        async def call() -> int:
            log = self.log
            if way == "arrow":
                columns = [pa.array(list(one), pa.binary()) for one in zip(*pairs, strict=True)]
                table = pa.table(columns, names=["key", "value"])
                return await log.append_arrow(table, durable=durable, timestamp_us=time_us)
            if way == "try":
                return await log.try_append(pairs, durable=durable, timestamp_us=time_us)
            wait_us = 50_000 if way == "timeout" else None
            return await log.append(
                pairs, durable=durable, timestamp_us=time_us, timeout_us=wait_us
            )

        # An append in several batches promises nothing about all of them.
        await self._note(pairs, durable, call, is_whole=way != "arrow")

    async def _note(
        self, pairs: Pairs, durable: bool, call: Callable[[], Awaitable[int]], *, is_whole: bool
    ) -> None:
        scenario, truth = self.scenario, self.truth
        if self.fences < 0:
            self.fences = len(truth.wal.turns)
        try:
            async with Deadline(self.client, f"an append of {pairs}"):
                position = await call()
        except LogFull as error:
            demand(error.outcome is Outcome.NOT_APPLIED, "a full log took something")
            demand(not is_whole or list(error.records) == list(pairs), "other records came back")
            scenario.report.full += 1
            if is_whole:
                self._never(pairs)
            return
        except TidelogError as error:
            self._failed(error)
            if is_whole and error.outcome is Outcome.NOT_APPLIED:
                self._never(pairs)
            else:
                scenario.report.unsure += 1
            return
        if not durable:
            scenario.report.ordered += 1
            self.ordered += [value for _, value in pairs]
            return
        scenario.report.acknowledged += 1
        if is_whole:
            found = [truth.records.get(position + n, (None, None))[:2] for n in range(len(pairs))]
            demand(found == list(pairs), "what was acknowledged is not there", found=found)
        else:
            self._demand_there([value for _, value in pairs], "an acknowledged table")
            position = truth.next - len(pairs) if position > truth.next else position
        self._reached(position + (len(pairs) if is_whole else 1))
        for n, (_, value) in enumerate(pairs if is_whole else ()):
            scenario.told[value] = truth.name, position + n

    async def flush(self) -> None:
        """Flush, and check that every accepted record is in the log, or that the flush raises."""
        waiting, self.ordered, hidden, self.hidden = self.ordered, [], self.hidden, []
        try:
            async with Deadline(self.client, "a flush"):
                durable = await self.log.flush()
        except TidelogError as error:
            self.scenario.report.lost += 1
            self._failed(error)
            return
        self._demand_there(waiting, "what was flushed")
        if len(self.truth.wal.turns) <= self.fences + 1:
            demand(not hidden, "what was ordered here was not shown here", hidden=hidden)
        demand(durable <= self.truth.next, "what is durable is told too far", durable=durable)
        demand(
            durable >= self.durable, "what is durable went back", durable=durable, was=self.durable
        )
        if waiting:
            last = max(at for at, one in self.truth.records.items() if one[1] in waiting)
            demand(durable > last, "what was flushed is past what is durable", durable=durable)
        self.durable = durable
        self._reached(min(durable, self.truth.next))

    def hear(self, durable: int) -> None:
        """Check a notification of the durable sequence."""
        demand(durable <= self.truth.next, "a notification came too early", durable=durable)

    async def read_own(self) -> None:
        """Read the writer's own records, which memory visibility shows at once."""
        log, truth = self.log, self.truth
        told = list(self.ordered)
        before = self.is_well and len(truth.wal.turns) <= self.fences + 1
        reading = self.reading()
        rows = await reading.scan_all()
        after = self.is_well and len(truth.wal.turns) <= self.fences + 1
        if rows is None or log.visibility != MEMORY or not (before and after):
            return
        seen = {row[3] for row in rows}
        gone = [
            value
            for value in told
            if value not in seen
            and not any(at < truth.retired for at, one in truth.records.items() if one[1] == value)
        ]
        # Only the next flush reports records that are lost by now.
        self.hidden += gone

    async def close(self) -> None:
        self.is_over = True
        try:
            async with Deadline(self.client, "a close"):
                await self.log.close()
        except TidelogError as error:
            self._failed(error)

    def _demand_there(self, values: Sequence[bytes], what: str) -> None:
        there = {value for _, value, _ in self.truth.records.values()}
        gone = [value for value in values if value not in there]
        demand(not gone, f"{what} is not there", log=self.truth.name, gone=gone)

    def _reached(self, sequence: int) -> None:
        self.acknowledged = max(self.acknowledged, sequence)
        self.truth.acknowledged.append((self.scenario.now(), sequence))

    def _never(self, pairs: Pairs) -> None:
        self.scenario.never.update({value: self.truth.name for _, value in pairs})

    def _failed(self, error: TidelogError) -> None:
        """Note a failure: the handle may be closed, and its owner opens another."""
        self.is_well = False
        if isinstance(error, NoSuchLog):
            demand(self.truth.name in self.scenario.dropping, "a log is gone that nobody dropped")
            self.is_over = True
        elif isinstance(error, ENDED):
            self.scenario.report.fenced += 1
            self.is_over = True
        elif not self.scenario.is_failure(error):
            raise error


async def write_on(scenario: KeyedRun, client: Client, name: str = "") -> None:
    """Write a log for a while; a fenced writer sometimes takes the log back."""
    name = name or "k"
    writing: WriteHandle | None = None
    for _ in range(scenario.dice.randrange(3, 7)):
        await client.clock.sleep(scenario.dice.randrange(60_000))
        if writing is None or writing.is_over:
            writing = await _opened(scenario, client, name)
            if writing is None:
                continue
        for _ in range(scenario.dice.choice([1, 2, 4])):
            await writing.append()
        toss = scenario.dice.random()
        if toss < 0.4:
            await writing.read_own()
        if toss > 0.5 or writing.is_over:
            await writing.flush()
        if toss < 0.1:
            await writing.close()
    if writing is not None and not writing.is_over:
        await writing.flush()
        await writing.read_own()
        await writing.close()


async def _opened(scenario: KeyedRun, client: Client, name: str) -> WriteHandle | None:
    writing: WriteHandle | None = None
    with scenario.trouble(name):
        async with Deadline(client, f"to open {name}"):
            log = await scenario.open(client, name)
        writing = WriteHandle(scenario, client, log, scenario.truth(name))
        log.on_durable(writing.hear)
    return writing
