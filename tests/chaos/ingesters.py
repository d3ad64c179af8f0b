"""Ingesters as separate processes: started by the command line, and killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tidelog
from tidelog import SourceSpec

NAME = "chaos"
HOLDS = 20
FIRST_TICK_S = 600  # On Spark it takes 20 s on an idle machine, and two minutes were too few once.
_started: list[Ingest] = []


@dataclass(slots=True)
class Ingest:
    """One ``tidelog ingest --once`` and its reports so far."""

    process: subprocess.Popen[str]
    ticks: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    first: threading.Event = field(default_factory=threading.Event)
    listener: threading.Thread | None = None

    def listen(self) -> None:
        for line in self.process.stderr or ():
            try:
                found = json.loads(line)
            except ValueError:
                self.said.append(line)
                continue
            if "tick" in found:
                self.ticks.append(found)
                self.first.set()
        self.first.set()

    @property
    def won(self) -> int:
        """Return the number of commits that it reported as its own."""
        return sum(int(tick["won"]) for tick in self.ticks)

    def wait_for_tick(self) -> None:
        """Wait for the first tick, or for the end of the process.

        A process that does neither is aborted, and the error has the stacks of its threads.
        """
        if not self.first.wait(FIRST_TICK_S):
            self.process.send_signal(signal.SIGABRT)
            self.wait(60)
            raise AssertionError(f"no tick in {FIRST_TICK_S} s: {''.join(self.said)}")

    def hold(self, held: bool) -> None:
        """Stop the process or let it continue. Do nothing if it has ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGSTOP if held else signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with -9, and the JVM that it may have started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._close()

    def wait(self, timeout_s: float) -> int:
        """Wait for any end of the process. Return its exit status."""
        code = self.process.wait(timeout_s)
        self._close()
        return code

    def _close(self) -> None:
        if self.listener is not None:
            self.listener.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def finish(self, timeout_s: float = 300) -> dict[str, Any]:
        """Wait for a successful end of the process. Return its summary."""
        out = self.process.stdout.read() if self.process.stdout else ""
        code = self.process.wait(timeout_s)
        self._close()
        assert code == 0, f"exit {code}: {''.join(self.said)[-2000:]}"
        summary: dict[str, Any] = json.loads(out)
        return summary


def start_ingest(url: str, *, engine: str, tick_bytes: int) -> Ingest:
    """Start an ingester."""
    command = [sys.executable, "-m", "tidelog.cli.main", "--location", url]
    command += ["ingest", NAME, "--once", "--engine", engine, "--json"]
    command += ["--max-bytes-per-tick", str(tick_bytes)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        start_new_session=True,
    )
    found = Ingest(process)
    _started.append(found)
    found.listener = threading.Thread(target=found.listen, daemon=True)
    found.listener.start()
    return found


def end_all() -> None:
    """Kill the ingesters that a failed test left behind, so that no later test sees them."""
    while _started:
        _started.pop().kill()


def create(url: str, files: str | Path, *, shards: int = 1) -> None:
    """Make a location with the scenario's source."""
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(
            SourceSpec(
                name=NAME,
                files=str(files),
                envelope="upsert",
                key=("key", "part"),
                time_column="at",
                delete_when="event = 'gone'",
                schema="at bigint, key varchar, part bigint, event varchar, value bigint, "
                "note varchar",
                shards=shards,
            )
        )


def let_both_win(
    one: Ingest, other: Ingest, *, rng: random.Random, timeout_s: float = FIRST_TICK_S
) -> None:
    """Stop the ingester that wins first in the middle of its work, until the other has won too.

    Otherwise it is chance if two processes compete at all. Afterwards each is stopped from time to
    time, so that not always the same one is behind.
    """
    deadline = time.monotonic() + timeout_s
    while not (one.won and other.won) and time.monotonic() < deadline:
        one.hold(one.won > 0)
        other.hold(other.won > 0)
        time.sleep(0.002)
    one.hold(False)
    other.hold(False)
    for _ in range(HOLDS):
        held = rng.choice([one, other])
        time.sleep(rng.uniform(0, 0.1))
        held.hold(True)
        time.sleep(rng.uniform(0, 0.1))
        held.hold(False)


def kill_often(
    url: str, *, engine: str, tick_bytes: int, kills: int, rng: random.Random, span_s: float
) -> int:
    """Kill ingesters one after another at random moments.

    Return the number of reported ticks.

    A moment is between an ingester's first tick and ``span_s`` seconds later. The commits since its
    last report are unknown.
    """
    seen = 0
    for number in range(kills):
        running = start_ingest(url, engine=engine, tick_bytes=tick_bytes)
        running.wait_for_tick()
        time.sleep(rng.uniform(0, span_s))
        assert running.process.poll() is None, (
            f"ingester {number} ended before it was killed: {''.join(running.said)[-2000:]}"
        )
        running.kill()
        seen += len(running.ticks)
    return seen
