"""The command ``tidelog`` with executors that are killed with -9 in each stage, at work.

``python -m cluster.driver REPORT WORKER_PID TASK_BYTES ...``: the rest are tidelog's own arguments.
Ticks are cut into tasks of TASK_BYTES; 0 keeps the default. Each line of REPORT names the stage of
a kill, and the last one the bytes that this process read from stores. A job starts once all
executors have joined, and only an executor with a task is killed. The worker dies with its executor
at a commit.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark import SparkContext

from kit.spark_cluster import executor_pids
from tidelog.cli.main import main
from tidelog.collection.ingest import ingest
from tidelog.collection.ingest.tick import TickCommit
from tidelog.core.clock import Clock
from tidelog.core.metrics import Metric, use_sink
from tidelog.spark import engine
from tidelog.spark.job import run_job
from tidelog.spark.plan import TickSettings, plan_tick, share_survey

EXECUTORS: Final = 2
WAIT_S: Final = 60.0
# A job's name, its stage, and the stage's name in the report; each in another job.
STAGES: Final = (
    ("the survey", 0, "survey"),
    ("the tick", 0, "decode"),
    ("the tick", 1, "write"),
)

T = TypeVar("T")


@dataclass(slots=True)
class Killer:
    """Kills an executor in each stage, and a worker at the commit after these."""

    report: Path
    worker_pid: int
    left: list[tuple[str, int, str]] = field(default_factory=lambda: list(STAGES))

    async def run_job(
        self, context: SparkContext, work: Callable[[], T], *, clock: Clock, what: str
    ) -> T:
        """Run a job as the engine does, and watch its stages."""
        if not self.left or self.left[0][0] != what:
            return await run_job(context, work, clock=clock, what=what)
        _, stage, told = self.left.pop(0)
        ended = threading.Event()

        def watched() -> T:
            self._await_executors(context)
            watcher = threading.Thread(target=self._kill_in, args=(context, stage, told, ended))
            watcher.start()
            try:
                return work()
            finally:
                ended.set()
                watcher.join()

        return await run_job(context, watched, clock=clock, what=what)

    def at_commit(self) -> None:
        """Kill the worker, once executors were killed in all stages."""
        if not self.left and self.worker_pid:
            os.kill(self.worker_pid, signal.SIGKILL)
            self.worker_pid = 0
            self._tell("commit")

    def _await_executors(self, context: SparkContext) -> None:
        deadline = time.monotonic() + WAIT_S
        # The driver itself counts as one more.
        while len(context._jsc.sc().statusTracker().getExecutorInfos()) <= EXECUTORS:
            if time.monotonic() > deadline:
                self._tell("no second executor came")
                return
            time.sleep(0.05)

    def _kill_in(
        self, context: SparkContext, stage: int, told: str, ended: threading.Event
    ) -> None:
        tracker = context.statusTracker()
        while not ended.wait(0.005):
            for job in tracker.getActiveJobsIds():
                info = tracker.getJobInfo(job)
                stages = sorted(info.stageIds) if info is not None else []
                found = tracker.getStageInfo(stages[stage]) if stage < len(stages) else None
                if found is None or not found.numActiveTasks:
                    continue
                running = executor_pids(context.applicationId)
                if busy := [one for one in busy_executors(context) if one in running]:
                    os.kill(running[busy[0]], signal.SIGKILL)
                    self._tell(told)
                    return

    def _tell(self, what: str) -> None:
        with self.report.open("a") as report:
            report.write(f"{what}\n")


@dataclass(slots=True)
class BytesRead:
    """A metrics sink that counts the bytes read from any store."""

    total: int = 0

    def observe(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        if metric.name == "store_bytes_in":
            self.total += int(value)


def busy_executors(context: SparkContext) -> list[str]:
    """Return the ids of the executors that have a task now."""
    found = context._jsc.sc().statusStore().executorList(True)
    each = [found.apply(n) for n in range(found.size())]
    return [one.id() for one in each if one.activeTasks()]


def cut_small(task_bytes: int) -> None:
    """Cut all work into tasks of so many bytes, so that little work needs several."""
    settings = TickSettings(small_bytes=0, task_bytes_min=task_bytes)

    vars(engine)["plan_tick"] = lambda job, **given: plan_tick(
        job, **{**given, "settings": settings}
    )
    vars(engine)["share_survey"] = lambda job, cores, _: share_survey(job, cores, settings)


def watch(killer: Killer) -> None:
    """Watch the engine's jobs and the ingester's commits."""
    commit = ingest.Ingester._commit_of

    def watched(self: ingest.Ingester, *given: Any) -> TickCommit:
        killer.at_commit()
        return commit(self, *given)

    setattr(ingest.Ingester, "_commit_of", watched)  # noqa: B010  mypy forbids an assignment.
    vars(engine)["run_job"] = killer.run_job


def run(arguments: Sequence[str]) -> None:
    report, worker_pid, task_bytes, *rest = arguments
    if int(task_bytes):
        cut_small(int(task_bytes))
    watch(Killer(Path(report), int(worker_pid)))
    sys.argv = ["tidelog", *rest]
    read = BytesRead()
    with use_sink(read):
        status = main()
    with Path(report).open("a") as told:
        told.write(f"{read.total}\n")
    sys.exit(status)


if __name__ == "__main__":
    run(sys.argv[1:])
