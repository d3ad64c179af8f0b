"""All calls of a log that do not change it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fuzz.asking import BLIND, Asker
from fuzz.clock import StillClock
from fuzz.specimens import Row, Truth, rows_in
from tidelog.wal.describe import outline_log
from tidelog.wal.log import Log

ASKED: Final = 3  # The number of optional questions that are asked.
WAITS: Final = 3  # Waits of a follower before it counts as at the end.


@dataclass(slots=True, kw_only=True)
class Looker:
    """Calls of a log that compare its answers with the truth."""

    asker: Asker
    log: Log
    truth: Truth
    clock: StillClock
    dice: random.Random

    async def look(self) -> bool:
        """Ask the main questions, and some others. Return True if all records could be read."""
        await self.bounds()
        found = await self.asker.read("scan", self.log.scan(control=True), self.truth.rows)
        some: list[Callable[[], Awaitable[None]]] = [
            *(self.describe, self.cursors, self.scan_from_there, self.follow),
            *(self.position_at, self.fetch, self.streams, self.pins),
        ]
        for ask in self.dice.sample(some, ASKED):
            await ask()
        await self.scrub()
        return found is not None and "bounds" not in self.asker.refused

    async def bounds(self) -> None:
        bounds = await self.asker.ask("bounds", self.log.bounds())
        if bounds is not None:
            wanted = self.truth.oldest, self.truth.next
            self.asker.same("bounds", (bounds.oldest, bounds.next), wanted)
            self.asker.same("seal", bounds.seal is not None, self.truth.is_sealed)

    async def describe(self) -> None:
        told = await self.asker.ask("describe", self.log.describe())
        if told is not None:
            wanted = self.truth.oldest, self.truth.next
            self.asker.same("describe", (told.oldest, told.next), wanted)
        await self.asker.ask("outline", outline_log(self.log.store, self.clock, deep=True))

    async def cursors(self) -> None:
        listed = await self.asker.ask("cursors", self.log.cursors())
        if listed is not None:
            found = {name: cursor.position for name, cursor in listed.cursors.items()}
            self.asker.same("cursors", found, self.truth.cursors)
        for name, position in self.truth.cursors.items():
            held = await self.asker.ask(f"cursor {name}", self.log.load_cursor(name))
            if held is not None:
                self.asker.same("cursors", held.position, position)

    async def scan_from_there(self) -> None:
        start = self.dice.randint(self.truth.oldest, self.truth.next)
        wanted = [row for row in self.truth.rows if row[0] >= start]
        found = self.log.scan(start, control=True)
        await self.asker.read("scan from there", found, wanted)

    async def follow(self) -> None:
        self.clock.sleeps_left = WAITS
        await self.asker.read("follow", self.log.follow(control=True), self.truth.rows)
        self.clock.sleeps_left = None

    async def position_at(self) -> None:
        times = [row[1] for row in self.truth.rows] or [0]
        time_us = self.dice.choice([0, *self.dice.choices(times, k=3), max(times) + 1, 2**63 - 1])
        at = await self.asker.ask("position_at", self.log.position_at(time_us))
        if at is not None:
            rows = self.truth.rows
            wanted = next((row[0] for row in rows if row[1] >= time_us), self.truth.next)
            self.asker.same("position_at", at, wanted)

    async def fetch(self) -> None:
        fragments = await self.asker.ask("fragments", self.log.fragments())
        rows: list[Row] = []
        is_whole = True
        for fragment in fragments or ():
            records = await self.asker.ask("fetch", self.log.fetch(fragment))
            if records is None:
                is_whole = False
                break
            # The oldest fragment of a fork may begin before the fork does.
            rows += [row for row in rows_in(records) if row[0] >= self.truth.oldest]
        if fragments is not None:
            self.asker.compare("fetch", rows, self.truth.rows, is_whole=is_whole)

    async def streams(self) -> None:
        if self.truth.protocol != "slot":
            return
        streams = await self.asker.ask("streams", self.log.streams())
        if streams is not None:
            self.asker.same("streams", [stream.id for stream in streams], self.truth.streams)
        if self.truth.streams:
            alone = [row for row in self.truth.rows if row[2] == self.truth.streams[0]]
            found = self.log.scan(stream=self.truth.streams[0])
            await self.asker.read("scan of a stream", found, alone)

    async def pins(self) -> None:
        if self.truth.protocol != "slot":
            return
        pins = await self.asker.ask("pins", self.log.pins())
        if pins is not None:
            self.asker.same("pins", sorted(pins), sorted(self.truth.pins))
        for name, wanted in self.truth.pins.items():
            await self.asker.read(f"pin {name}", self.log.scan_pin(name, control=True), wanted)

    async def scrub(self) -> None:
        """Scrub the log. Complain if the scrub is clean although a read was refused."""
        found = await self.asker.ask("scrub", self.log.scrub())
        if found is None or not found.is_clean:
            return
        for step, error in self.asker.refused.items():
            if step.startswith(("scan", "fetch", "pin")):
                self.asker.complain(BLIND, "scrub", f"nothing, but {step} was refused: {error}")
