"""The long run: ``python -m sim --seeds N --seconds S`` prints its totals and its failures.

``--keep FILE`` resumes an interrupted run. ``--processes 2`` halves the time. ``--day`` takes only
the seeds of one kind of day (`sim.kernel.rates`).

Exit status: 0 all checks passed; 1 a check failed. The run prints the failed seed; add it to
``tests/sim/seeds.json`` to run it in every test run.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sim.canaries.builds import innermost
from sim.crash.points import visit
from sim.crash.stories import STORIES
from sim.crash.stories_alter import AlterStory
from sim.crash.stories_fork import ForkStory, RebuildStory
from sim.crash.stories_keyed import KeyedForkStory, KeyedStory
from sim.crash.stories_schemas import EvolveStory
from sim.crash.stories_shard import ExpiryStory, MaintenanceStory
from sim.crash.stories_tables import TableStory
from sim.crash.stories_transactions import TransactionStory
from sim.kernel.rates import DAYS, day_of
from sim.runs import OutcomeFile, Summary, run_many
from sim.workloads.collect import CollectStory, simulate_collect, simulate_collect_slots
from sim.workloads.commits import simulate_commits
from sim.workloads.consensus import simulate_consensus
from sim.workloads.direct import simulate_direct
from sim.workloads.fork import simulate_fork
from sim.workloads.ingest import simulate_ingest
from sim.workloads.inserts import simulate_inserts
from sim.workloads.keyed import simulate_keyed
from sim.workloads.log import simulate_log
from sim.workloads.race import simulate_pin_race, simulate_race
from sim.workloads.renditions import simulate_renditions
from sim.workloads.schemas import simulate_schemas
from sim.workloads.shard import simulate_shard
from sim.workloads.slot import SlotScenario, simulate_slots
from sim.workloads.tables import simulate_tables
from sim.workloads.transactions import simulate_transactions

SCENARIOS: Final[dict[str, Callable[[int], Any]]] = {
    "consensus": simulate_consensus,
    "shard": simulate_shard,
    "ingest": simulate_ingest,
    "log": simulate_log,
    "slot log": simulate_slots,
    "collect": simulate_collect,
    "collect slots": simulate_collect_slots,
    "race": simulate_race,
    "pin race": simulate_pin_race,
    "fork": simulate_fork,
    "transactions": simulate_transactions,
    "inserts": simulate_inserts,
    "commits": simulate_commits,
    "tables": simulate_tables,
    "direct": simulate_direct,
    "renditions": simulate_renditions,
    "schemas": simulate_schemas,
    "keyed": simulate_keyed,
}
FAILURES_MAX: Final = 10


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many, for each scenario")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each scenario, at most")
    parser.add_argument("--only", choices=[*SCENARIOS, "crash"], help="one instrument alone")
    parser.add_argument("--day", choices=[*DAYS], help="only seeds of one kind of day")
    parser.add_argument("--processes", type=int, default=1, help="how many run seeds")
    parser.add_argument("--keep", type=Path, help="a file of outcomes, from which a run goes on")
    given = parser.parse_args(arguments)
    kept, failures = OutcomeFile.at(given.keep), 0
    for name in SCENARIOS:
        if given.only in (None, name):
            failures += _run_seeds(name, given, kept)
    if given.only in (None, "crash"):
        failures += _visit_all(given.first)
    return 1 if failures else 0


def _run_seeds(name: str, given: argparse.Namespace, kept: OutcomeFile) -> int:
    until, summary = time.monotonic() + given.seconds, Summary()
    seeds = range(given.first, given.first + given.seeds)
    chosen = [seed for seed in seeds if given.day in (None, day_of(seed))]
    found = run_many(
        name, SCENARIOS[name], chosen, kept=kept, processes=given.processes, until=until
    )
    for outcome in found:
        summary.add(outcome)
        if outcome.error:
            day = day_of(outcome.seed)
            print(f"{name}: seed {outcome.seed} ({day}): {outcome.error}", file=sys.stderr)
            print(outcome.trace, file=sys.stderr, flush=True)
        if summary.failed >= FAILURES_MAX:
            break
    print(summary.render(name), flush=True)
    return summary.failed


def _visit_all(seed: int) -> int:
    failed = 0
    slots = CollectStory(name="collect slots", scenario_of=SlotScenario)
    transactions = (TransactionStory(), TransactionStory("transactions, impatient", attempts=1))
    shards = (MaintenanceStory(), ExpiryStory(), EvolveStory())
    logs = (CollectStory(), slots, ForkStory(), RebuildStory(), KeyedStory(), KeyedForkStory())
    tables = (TableStory(), AlterStory(), AlterStory(name="alterations, no key", key=()))
    for story in (*STORIES, *shards, *logs, *transactions, *tables):
        begin = time.monotonic()
        try:
            found = visit(story, seed=seed)
        except AssertionError as error:
            failed += 1
            _tell("crash points", error)
            continue
        print(
            f"crash points of {story.name}: requests={found.requests} visited={found.visited} "
            f"struck={found.struck} seconds={time.monotonic() - begin:.0f}",
            flush=True,
        )
        at = " ".join(
            f"{name.replace(' ', '_')}={n}" for name, n in found.struck_at.items() if name
        )
        if at:
            print(f"  struck at: {at}", flush=True)
    return failed


def _tell(where: str, error: BaseException) -> None:
    print(f"{where}: {innermost(error)!r}", file=sys.stderr)
    traceback.print_exception(innermost(error), limit=-4, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
