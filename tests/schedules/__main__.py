"""The long form: ``PYTHONPATH=tests:. python -m schedules --first N --seeds M``."""

from __future__ import annotations

import argparse
import sys
import traceback

from schedules.play import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m schedules", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    given = parser.parse_args()
    failed = 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            play(seed)
        except Exception:  # noqa: BLE001 - of any kind, it is a finding.
            failed += 1
            print(f"seed {seed}:\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{given.seeds} schedules, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
