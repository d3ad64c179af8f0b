"""Seeds of each scenario, those that once failed first; and broken builds, which must fail.

`python -m sim` is the long run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.sim_days import Tally, caught, days, has_struck
from sim.__main__ import SCENARIOS, main
from sim.canaries.builds import FOR_CONSENSUS, FOR_INGEST, FOR_SHARDS, Canary
from sim.canaries.log import FOR_LOGS
from sim.canaries.mended import IN_COLLECTIONS, IN_LOGS, IN_SLOTS
from sim.canaries.slot import FOR_SLOTS
from sim.checkers.demands import Violated
from sim.checkers.linear import NotLinear
from sim.checkers.linear_log import NotLinearLog
from sim.kernel.rates import seeds_of
from sim.workloads.collect import simulate_collect_slots
from sim.workloads.consensus import simulate_consensus
from sim.workloads.ingest import simulate_ingest
from sim.workloads.log import simulate_log
from sim.workloads.shard import simulate_shard
from sim.workloads.slot import simulate_slots
from tidelog.errors import TidelogError

KEPT: dict[str, list[int]] = json.loads((Path(__file__).parent / "seeds.json").read_text())


@pytest.mark.parametrize(
    ("scenario", "seed"), [(name, seed) for name, seeds in KEPT.items() for seed in seeds]
)
def test_a_seed_that_once_failed_does_not_fail_again(scenario: str, seed: int) -> None:
    """A seed that once found a fault passes now, and finds the fault if it returns."""
    SCENARIOS[scenario](seed)


@pytest.mark.parametrize("block", range(2))
def test_consensus_is_linearizable(block: int) -> None:
    """Under lost and late requests, each seqno has one winner, and no read goes back."""
    reports = [simulate_consensus(seed) for seed in range(block * 150, block * 150 + 150)]

    # A run without activity proves nothing.
    assert sum(r.landed for r in reports) > 750
    assert sum(r.unsure for r in reports) > 75
    assert sum(r.deaths for r in reports) > 15


@pytest.mark.parametrize("block", range(2))
def test_ingesters_make_what_a_replay_in_plain_python_makes(block: int) -> None:
    """Two ingesters and two output shards give the rows of a plain replay at every time."""
    reports = [simulate_ingest(seed) for seed in range(block * 4, block * 4 + 4)]

    assert sum(r.ticks for r in reports) > 6
    assert sum(r.reads for r in reports) > 2
    # If one ingester always wins, the runs prove nothing about rivalry.
    winners = sum((r.winners for r in reports), Counter[str]())
    assert min(winners["a"], winners["b"]) > 0


@pytest.mark.parametrize("day", days())
def test_logs_are_linearizable(day: str, tally: Tally) -> None:
    """Under every fault, an acknowledged record is in the log once, in one order for all."""
    total = tally(simulate_log(seed) for seed in seeds_of(day, 4))

    assert total["acknowledged"] > 20
    assert total["unsure"] > 0
    assert has_struck(day, total)


@pytest.mark.parametrize("day", days())
def test_slot_logs_are_linearizable(day: str, tally: Tally) -> None:
    """Slot logs stay linearizable under takeovers, racing roll-ups, seals and lost manifests."""
    total = tally(simulate_slots(seed) for seed in seeds_of(day, 5))

    assert total["acknowledged"] > 5
    assert total["unsure"] > 0
    assert total["takeovers"] > 8
    assert total["rebuilt"] > 2
    assert has_struck(day, total)


def test_one_seed_is_one_run_also_in_another_process() -> None:
    """Equal seeds give equal traces in any process: hash seeds and addresses have no influence."""
    seeds = (seeds_of("stops", 1)[0], seeds_of("jumps", 1)[0])
    code = (
        "from sim.workloads.ingest import simulate_ingest as i\n"
        "from sim.workloads.shard import simulate_shard as s\n"
        "from sim.workloads.consensus import simulate_consensus as c\n"
        "from sim.workloads.log import simulate_log as l\n"
        "from sim.workloads.slot import simulate_slots as t\n"
        f"print(*[f(n).trace for n in {seeds} for f in (i, s, c, l, t)])"
    )
    root = Path(__file__).parents[2]
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    scenarios: list[Callable[[int], Any]] = [simulate_ingest, simulate_shard, simulate_consensus]
    scenarios += [simulate_log, simulate_slots]
    here = [simulate(seed).trace for seed in seeds for simulate in scenarios]

    assert there.stdout.split() == here
    assert len(set(here)) == len(here)


@pytest.mark.parametrize("canary", FOR_CONSENSUS, ids=lambda c: c.__name__)
def test_a_broken_consensus_is_caught(canary: Canary) -> None:
    """The checker catches each broken build of consensus."""
    _must_fail(canary, simulate_consensus)


@pytest.mark.parametrize("canary", FOR_SHARDS, ids=lambda c: c.__name__)
def test_a_broken_shard_is_caught(canary: Canary) -> None:
    """The model catches each broken build of shards."""
    _must_fail(canary, simulate_shard)


@pytest.mark.parametrize("canary", FOR_INGEST, ids=lambda c: c.__name__)
def test_a_broken_ingester_is_caught(canary: Canary) -> None:
    """The replay catches each broken build of ingesters."""
    _must_fail(canary, simulate_ingest)


@pytest.mark.parametrize("canary", FOR_LOGS, ids=lambda c: c.__name__)
def test_a_broken_log_is_caught(canary: Canary) -> None:
    """The checker catches each broken build of logs."""
    _must_fail(canary, simulate_log)


@pytest.mark.parametrize("canary", FOR_SLOTS, ids=lambda c: c.__name__)
def test_a_broken_slot_log_is_caught(canary: Canary) -> None:
    """The watch or the checker catches each broken build of slot logs."""
    _must_fail(canary, simulate_slots)


@pytest.mark.parametrize(
    ("simulate", "canary"),
    [
        *((simulate_slots, canary) for canary in IN_SLOTS),
        *((simulate_log, canary) for canary in IN_LOGS),
        *((simulate_collect_slots, canary) for canary in IN_COLLECTIONS),
    ],
    ids=lambda one: one.__name__,
)
def test_a_fault_of_once_is_caught(simulate: Callable[[int], object], canary: Canary) -> None:
    """The simulator catches past faults that it once missed."""
    _must_fail(canary, simulate)


def _must_fail(canary: Canary, simulate: Callable[[int], object]) -> None:
    # Some of them need a doubt that lasts.
    error = caught(canary, simulate, [*range(60), *seeds_of("gone", 60)])

    # A canary that fails by an error of its own proves nothing.
    assert isinstance(error, Violated | NotLinear | NotLinearLog | TidelogError), error


def test_the_long_form_counts_and_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m sim` prints counts, and the seed and error of a failure."""
    assert main(["--seeds", "20", "--only", "consensus"]) == 0
    assert "consensus: seeds=20 failed=0" in capsys.readouterr().out

    with FOR_CONSENSUS[2]():
        assert main(["--seeds", "5", "--only", "consensus"]) == 1
    assert "consensus: seed " in capsys.readouterr().err
