"""Processes that merge and delete while ingesters run: restarted and killed repeatedly."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

COMPACT = ("compact", "--full", "--follow", "--interval", "0.1")
COLLECT = ("collect", "--grace", "0s", "--follow", "--interval", "0.2")
SWEEP = ("collect", "--grace", "0s", "--sweep", "--follow", "--interval", "1.5")


@dataclass(slots=True)
class Maintainers:
    """The number of kills, and the faults that the processes reported before."""

    kills: int = 0
    said: list[str] = field(default_factory=list)


@contextmanager
def maintained(url: str, *, rng: random.Random, span_s: float) -> Iterator[Maintainers]:
    """Run each maintenance command, and kill it with -9 after up to ``span_s`` seconds."""
    done, stop = Maintainers(), threading.Event()
    seeds = [rng.random() for _ in range(4)]
    verbs = (COMPACT, COMPACT, COLLECT, SWEEP)
    threads = [
        threading.Thread(target=_again, args=(url, verb, random.Random(seed), span_s, stop, done))
        for verb, seed in zip(verbs, seeds, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _again(
    url: str,
    verb: tuple[str, ...],
    rng: random.Random,
    span_s: float,
    stop: threading.Event,
    done: Maintainers,
) -> None:
    while not stop.is_set():
        command = [sys.executable, "-m", "tidelog.cli.main", "--location", url, *verb]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        until = time.monotonic() + 0.6 + rng.uniform(0, span_s)
        while process.poll() is None and time.monotonic() < until and not stop.is_set():
            time.sleep(0.01)
        ended = process.poll()
        process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
        if ended is not None:
            done.said.append(f"{' '.join(verb)} ended with {ended}: {told[-2_000:]}")
        done.kills += 1
