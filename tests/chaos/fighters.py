"""Processes that write while they are killed with -9 and stopped past their leases.

Each process runs a script with addresses and a name. It prints JSON lists: the call that begins,
its result, and the time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from kit.places import Addresses
from sim.checkers.linear import LANDED, LOST, NEVER, UNSURE

T = TypeVar("T")
TESTS = Path(__file__).parents[1]
WRITERS = 8
LANDED_MIN = 5  # On a busy machine, few calls get that far.
SECONDS = float(os.environ.get("TIDELOG_CHAOS_SECONDS", "6"))
STOPPED_S = 0.8  # Twice a lease.


class Speaker(Generic[T]):
    """A process and the lines that it printed, converted by ``read``."""

    def __init__(
        self, command: Sequence[str], read: Callable[[str], T], *, env: Mapping[str, str]
    ) -> None:
        self.said: list[T] = []
        self.process = subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True
        )
        self._read = read
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            if line.endswith("\n"):  # A line that was cut off does not count.
                self.said.append(self._read(line))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Writer(Speaker[list[Any]]):
    """A process that runs ``script`` of this folder, and the lines that it printed."""

    def __init__(self, where: Addresses, script: str, name: str) -> None:
        self.name = name
        command = ["-m", f"chaos.{script}", *where.arguments, name]
        path = os.pathsep.join([str(TESTS), *sys.path])
        super().__init__(command, json.loads, env={"PYTHONPATH": path})


@dataclass(slots=True)
class FightResult:
    """The results of a fight."""

    said: list[tuple[str, list[Any]]] = field(default_factory=list)
    kills: int = 0
    stops: int = 0
    outages: int = 0


def fight(
    where: Addresses,
    script: str,
    *,
    seed: int,
    outage: Callable[[], None] | None = None,
    writers: int = WRITERS,
    lost: int,
) -> FightResult:
    """Let all writers write, kill and stop them at random; return the lines that they printed.

    The fight continues until more than ``lost`` races were lost: see `check_fight`.
    """
    dice, found = random.Random(seed), FightResult()
    running = [Writer(where, script, f"w{n}-0") for n in range(writers)]
    begun = time.monotonic()
    try:
        while (took := time.monotonic() - begun) < SECONDS or (
            took < 20 * SECONDS and not _is_enough(running, found, lost)
        ):
            time.sleep(dice.uniform(0.1, 0.4))
            place = dice.randrange(writers)
            victim = running[place]
            if victim.process.poll() is not None:
                raise AssertionError("a writer ended by itself")
            if dice.random() < 0.5 and victim.said:
                victim.kill()
                found.said += [(victim.name, line) for line in victim.said]
                found.kills += 1
                running[place] = Writer(where, script, f"w{place}-{found.kills}")
            else:
                os.kill(victim.process.pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(victim.process.pid, signal.SIGCONT)
                found.stops += 1
            if outage is not None and not found.outages and took > SECONDS / 3:
                outage()
                found.outages += 1
    finally:
        for writer in running:
            writer.kill()
            found.said += [(writer.name, line) for line in writer.said]
    return found


ANSWERS: Final = {"landed": LANDED, "lost": LOST, "never": NEVER, "unsure": UNSURE}


def check_fight(found: FightResult, answers: Iterable[str], *, lost: int, outage: bool) -> None:
    """Check that a fight was one: records landed, races were lost, and answers too."""
    counts = Counter(answers)
    told = Counter(line[0] for _, line in found.said)
    print(dict(counts), dict(told), found.kills, found.stops, found.outages)
    assert counts[LANDED] > LANDED_MIN
    assert counts[LOST] > lost
    assert counts[UNSURE] + counts[NEVER] > 0
    assert found.outages == outage


def _is_enough(running: list[Writer], found: FightResult, lost: int) -> bool:
    """Return True if most writers wrote, each event happened, and `check_fight` would pass."""
    said = [*found.said, *((w.name, line) for w in running for line in list(w.said))]
    wrote = {name.split("-")[0] for name, line in said if line[0] == "landed"}
    counts = Counter(line[0] for _, line in said)
    return (
        len(wrote) > len(running) // 2
        and counts["landed"] > LANDED_MIN
        and counts["lost"] > lost
        and counts["read"] > 5
        and min(found.kills, found.stops) >= 2
    )
