"""The run of the demo: write events, ingest them with a kill -9 in between, check the result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tidelog.collection.collection import Collection
from tidelog.collection.formats.times import parse_time
from tidelog.collection.spec_types import SourceSpec
from tidelog.demo.flights import Flights
from tidelog.errors import TidelogError, UsageError
from tidelog.location import open_location

NAME: Final = "airborne"
# About the events of a day, so that January and the first hours of February make some 30 ticks.
TICK_BYTES: Final = 240_000
TICKS_MIN: Final = 20
KILL_TICKS: Final = (5, 15)
CHECKED: Final = (
    "2013-01-01T12:00:00Z",
    "2013-01-15T14:00:00Z",
    "2013-01-22T20:30:00Z",
    "2013-01-31T23:59:00Z",
)
LONGEST_AT: Final = "2013-01-15T14:00:00Z"
MINUTE: Final = ("2013-01-15T14:00:00Z", "2013-01-15T14:01:00Z")


class DemoFailed(TidelogError):
    """A check of the demo failed."""

    kind = "failed"


@dataclass(slots=True, kw_only=True)
class Demo:
    """One run of the demo; ``say`` prints a line."""

    folder: Path
    engine: str
    say: Callable[[str], None]
    kill_at: int
    asked_before: dict[str, Any] = field(default_factory=dict)
    asked_after: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return (self.folder / "lake").absolute().as_uri()

    async def run(self) -> None:
        """Run all steps of the demo.

        Raises:
            UsageError: a package is missing, or the folder holds other files.
            DemoFailed: a check failed.
        """
        started = time.monotonic()
        self._clear()
        with Flights.load(self.folder) as flights:
            events = self.folder / "events"
            files, count = flights.write_events(events)
            self.say(f"Wrote {count:,} events of January 2013 to {files} files in {events}.")
            await self._create(events)
            self._ingest()
            await self._check(flights)
        self._show_cost()
        self._show_next()
        self.say(f"All checks hold. It took {time.monotonic() - started:.0f} seconds.")

    def _clear(self) -> None:
        if self.folder.exists():
            known = {"lake", "events"}
            strangers = [p.name for p in self.folder.iterdir() if p.name not in known]
            if strangers:
                raise UsageError(
                    f"{self.folder} holds files that are not from an earlier demo: move them, or "
                    "choose another folder",
                    found=", ".join(sorted(strangers)),
                )
            shutil.rmtree(self.folder)

    async def _create(self, events: Path) -> None:
        location = await open_location(self.url, create=True)
        await location.sources.create(
            SourceSpec(
                name=NAME,
                files=str(events / "*.jsonl"),
                envelope="upsert",
                key=("carrier", "flight", "day"),
                time_column="at",
                delete_when="event = 'landed'",
            )
        )
        self.say(f"Created the source {NAME!r} at {self.url}.")

    def _ingest(self) -> None:
        """Ingest with a process, kill it after some ticks, and resume with a second process."""
        self.say(
            f"Ingesting on {self.engine}; the ingester will be killed after {self.kill_at} ticks."
        )
        ticks = 0
        with self._ingester() as first:
            for line in _lines(first):
                if "tick" not in line:
                    continue
                ticks, self.asked_before = line["tick"], line["store"]
                if ticks == self.kill_at:
                    first.send_signal(signal.SIGKILL)
                    break
            first.wait()
        if ticks < self.kill_at:
            raise DemoFailed(
                "the ingester stopped before it could be killed: see above", ticks=ticks
            )
        self.say(
            f"Killed it with -9 after tick {ticks}. Starting another ingester, which resumes there."
        )
        with self._ingester() as second:
            more = sum("tick" in line for line in _lines(second))
            out = second.stdout.read() if second.stdout else ""
            if second.wait() != 0:
                raise DemoFailed("the second ingester failed: see above")
        self.asked_after = json.loads(out)["store"]
        if ticks + more < TICKS_MIN:
            raise DemoFailed(f"the demo needs {TICKS_MIN} ticks or more", ticks=ticks + more)
        self.say(f"{more} more ticks, {ticks + more} in total; each event was ingested once.")

    def _ingester(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tidelog.cli.main", "--location", self.url]
        command += ["ingest", NAME, "--once", "--engine", self.engine, "--json"]
        command += ["--max-bytes-per-tick", str(TICK_BYTES)]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Unbuffered, so that each tick's line arrives before the next tick.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    async def _check(self, flights: Flights) -> None:
        location = await open_location(self.url)
        collection = await location.collection(NAME)
        self.say("\nFlights in the air, in the collection and counted from the csv:")
        for text in CHECKED:
            at = parse_time(text)
            count = (await (await collection.snapshot(at)).to_arrow()).num_rows
            counted = flights.in_air(
                datetime.fromtimestamp(at / 1_000, tz=UTC).replace(tzinfo=None)
            )
            self.say(
                f"  {text}  {count:5d}  {counted:5d}  {'ok' if count == counted else 'DIFFERS'}"
            )
            if count != counted:
                raise DemoFailed("the collection and the csv differ: report this bug", at=text)
        await self._show_longest(collection)
        await self._show_changes(collection)

    async def _show_longest(self, collection: Collection) -> None:
        contents = await (await collection.snapshot(parse_time(LONGEST_AT))).to_arrow()
        self.say(f"\nThe ten longest in the air at {LONGEST_AT}:")
        for row in contents.sort_by("at").slice(0, 10).to_pylist():
            self.say(
                f"  {row['carrier']:<3}{row['flight']:>5}  {row['origin']} to {row['dest']}"
                f"  since {row['at']:%H:%M}, for {_minutes(row['at'])} minutes"
            )

    async def _show_changes(self, collection: Collection) -> None:
        changes = await collection.changes(parse_time(MINUTE[0]), parse_time(MINUTE[1]))
        self.say(f"\nThe changes after {MINUTE[0]} up to {MINUTE[1]}:")
        for row in changes.to_pylist():
            what = "took off" if row["_diff"] > 0 else "landed"
            self.say(
                f"  {row['_diff']:+d}  {row['carrier']:<3}{row['flight']:>5}"
                f"  {row['origin']} to {row['dest']}  {what}"
            )

    def _show_cost(self) -> None:
        store = {k: self.asked_before[k] + v for k, v in self.asked_after.items()}
        kinds = ("get", "put", "list", "delete")
        asked = ", ".join(f"{store[kind + '_count']:,} {kind}" for kind in kinds)
        self.say(
            f"\nRequests of both ingesters: {asked}; {store['read_bytes']:,} bytes "
            f"read, {store['written_bytes']:,} written: ${store['dollars']:.4f} at S3's prices."
        )

    def _show_next(self) -> None:
        base = f"{_command()} --location {self.url}"
        self.say("\nTry next:")
        self.say(f"  {base} read {NAME} --as-of {LONGEST_AT} --where \"origin = 'JFK'\" --limit 5")
        self.say(f"  {base} changes {NAME} --since {MINUTE[0]} --until {MINUTE[1]} --json")
        self.say(f"  {base} collection describe {NAME} --json\n")


def _command() -> str:
    """Return the name of the command, or its path if it is not on PATH."""
    if shutil.which("tidelog"):
        return "tidelog"
    beside = Path(sys.executable).parent / "tidelog"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def _minutes(took_off: datetime) -> int:
    """Return the minutes from take-off to `LONGEST_AT`."""
    return (parse_time(LONGEST_AT) - int(took_off.timestamp() * 1_000)) // 60_000


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of an ingester's standard error; pass other lines on."""
    for line in process.stderr or ():
        try:
            event = json.loads(line)
        except ValueError:
            sys.stderr.write(line)
            continue
        if isinstance(event, dict):
            yield event
