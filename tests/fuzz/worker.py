"""A process that runs cases with little memory, and prints their results.

``python -m fuzz.worker SEED FIRST LIMIT`` prints a line of JSON before and after each case.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MEMORY_BYTES = 1_000_000_000
CASE_SECONDS = 10.0


def _out_of_time(_sign: int, _frame: FrameType | None) -> None:
    from fuzz.case import OutOfTime

    raise OutOfTime


@contextmanager
def limited() -> Iterator[None]:
    """Stop the body after some seconds of its own CPU, and again if it does not end."""
    signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS, CASE_SECONDS / 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def say(**told: object) -> None:
    print(json.dumps(told), flush=True)


def main() -> None:
    from fuzz.case import run_case
    from fuzz.specimens import RECIPES, specimen

    seed, first, limit = map(int, sys.argv[1:4])
    for name in RECIPES:
        specimen(name)  # Made before the limits.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _out_of_time)
    for number in range(first, limit):
        say(begun=number)
        outcome = run_case(seed, number, limit=limited())
        failed = str(outcome) if outcome.complaints else ""
        say(
            number=number,
            failed=failed,
            unseen=outcome.unseen,
            specimen=outcome.specimen,
        )


if __name__ == "__main__":
    main()
