"""Eight processes at one shard, killed, stopped, with clocks that are wrong: contents are right.

What they saw is judged by the checker of consensus histories, from outside: an interval of one time
and one row is a record, upper is the head, and a snapshot is a scan of all.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kit.places import SHARED, Addresses, open_place
from kit.postgres_server import PostgresServer
from kit.s3_servers import SeaweedServer
from kit.shards import Place
from sim.checkers.linear import LANDED, LOST, NEVER, UNSURE, History, Read, Set, check_history
from tidelog.persist.upkeep.sweeper import usage_of_shard

WRITERS = 8
SECONDS = float(os.environ.get("TIDELOG_CHAOS_SECONDS", "6"))
SCRIPT = Path(__file__).with_name("shard_writer.py")
STOPPED_S = 0.8  # Twice a lease.


@dataclass(slots=True)
class Writer:
    """A process, and what it said."""

    where: Addresses
    name: str
    said: list[list[Any]] = field(default_factory=list)
    process: subprocess.Popen[str] = field(init=False)
    listener: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *self.where.arguments, self.name],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            if line.endswith("\n"):  # One that was cut off in the middle was not said.
                self.said.append(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.listener.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass(slots=True)
class Fought:
    """What became of a fight."""

    said: list[tuple[str, list[Any]]] = field(default_factory=list)
    kills: int = 0
    stops: int = 0
    outages: int = 0


def fight(where: Addresses, *, seed: int, outage: Callable[[], None] | None) -> Fought:
    """Let all write; kill, stop, and have the server be away, at random; return what was said."""
    dice, found = random.Random(seed), Fought()
    running = [Writer(where, f"w{n}-0") for n in range(WRITERS)]
    begun = time.monotonic()
    try:
        while (took := time.monotonic() - begun) < SECONDS or (
            took < 20 * SECONDS and not _is_enough(running, found)
        ):
            time.sleep(dice.uniform(0.1, 0.4))
            place = dice.randrange(WRITERS)
            victim = running[place]
            if victim.process.poll() is not None:
                raise AssertionError("a writer ended by itself")
            if dice.random() < 0.5 and victim.said:
                victim.kill()
                found.said += [(victim.name, line) for line in victim.said]
                found.kills += 1
                running[place] = Writer(where, f"w{place}-{found.kills}")
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


def _is_enough(running: list[Writer], found: Fought) -> bool:
    """Say whether most had a turn, and each thing happened: else it would prove nothing."""
    said = [*found.said, *((w.name, line) for w in running for line in list(w.said))]
    wrote = {name.split("-")[0] for name, line in said if line[0] == "landed"}
    reads = sum(line[0] == "read" for _, line in said)
    return len(wrote) >= WRITERS - 1 and reads > 5 and min(found.kills, found.stops) >= 2


def history_of(said: list[tuple[str, list[Any]]]) -> History:
    """Return calls and answers; what has no answer is unsure, and may land at any time."""
    found = History()
    answers = {"landed": LANDED, "lost": LOST, "never": NEVER, "unsure": UNSURE}
    begun: dict[str, tuple[str, int, float]] = {}
    ended: dict[str, tuple[str, float]] = {}
    for name, (what, *rest) in said:
        if what == "begins":
            begun[rest[0]] = (name, rest[1], rest[2])
        elif what in answers:
            ended[rest[0]] = (answers[what], rest[2])
        elif what == "read":
            seen = tuple((seqno, value.encode()) for seqno, value in rest[1])
            read = Read(client=name, begin=rest[0], end=rest[2], start=1, found=seen)
            found.reads.append(read)
    for value, (name, lower, begin) in begun.items():
        answer, end = ended.get(value, (UNSURE, math.inf))
        end = math.inf if answer == UNSURE else end
        found.sets.append(
            Set(
                client=name,
                seqno=lower + 1,
                value=value.encode(),
                begin=begin,
                end=end,
                answer=answer,
            )
        )
    return found


async def read_all(place: Place) -> list[list[Any]]:
    """Return each row with its place, as a newcomer reads it; all of a shard is accounted for."""
    reader = place.shard()
    upper = (await reader.upper()).time
    table = await (await reader.snapshot(upper - 1)).to_arrow()
    assert set(table.column("_diff").to_pylist()) == {1}
    for _ in range(4):
        await place.shard().collect(after_us=0)
        await place.shard().sweep()
    usage = await usage_of_shard(place.shard())
    listed = [entry async for entry in place.store.list("shard/s/")]
    assert sum(usage.objects.values()) == len(listed)
    again = await (await place.shard().snapshot(upper - 1)).to_arrow()
    assert again.equals(table)
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted([row["c1"] + 1, row["c0"].rstrip()] for row in found)


@pytest.fixture(params=SHARED)
def fought_at(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Place, Addresses, Callable[[], None] | None]]:
    kind = str(request.param)

    def restart() -> None:
        if kind == "store on S3":
            server: SeaweedServer = request.getfixturevalue("seaweed")
            server.stop()
            time.sleep(0.5)
            server.start()
        else:
            database: PostgresServer = request.getfixturevalue("postgres")
            database.kill()
            time.sleep(0.5)
            database.start()

    outage = restart if kind in ("store on S3", "postgres") else None
    for place, where in open_place(kind, request, tmp_path):
        assert where is not None
        yield place, where, outage


@pytest.mark.timeout(600 + SECONDS)
def test_t60_what_processes_at_one_shard_are_told_is_linearizable(
    fought_at: tuple[Place, Addresses, Callable[[], None] | None],
) -> None:
    """Whoever is killed, or stopped past its lease, whatever its clock says, server gone or not."""
    place, where, outage = fought_at
    asyncio.run(place.shard().hold("history", 0))
    fought = fight(where, seed=7, outage=outage)
    found = asyncio.run(read_all(place))
    now = time.monotonic()
    fought.said.append(("last", ["read", now, found, now + 1]))
    history = history_of(fought.said)
    assert [seqno for seqno, _ in found] == [*range(1, len(found) + 1)]
    check_history(history)
    counts = Counter(call.answer for call in history.sets)
    told = Counter(line[0] for _, line in fought.said)
    print(dict(counts), dict(told), fought.kills, fought.stops, fought.outages)
    assert counts[LANDED] > 30
    assert counts[LOST] > 3
    assert counts[UNSURE] + counts[NEVER] > 0
    assert fought.outages == (outage is not None)


def test_a_row_that_is_lost_or_doubled_is_seen() -> None:
    """A canary: the judge of all this must be able to find fault."""
    said: list[tuple[str, list[Any]]] = [
        ("a", ["begins", "a 0", 0, 1.0]),
        ("a", ["landed", "a 0", 0, 2.0]),
        ("b", ["begins", "b 0", 0, 1.0]),
        ("b", ["lost", "b 0", 0, 2.5]),
    ]
    for found in ([], [[1, "b 0"]], [[1, "a 0"], [2, "a 0"]]):
        with pytest.raises(AssertionError):
            check_history(history_of([*said, ("last", ["read", 3.0, found, 4.0])]))
    check_history(history_of([*said, ("last", ["read", 3.0, [[1, "a 0"]], 4.0])]))
