"""The long forms: ``python -m chaos --engine spark --kills 20``, from the folder ``tests``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from chaos import checks
from chaos.table_stream import check_killed
from chaos.table_writer import run_followed_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--two", action="store_true", help="two ingesters at once, unkilled")
    parser.add_argument("--merges", action="store_true", help="beside who merges and deletes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--follow", action="store_true", help="with a follower and maintenance")
    parser.add_argument("--table", action="store_true", help="a followed table, not an ingest")
    parser.add_argument("--stream", action="store_true", help="a Spark stream between tables")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-chaos-") as folder:
        if given.stream:
            killed = check_killed(Path(folder), kills=given.kills)
            print(f"stream: each row is in the target once. Of {given.kills} runs, {killed} died.")
            return
        if given.two:
            report = checks.run_two(Path(folder), engine=given.engine, seed=given.seed)
        elif given.table:
            report = run_followed_table(Path(folder), kills=given.kills, seed=given.seed)
        elif given.follow:
            report = checks.run_followed(Path(folder), kills=given.kills, seed=given.seed)
        elif given.merges:
            report = checks.run_maintained(
                Path(folder), kills=given.kills, seed=given.seed, span_s=0.5
            )
        else:
            report = checks.run_killed(
                Path(folder),
                engine=given.engine,
                kills=given.kills,
                seed=given.seed,
                span_s=0.5 if given.engine == "local" else 1.5,
            )
    print(f"{given.engine}: equal at every minute. {report}")


if __name__ == "__main__":
    main()
