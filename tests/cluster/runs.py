"""Drivers of a cluster, as processes of their own: the command line, and a session of a user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cluster.scene import NAME
from kit.processes import end_with_parent
from kit.spark_cluster import StandaloneCluster
from tidelog.spark.java import find_launcher

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS_MAX: Final = 400
# As an operator of a busy cluster has it: a task that seems slow is run twice.
BUSY: Final = {"spark.speculation": "true", "spark.speculation.interval": "50ms"}


def start(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start a module of Python in a folder, so that it ends with this process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
    env["JAVA_HOME"] = str(find_launcher(os.environ).home)
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
    )


def finish(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for a good end; return the objects that were printed."""
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, f"exit {process.returncode}: {err[-3_000:]}"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def settings_of(cluster: StandaloneCluster) -> dict[str, str]:
    """Return what a driver sets for a cluster."""
    light = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.ui.liveUpdate.period": "0",  # What tasks run is known at once.
    }
    return {**cluster.settings, **BUSY, **light}


def ingest_arguments(
    url: str, cluster: StandaloneCluster, *, tick_bytes: int, name: str = NAME
) -> list[str]:
    """Return tidelog's arguments to ingest a source on a cluster."""
    conf = [f"--conf={name}={value}" for name, value in settings_of(cluster).items()]
    run = ["ingest", name, "--once", "--json", "--max-bytes-per-tick", str(tick_bytes)]
    return ["--location", url, *run, "--master", cluster.master, *conf]
