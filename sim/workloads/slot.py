"""Logs of slot commits under faults: takeovers, several puts under way, roll-ups, a sealer.

Clients, history and checker are those of logs in wal3's form (`sim.workloads.log`). In addition, a
watch on the slots knows the committed records and the fenced writers. In some runs writers open
streams, append to streams of any writer, and close them. To the checker, control records are
appends like all others. In some runs, records have keys.
"""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.liveness import Deadline
from sim.checkers.rebuilt import check_rebuilt
from sim.checkers.watch_slots import SlotWatch
from sim.crash.points import VICTIM
from sim.kernel.faults import Dice
from sim.kernel.world import Client
from sim.workloads.keys import KeysGiven
from sim.workloads.log import LogStory, simulate_log
from sim.workloads.scenario import LogReader, LogWriter, Party, Report, Scenario, finish, persist
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    Fenced,
    HandleError,
    LogSealed,
    UsageError,
)
from tidelog.store.conditional import Resend
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import array_of
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.streams import CLOSE, META, OPEN, Control, encode_control
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.scrub.slot_scrub import scrub_slots
from tidelog.wal.slot_protocol.fencing import Fencer, make_log
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter


def simulate_slots(seed: int) -> Report:
    """Run one seed, and check everything; see `simulate_log`."""
    return simulate_log(seed, SlotScenario)


@dataclass(frozen=True, slots=True)
class ControlReader:
    """A reader that returns control records too."""

    reader: SlotReader

    def scan(self, start: int = 0) -> AsyncIterator[pa.Table]:
        """Scan all records; see `SlotReader.scan`."""
        return self.reader.scan(start, selection=Selection(control=True))


@dataclass(slots=True)
class ReopeningWriter:
    """A writer that opens the log again after another writer took it over, or its handle ended."""

    scenario: SlotScenario
    client: Party
    writer: SlotWriter
    is_closed: bool = False

    async def append(
        self,
        records: Sequence[bytes],
        *,
        stream: bytes | None = None,
        keys: pa.BinaryArray | None = None,
    ) -> int:
        bodies = array_of(records)
        if stream is None and self.scenario.keys.places():
            return await self._call(lambda it: _placed(it, bodies, keys))
        return await self._call(lambda it: it.append_arrow(bodies, stream=stream, key=keys))

    async def control(self, control: Control) -> int:
        return await self._call(lambda writer: writer.control(control))

    async def _call(self, call: Callable[[SlotWriter], Awaitable[int]]) -> int:
        writer = self.writer
        try:
            return await call(writer)
        except (HandleError, ContentionError, CorruptionError) as error:
            if self.writer is writer and not self.is_closed:
                self.writer = self.scenario.slot_writer(self.client)
                if isinstance(error, Fenced):
                    await self.scenario.demand_fenced(self.client, writer)
                await self.scenario.close(self.client, writer)
            raise

    async def close(self) -> None:
        self.is_closed = True  # Without this, a writer opened later would never be closed.
        await self.writer.close()


@dataclass(slots=True)
class SlotScenario(Scenario):
    """One run of a log of slot commits; ``streams`` are those that a client tried to open.

    Streams and keys have random numbers of their own, so a run without them stays the same.
    """

    stream_dice: random.Random = field(init=False)
    has_streams: bool = field(init=False)
    streams: list[bytes] = field(default_factory=list)
    keys: KeysGiven = field(init=False)
    named: int = 0
    has_pins: bool = True
    truth: SlotWatch = field(default_factory=SlotWatch)

    def __post_init__(self) -> None:
        Scenario.__post_init__(self)
        self.stream_dice = random.Random(f"streams {self.world.seed}")
        is_story = not isinstance(self.world.schedule, Dice)
        self.has_streams = not is_story and self.stream_dice.random() < 0.25
        key_dice = random.Random(f"keys {self.world.seed}")
        self.keys = KeysGiven(key_dice, not is_story and key_dice.random() < 0.3)
        # The watch on a place of many logs forwards changes to each of its own.
        if not self.truth.folder:
            self.world.watchers.append(self.truth)

    def acknowledged(self, bodies: Sequence[bytes], position: int) -> None:
        """Check that acknowledged records are below the first fence, with all slots before them."""
        self.truth.acknowledged(bodies, position)

    async def demand_fenced(self, client: Party, writer: SlotWriter) -> None:
        """Demand that a fenced writer has ended, and accepts nothing more."""
        late = [f"{client.name} after a fence {self.named}".encode()]
        self.named += 1
        await self.note(client, late, lambda: writer.append(late))
        told = self.history.appends[-1]
        demand(told.position is None, "a writer took a record after it was fenced", body=late)

    async def check_truth(self, client: Party) -> None:
        """Check the log against its slots, and against a log rebuilt from them."""
        self.truth.check()
        demand(self.final == tuple(self.truth.bodies()), "the log reads otherwise than its slots")
        await self.lose_manifest(client, oldest=1)

    async def lose_manifest(self, client: Party, *, oldest: int) -> None:
        """Rebuild a copy of the log, as it is now, without its manifest."""
        if not isinstance(self.world.schedule, Dice):
            return  # Stories run once for each of their requests, and take long enough without it.
        copy, dice = self.world.copy(), self.cancel_dice
        is_made = await check_rebuilt(copy, self.truth, client.clock, oldest=oldest, dice=dice)
        self.rebuilt[is_made] += 1

    async def append(self, client: Party, writer: LogWriter, bodies: list[bytes]) -> None:
        """Append to a stream or to none; sometimes open, describe or close a stream first."""
        if not isinstance(writer, ReopeningWriter):
            await self.note(client, bodies, lambda: writer.append(bodies))
            return
        keys = self.keys.give(bodies)
        if not self.has_streams:
            await self.note(client, bodies, lambda: writer.append(bodies, keys=keys))
            return
        dice = self.stream_dice
        if dice.random() < 0.5:
            control = self._control()
            said = [encode_control(control)]
            await self.note(client, said, lambda: writer.control(control), UsageError)
        stream = dice.choice([None, *self.streams])
        call = partial(writer.append, bodies, stream=stream, keys=keys)
        await self.note(client, bodies, call, UsageError)

    def _control(self) -> Control:
        """Return a unique control record, so that the checker can distinguish them."""
        dice = self.stream_dice
        self.named += 1
        roll = dice.random() if self.streams else 0.0
        unique = b"%d" % self.named
        if roll < 0.4:
            self.streams.append(b"stream " + unique)
            return Control(op=OPEN, stream=self.streams[-1], meta=unique)
        stream = dice.choice(self.streams)
        if roll < 0.75:
            # The stream may be open already; both records are possible.
            return Control(op=dice.choice([OPEN, META]), stream=stream, meta=unique)
        self.streams.remove(stream)
        return Control(op=CLOSE, stream=stream)

    def writer(self, client: Party) -> ReopeningWriter:  # type: ignore[override]
        """Return a writer of the log."""
        return ReopeningWriter(self, client, self.slot_writer(client))

    def slot_writer(self, client: Party) -> SlotWriter:
        """Return a writer with a name of its own, which ends when another takes over the log."""
        dice = self.dice
        opened = self.opened.setdefault(client.name, [])
        writer = SlotWriter(
            store=client.store,
            clock=client.clock,
            writer=f"{client.name}.{len(opened)}",
            shape=Shape(
                lanes=dice.choice([1, 1, 3]),
                alpha=dice.choice([1, 2, 4]),
                rollup_slots=dice.choice([1, 2, 5]),
                rollup_interval_us=dice.choice([20_000, 200_000]),
                rollover=Rollover(fragments=dice.randrange(2, 5), snapshots=2),
            ),
            batching=Batching(
                batch_bytes=dice.choice([1, 20, 1_000]),
                interval_us=dice.choice([0, 20_000]),
                pending_bytes=60,
            ),
            # Few attempts, so that writers sometimes take over from themselves.
            resend=Resend(attempts=dice.choice([1, 1, 2, 16])),
        )
        opened.append(writer)
        if self.keys.is_used:
            writer.on_durable(self.truth.told_durable)
        return writer

    def reader(self, client: Party, store: Store | None = None) -> LogReader:
        """Return a reader of the log, on ``store`` if given, else on the client's store."""
        return ControlReader(SlotReader(store=store or client.store, clock=client.clock, reads=2))

    async def make(self, client: Party) -> None:
        """Make the log, unless it exists."""
        await make_log(client.store, clock=client.clock, writer=client.name)

    async def settle(self, client: Party, store: Store) -> None:
        """Open the log on a store without faults, which settles every earlier doubt."""
        opener = Fencer(store=store, clock=client.clock, writer=client.name)
        with suppress(LogSealed):
            ended = await opener.open(lanes=1, alpha=2)
            self.takeovers = ended.tail.epoch.number

    async def scrub(self, client: Party) -> ScrubReport:
        """Check all stored objects, the streams of records, and their keys."""
        reader = SlotReader(store=self.world.store, clock=client.clock)
        await self.keys.check(reader)
        chain = (await reader.manifest()).chain
        assert chain is not None
        is_open = {info.id: info.meta for info in chain.streams_at_start}
        async for records in ControlReader(reader).scan():
            for row in records.to_pylist():
                _hold_against(is_open, row["stream"], row["body"])
        said = {info.id: info.meta for info in (await reader.end()).tail.streams}
        demand(said == is_open, "other streams are open than the log's records say")
        return await scrub_slots(reader)

    def others(self, group: asyncio.TaskGroup) -> None:
        """Seal the log in one run of five, at any moment."""
        if self.dice.random() < 0.2:
            client = self.world.client("sealer")
            client.start(group, self._seal(client, self.dice.randrange(300_000)))

    async def _seal(self, client: Client, after_us: int) -> None:
        await client.clock.sleep(after_us)
        opener = Fencer(store=client.store, clock=client.clock, writer=client.name)
        with self.trouble(LogSealed):
            async with Deadline(client, "a seal"):
                await opener.seal(successor="next")


async def _placed(writer: SlotWriter, bodies: pa.BinaryArray, keys: pa.BinaryArray | None) -> int:
    """Append without waiting for durability, and then wait for it."""
    return await (await writer.place(bodies, key=keys)).durable


def _hold_against(is_open: dict[bytes, bytes], stream: bytes | None, body: bytes) -> None:
    """Apply a record to the open streams, which must allow it."""
    if stream != b"":
        demand(stream is None or stream in is_open, "a record is in a stream that was not open")
        return
    said = json.loads(body)
    name, op = b64decode(said["stream"]), said["op"]
    demand((name in is_open) != (op == OPEN), f"the log has a record to {op} what is not so")
    if op == CLOSE:
        del is_open[name]
    else:
        is_open[name] = b64decode(said["meta"])


@dataclass(slots=True)
class SealStory(LogStory):
    """A writer seals the log while another writes; an heir seals it if needed."""

    name: str = "seal"
    scenario_of: type[Scenario] = SlotScenario

    async def _play(self, scenario: Scenario) -> None:
        world = scenario.world
        victim, other = world.client(VICTIM), world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._live(scenario, other, 4), name="other")
            await victim.live(self._append_and_seal(scenario, victim))
            scenario.bury(victim)
        heir = world.client("heir")
        await self._append_and_seal(scenario, heir)
        refused = scenario.history.appends[-1]
        demand(refused.is_never, "a sealed log took a record")
        await finish(scenario, world.client("last"))
        bounds = await SlotReader(store=world.store, clock=heir.clock).bounds()
        demand(bounds.seal is not None, "the log is not sealed")
        demand(bounds.seal is None or bounds.seal.successor == "next", "its successor is another")

    async def _append_and_seal(self, scenario: Scenario, client: Client) -> None:
        await self._live(scenario, client, 2)

        async def seal() -> None:
            opener = Fencer(store=client.store, clock=client.clock, writer=client.name)
            with suppress(LogSealed):
                await opener.seal(successor="next")

        await persist(client, seal)
        writer = scenario.writer(client)
        await scenario.append(client, writer, [f"{client.name} too late".encode()])
        await scenario.close(client, writer)
