"""Real writers of one log that are killed: no acknowledged record is lost or doubled."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from chaos.fighters import SECONDS, Speaker
from kit.protocols import KINDS, Kind
from kit.s3_servers import SeaweedServer
from tidelog.core.clock import SystemClock
from tidelog.store.urls import open_store
from tidelog.wal.scrub.report import ScrubReport

WRITERS = 3
SCRIPT = Path(__file__).with_name("log_writer.py")


class LogWriter(Speaker[str]):
    """A process that writes a log, and the lines that it printed."""

    def __init__(self, protocol: str, url: str, name: str) -> None:
        super().__init__([str(SCRIPT), protocol, url, name], str, env={})

    def await_word(self, deadline: float) -> None:
        """Wait for an acknowledgement, so that most processes die in the middle of their work."""
        while not self.said and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)


def fight(kind: Kind, url: str, *, seed: int) -> dict[int, str]:
    """Let writers write, kill each at random, and return the acknowledged records."""
    dice, lives = random.Random(seed), 0
    running = [LogWriter(kind.name, url, f"w{n}-0") for n in range(WRITERS)]
    said: list[str] = []
    begun = time.monotonic()
    while (took := time.monotonic() - begun) < SECONDS or (
        # On a busy machine the fight takes longer until it proves anything.
        took < 20 * SECONDS and not _is_enough(_words(said, running))
    ):
        time.sleep(dice.uniform(0.2, 1.0))
        place = dice.randrange(WRITERS)
        if dice.random() < 0.7:
            running[place].await_word(time.monotonic() + SECONDS)
        assert running[place].process.poll() is None, "a writer ended by itself"
        running[place].kill()
        said += running[place].said
        lives += 1
        running[place] = LogWriter(kind.name, url, f"w{place}-{lives}")
    for writer in running:
        writer.kill()
        said += writer.said
    places: dict[int, str] = {}
    for line in said:
        position, body = line.split()
        assert int(position) not in places, "one position was given to two records"
        places[int(position)] = body
    return places


def _words(said: list[str], running: list[LogWriter]) -> list[str]:
    """Return the bodies of the acknowledged records."""
    lines = [*said, *(line for writer in running for line in list(writer.said))]
    return [line.split()[1] for line in lines]


def _is_enough(bodies: Collection[str]) -> bool:
    """Return True if every writer had a turn and enough records exist."""
    return len({body.split("-")[0] for body in bodies}) == WRITERS and len(bodies) > 50


async def contents(kind: Kind, url: str) -> tuple[dict[int, str], ScrubReport]:
    store = open_store(url, clock=SystemClock(), create=True)
    await kind.settle(store)
    rows = [row async for table in kind.reader(store).scan() for row in table.to_pylist()]
    return {row["position"]: row["body"].decode() for row in rows}, await kind.scrub(store)


def check(kind: Kind, url: str, *, seed: int) -> None:
    acknowledged = fight(kind, url, seed=seed)
    found, scrubbed = asyncio.run(contents(kind, url))

    assert scrubbed.problems == []
    assert {p: found.get(p) for p in acknowledged} == acknowledged
    assert len(set(found.values())) == len(found), "a record is there twice"
    assert _is_enough(acknowledged.values())


@pytest.mark.timeout(1200 + SECONDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_writers_killed_at_random_on_a_local_disk(kind: Kind, tmp_path: Path) -> None:
    """Acknowledged records on a local disk survive kills of writers at any moment."""
    check(kind, (tmp_path / "log").as_uri(), seed=1)


@pytest.mark.timeout(1200 + SECONDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_writers_killed_at_random_on_s3(kind: Kind, seaweed: SeaweedServer) -> None:
    """Acknowledged records on S3 survive kills of writers at any moment."""
    check(kind, seaweed.url(f"chaos-{kind}-log"), seed=2)
