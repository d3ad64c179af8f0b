"""Logs of slot commits under fire: takeovers, several puts under way, roll-ups, a sealer.

The same clients, history and checker as for logs in wal3's form (`sim.scenario_log`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sim.crash_points import VICTIM
from sim.invariants import demand
from sim.scenario_log import LogReader, LogStory, Plot, Report, finish, persist, simulate_log
from sim.world import Client
from tidelog.errors import Fenced, LocationError, LogSealed
from tidelog.store.conditional import Resend
from tidelog.store.port import Store
from tidelog.wal.batching import Batching
from tidelog.wal.opener import Opener, make_log
from tidelog.wal.scrub import Scrubbed
from tidelog.wal.slot_reader import SlotReader
from tidelog.wal.slot_scrub import scrub_slots
from tidelog.wal.slot_writer import Shape, SlotWriter
from tidelog.wal.transitions import Rollover


def simulate_slots(seed: int) -> Report:
    """Run one seed, and check everything; see `simulate_log`."""
    return simulate_log(seed, SlotPlot)


@dataclass(slots=True)
class Stubborn:
    """A writer that opens the log again whenever another has taken it over."""

    plot: SlotPlot
    client: Client
    writer: SlotWriter

    async def append(self, records: Sequence[bytes]) -> int:
        writer = self.writer
        try:
            return await writer.append(records)
        except Fenced:
            if self.writer is writer:
                self.writer = self.plot.slot_writer(self.client)
                await writer.close()
            raise

    async def close(self) -> None:
        await self.writer.close()


@dataclass(slots=True)
class SlotPlot(Plot):
    """One run, of a log of slot commits."""

    has_pins: bool = True

    def writer(self, client: Client) -> Stubborn:  # type: ignore[override]
        """Give a writer of the log."""
        return Stubborn(self, client, self.slot_writer(client))

    def slot_writer(self, client: Client) -> SlotWriter:
        """Give a writer that is over when another takes the log over."""
        dice = self.dice
        writer = SlotWriter(
            store=client.store,
            clock=client.clock,
            writer=client.name,
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
            # Patience that ends now and then, so that writers take over from themselves.
            resend=Resend(attempts=dice.choice([1, 1, 2, 16])),
        )
        self.opened.setdefault(client.name, []).append(writer)
        return writer

    def reader(self, client: Client, store: Store | None = None) -> LogReader:
        """Give a reader of the log, on another store than the client's if it is given."""
        return SlotReader(store=store or client.store, clock=client.clock, reads=2)

    async def make(self, client: Client) -> None:
        """Make the log, unless it is there."""
        await make_log(client.store, clock=client.clock, writer=client.name)

    async def settle(self, client: Client, store: Store) -> None:
        """Open the log on a store that is well: from then on, nothing of before is in doubt."""
        opener = Opener(store=store, clock=client.clock, writer=client.name)
        with suppress(LogSealed):
            ended = await opener.open(lanes=1, alpha=2)
            self.takeovers = ended.tail.epoch.number

    async def scrub(self, client: Client) -> Scrubbed:
        """Check all that is stored."""
        return await scrub_slots(SlotReader(store=self.world.store, clock=client.clock))

    def others(self, group: asyncio.TaskGroup) -> None:
        """Have the log sealed in one run of five, at any moment."""
        if self.dice.random() < 0.2:
            client = self.world.client("sealer")
            group.create_task(self._seal(client, self.dice.randrange(300_000)), name=client.name)

    async def _seal(self, client: Client, after_us: int) -> None:
        await client.clock.sleep(after_us)
        opener = Opener(store=client.store, clock=client.clock, writer=client.name)
        with suppress(LocationError, LogSealed):
            await opener.seal(successor="next")


@dataclass(slots=True)
class SealStory(LogStory):
    """A writer who seals the log, while another writes; an heir seals it, if it was not."""

    name: str = "seal"
    plot_of: type[Plot] = SlotPlot

    async def _play(self, plot: Plot) -> None:
        world = plot.world
        victim, other = world.client(VICTIM), world.client("other")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._live(plot, other, 4), name="other")
            await victim.live(self._append_and_seal(plot, victim))
            plot.bury(victim)
        heir = world.client("heir")
        await self._append_and_seal(plot, heir)
        refused = plot.history.appends[-1]
        demand(refused.is_never, "a sealed log took a record")
        await finish(plot, world.client("last"))
        bounds = await SlotReader(store=world.store, clock=heir.clock).bounds()
        demand(bounds.seal is not None, "the log is not sealed")
        demand(bounds.seal is None or bounds.seal.successor == "next", "its successor is another")

    async def _append_and_seal(self, plot: Plot, client: Client) -> None:
        await self._live(plot, client, 2)

        async def seal() -> None:
            opener = Opener(store=client.store, clock=client.clock, writer=client.name)
            with suppress(LogSealed):
                await opener.seal(successor="next")

        await persist(client, seal)
        writer = plot.writer(client)
        await plot.append(client, writer, [f"{client.name} too late".encode()])
        with suppress(LogSealed):
            await writer.close()
