"""The long form: ``PYTHONPATH=tests:. python -m messy --seed N --cases M --engine local``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from messy.case import EngineOf, run_case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m messy", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--cases", type=int, default=2_000, help="how many seeds from there on")
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--keep", type=Path, help="a folder for what a seed leaves behind")
    given = parser.parse_args()
    engine_of = _spark() if given.engine == "spark" else None
    failed, drawn, began = 0, Counter[str](), time.monotonic()
    root = given.keep or Path(tempfile.mkdtemp(prefix="messy-"))
    for seed in range(given.seed, given.seed + given.cases):
        folder = root / str(seed)
        outcome = run_case(seed, folder, engine_of=engine_of)
        drawn.update(outcome.drawn)
        drawn.update([f"format {outcome.settings.format}"])
        drawn["rows"] += outcome.rows
        drawn["bad rows"] += outcome.bad
        if outcome.differences:
            failed += 1
            print(outcome, flush=True)
        if given.keep is None:
            shutil.rmtree(folder)
    for name, count in sorted(drawn.items(), key=lambda item: -item[1]):
        print(f"{count:8} {name}")
    print(f"{given.cases} seeds in {time.monotonic() - began:.1f} s, {failed} failed")
    return 1 if failed else 0


def _spark() -> EngineOf:
    from tidelog.spark import SparkEngine
    from tidelog.spark.session import session

    started = session(quick=True)
    return lambda location: SparkEngine(started, location_url=location.url, clock=location.clock)


if __name__ == "__main__":
    sys.exit(main())
