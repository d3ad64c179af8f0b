"""The long form: ``PYTHONPATH=tests python -m fuzz --seed N --cases M``.

One case again, in this process and with its traceback: ``--seed N --case K``.
"""

from __future__ import annotations

import argparse
import sys

from fuzz.case import run_case
from fuzz.runner import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=2_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--case", type=int, help="this one alone, here, without limits")
    given = parser.parse_args()
    if given.case is not None:
        outcome = run_case(given.seed, given.case)
        print(outcome)
        return 1 if outcome.complaints else 0
    report = run(given.seed, given.first, given.first + given.cases)
    print(report)
    if report.failed:
        print(f"one again: PYTHONPATH=tests python -m fuzz --seed {given.seed} --case K")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
