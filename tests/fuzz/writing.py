"""All calls that change a log or make another log from it, each in a store of its own."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fuzz.asking import CHANGED, MISSING, Asker
from fuzz.clock import StillClock
from fuzz.specimens import ALL, ONE_BY_ONE, ROLLED, Row, Truth, rows_of, store_of
from tidelog.cli.log.describe import logs_of
from tidelog.consensus.memory import MemoryConsensus
from tidelog.location import Location
from tidelog.store.wrapping import NOTHING_TOLD, wrap
from tidelog.wal.format.fragment import FRAGMENTS
from tidelog.wal.format.link import EPOCHS
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.logs import LOGS, Logs, log_folder

BODY = b"appended"


@dataclass(slots=True, kw_only=True)
class Doer:
    """Changing calls on one log. ``is_whole``: all its records could be read before."""

    asker: Asker
    objects: dict[str, bytes]
    truth: Truth
    clock: StillClock
    dice: random.Random
    is_whole: bool

    def logs(self) -> Logs:
        """Return the location's logs, in a store of their own."""
        return Logs(store=store_of(self.objects), clock=self.clock, writer="fuzz")

    async def do(self, count: int) -> None:
        """Do this many of the possible steps."""
        for step in self.dice.sample(self._steps(), count):
            await step()

    @property
    def steps_count(self) -> int:
        return len(self._steps())

    def _steps(self) -> list[Callable[[], Awaitable[None]]]:
        steps: list[Callable[[], Awaitable[None]]] = [
            self.append,
            self.append,
            self.collect,
            self.copy,
            self.rebuild,
            self.list_all,
        ]
        return [*steps, self.fork] if self.truth.protocol == "slot" else steps

    async def append(self) -> None:
        """Append a record. If it is acknowledged, it can be read, and the others are unchanged."""
        logs, place = self.logs(), None
        log = await self.asker.ask("append", self._opened(logs))
        if log is None:
            return
        place = await self.asker.ask("append", log.append([BODY]))
        await self.asker.ask("close", log.close())
        if place is None:
            return
        # The next wal3 writer includes a fragment that an earlier writer stored before its
        # manifest.
        grown = self.truth.rows_when_grown if place == self.truth.next_when_grown else None
        if grown is None:
            self.asker.same("append", place, self.truth.next)
        again = await self._opened(logs)
        rows = await self._rows("append, then scan", again)
        if rows is None:
            if self.is_whole:
                error = self.asker.refused.get("append, then scan")
                self.asker.complain(MISSING, "append, then scan", f"it was acknowledged: {error}")
            return
        if rows and rows[-1][0] == place:
            self.asker.same("append, then scan", rows.pop()[2:], (None, BODY))
        else:
            self.asker.complain(MISSING, "append, then scan", "what was acknowledged is not there")
        wanted = self.truth.rows if grown is None else grown
        self.asker.compare("append, then scan", rows, wanted, is_whole=self.is_whole)

    async def collect(self) -> None:
        """Collect the log. Records that cursors and pins hold stay, and no other records appear."""
        logs, force = self.logs(), self.dice.random() < 0.5
        log = await self.asker.ask("collect", self._opened(logs))
        if log is None:
            return
        await self.asker.ask("collect", log.collect(keep=ALL, grace_us=0, force=force))
        await self.asker.ask("sweep", log.sweep(grace_us=0))
        bounds = await self.asker.ask("collect, then bounds", log.bounds())
        rows = await self._rows("collect, then scan", log)
        if bounds is None or rows is None:
            if self.is_whole:
                why = [self.asker.refused.get(f"collect, then {s}") for s in ("bounds", "scan")]
                self.asker.complain(MISSING, "collect", f"it can be read no more: {why}")
            return
        left = [row for row in self.truth.rows if row[0] >= bounds.oldest]
        self.asker.compare("collect, then scan", rows, left, is_whole=True)
        held = min(self.truth.cursors.values(), default=self.truth.oldest)
        if bounds.oldest > max(held, self.truth.oldest):
            self.asker.complain(MISSING, "collect", f"begins at {bounds.oldest}, {held} was held")
        for name, wanted in self.truth.pins.items():
            if f"pin {name}" in self.asker.read_whole:
                step = f"collect, then pin {name}"
                found = await self.asker.read(step, log.scan_pin(name, control=True), wanted)
                if found is None:
                    error = self.asker.refused.get(step)
                    self.asker.complain(MISSING, step, f"it could be read before: {error}")

    async def copy(self) -> None:
        """Copy the log to either protocol. A successful copy holds the truth."""
        logs, protocol = self.logs(), self.dice.choice(["slot", "manifest"])
        made = await self.asker.ask("copy", logs.copy(self.asker.log, "copied", protocol=protocol))
        if made is not None:
            rows = await self._rows("copy, then scan", made)
            self._hold("copy, then scan", rows, self.truth.rows)

    async def fork(self) -> None:
        """Fork the log. A successful fork begins with the truth."""
        made = await self.asker.ask("fork", self.logs().fork(self.asker.log, "forked"))
        if made is not None:
            rows = await self._rows("fork, then scan", made)
            if self.is_whole:
                self._hold("fork, then scan", rows, self.truth.rows)

    async def rebuild(self) -> None:
        """Delete the manifest and rebuild it: the log has only its own records, and its end."""
        manifest = f"{log_folder(self.asker.log)}/{MANIFEST}"
        objects = {key: data for key, data in self.objects.items() if key != manifest}
        logs = Logs(store=store_of(objects), clock=self.clock, writer="fuzz")
        made = await self.asker.ask("rebuild", logs.rebuild(self.asker.log))
        if made is None:
            return
        rows = await self._rows("rebuild, then scan", made)
        if rows is None:
            return
        first = rows[0][0] if rows else self.truth.next
        wanted = [row for place, row in sorted(self.truth.history.items()) if place >= first]
        self.asker.compare("rebuild, then scan", rows, wanted, is_whole=True)
        if first > self.truth.oldest and self.truth.rows:
            self.asker.complain(MISSING, "rebuild", f"it begins at {first}")

    async def list_all(self) -> None:
        """List all logs. A damaged log does not hide the others."""
        store = store_of(self.objects)
        location = Location(
            url="memory://",
            stores=wrap(store, NOTHING_TOLD, clock=self.clock),
            consensus=MemoryConsensus(),
            clock=self.clock,
        )
        found = await self.asker.ask("list", logs_of(location))
        if found is not None:
            # A log with records but no manifest is listed too.
            places = [
                key.removeprefix(LOGS).split("/", 1) for key in self.objects if key.startswith(LOGS)
            ]
            is_log = (MANIFEST, EPOCHS, FRAGMENTS)
            known = {name for name, *place in places if place and place[0].startswith(is_log)}
            self.asker.same("list", [one.name for one in found], sorted(known))

    async def _opened(self, logs: Logs) -> Log:
        return await logs.open(self.asker.log, shape=ROLLED, batching=ONE_BY_ONE)

    async def _rows(self, step: str, log: Log) -> list[Row] | None:
        return await self.asker.ask(step, rows_of(log.scan(control=True)))

    def _hold(self, step: str, rows: list[Row] | None, wanted: list[Row]) -> None:
        if rows is None:
            error = self.asker.refused.get(step)
            self.asker.complain(MISSING, step, f"it was made, and cannot be read: {error}")
        elif not self.asker.compare(step, rows, wanted, is_whole=True):
            return
        elif len(rows) > len(wanted):
            self.asker.complain(CHANGED, step, f"{len(rows)} records, not {len(wanted)}")
