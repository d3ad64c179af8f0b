"""The long form: ``PYTHONPATH=tests:. python -m schedules --first N --seeds M``.

With ``--rotation`` or ``--spark``, logs are rotated, copied, truncated and compressed.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial

from schedules.play import play
from schedules.rotation import play_rotation
from tidelog.collection.ingest.engine import Engine
from tidelog.location import Location


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m schedules", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--rotation", action="store_true", help="rotate logs, on the local engine")
    parser.add_argument("--spark", action="store_true", help="rotate logs, on the Spark engine")
    parser.add_argument("--busy", action="store_true", help="rotate logs during each run, too")
    given = parser.parse_args()
    failed = 0
    run: Callable[[int], object] = play
    if given.rotation or given.busy or given.spark:
        engine = spark_engine if given.spark else None
        run = partial(play_rotation, make_engine=engine, is_busy=given.busy)
    for seed in range(given.first, given.first + given.seeds):
        try:
            run(seed)
        except Exception:  # noqa: BLE001 - of any kind, it is a finding.
            failed += 1
            print(f"seed {seed}:\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{given.seeds} schedules, {failed} failed")
    return 1 if failed else 0


def spark_engine(location: Location) -> Engine:
    """Return an engine on this machine's Spark with the smallest possible shares."""
    from pyspark.sql import SparkSession

    from tidelog.spark import SparkEngine
    from tidelog.spark.plan import TickSettings

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = TickSettings(small_bytes=0, task_bytes_min=1, range_bytes=1)
    return SparkEngine(builder.getOrCreate(), location_url=location.url, settings=settings)


if __name__ == "__main__":
    sys.exit(main())
