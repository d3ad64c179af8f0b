"""The demo on a cluster: its driver and each of its executors are killed in turn."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cluster import runs
from kit.spark_cluster import StandaloneCluster, executor_pids
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.demo.run import NAME, TICK_BYTES, Demo, DemoFailed
from tidelog.location import open_location
from tidelog.store.urls import open_store

# The process to kill after a tick of the run; nothing dies at the first and the last tick.
KILLS: Final = {4: "executor", 9: "executor", 14: "driver", 19: "executor", 24: "executor"}


@dataclass(slots=True, kw_only=True)
class ClusterDemo(Demo):
    """One run of the demo, with its events and its location in a bucket."""

    cluster: StandaloneCluster
    bucket_url: str
    files_url: str

    @property
    def url(self) -> str:
        return self.bucket_url

    async def _create(self, events: Path) -> None:
        store = open_store(self.files_url, clock=SystemClock())
        for name, data in _read_all(events).items():
            await store.put(name, data)
        location = await open_location(self.url, create=True)
        await location.sources.create(
            SourceSpec(
                name=NAME,
                files=self.files_url,
                format="json",
                envelope="upsert",
                key=("carrier", "flight", "day"),
                time_column="at",
                delete_when="event = 'landed'",
            )
        )

    def _ingest(self) -> None:
        ticks, left = 0, dict(KILLS)
        while True:
            with self._ingester() as driver:
                for line in _reports(driver):
                    if "tick" not in line:
                        continue
                    ticks += 1
                    if (victim := left.pop(ticks, None)) is None:
                        continue
                    self.say(f"Tick {ticks}: kill -9 of {_kill(victim, driver, self.cluster)}.")
                out = driver.stdout.read() if driver.stdout else ""
                if driver.wait() == 0:
                    break
                if driver.returncode != -signal.SIGKILL:
                    raise DemoFailed("an ingester failed", status=driver.returncode)
                self.say("Starting another driver, which goes on from there.")
        self.say(f"It took {ticks} ticks in all, and each event once.")
        self.asked_before = self.asked_after = json.loads(out)["store"]
        if left:
            raise DemoFailed("there were too few ticks to kill all in turn", ticks=ticks)

    def _ingester(self) -> subprocess.Popen[str]:
        arguments = runs.ingest_arguments(self.url, self.cluster, tick_bytes=TICK_BYTES, name=NAME)
        return runs.start(["tidelog", *arguments], self.folder)

    def _show_cost(self) -> None:
        pass

    def _show_next(self) -> None:
        pass


def _read_all(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _kill(victim: str, driver: subprocess.Popen[str], cluster: StandaloneCluster) -> str:
    """Kill the driver or its oldest executor; return its description."""
    if victim == "driver":
        os.killpg(driver.pid, signal.SIGKILL)
        return "the driver"
    oldest, pid = min(executor_pids(cluster.app_ids()[-1]).items(), key=lambda one: int(one[0]))
    os.kill(pid, signal.SIGKILL)
    return f"executor {oldest}"


def _reports(driver: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    for line in driver.stderr or ():
        if line.startswith("{"):
            yield json.loads(line)


def run_demo(folder: Path, cluster: StandaloneCluster, *, files_url: str, bucket_url: str) -> None:
    """Run the demo; it prints its progress."""

    def say(line: str) -> None:
        print(line, flush=True)

    demo = ClusterDemo(
        folder=folder,
        engine="spark",
        say=say,
        kill_at=0,
        cluster=cluster,
        files_url=files_url,
        bucket_url=bucket_url,
    )
    asyncio.run(demo.run())
