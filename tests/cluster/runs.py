"""Drivers of a cluster as separate processes: the command line, and a user's own session."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cluster.scene import NAME
from kit.processes import end_with_parent
from kit.spark_cluster import StandaloneCluster, plain_python
from tidelog.spark.java import find_launcher

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS_MAX: Final = 1_000
PLAIN_PYTHON: Final = str(plain_python())  # The same Python, without its packages.
_SUBMIT: Final = re.compile(
    r"^## spark-submit\n<!--[^\n]*-->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
# A setting of a busy cluster: a task that seems slow is run twice.
BUSY: Final = {"spark.speculation": "true", "spark.speculation.interval": "50ms"}


def start(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start a Python module in a folder, so that it ends with this process."""
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
    """Wait for a successful end; return the objects that were printed."""
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, f"exit {process.returncode}: {err[-3_000:]}"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def settings_of(cluster: StandaloneCluster) -> dict[str, str]:
    """Return a driver's settings for a cluster."""
    light = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 "
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
        "spark.ui.liveUpdate.period": "0",  # Shows the running tasks at once.
    }
    return {**cluster.settings, **BUSY, **light}


def ingest_arguments(
    url: str, cluster: StandaloneCluster, *, tick_bytes: int, name: str = NAME
) -> list[str]:
    """Return tidelog's arguments to ingest a source on a cluster."""
    conf = [f"--conf={name}={value}" for name, value in settings_of(cluster).items()]
    run = ["ingest", name, "--once", "--json", "--max-bytes-per-tick", str(tick_bytes)]
    return ["--location", url, *run, "--master", cluster.master, *conf]


def run_submit_lines(cluster: StandaloneCluster, url: str, folder: Path) -> str:
    """Run the documented lines for spark-submit; return their output."""
    found = _SUBMIT.search((ROOT / "docs/guides/cluster.md").read_text())
    assert found is not None
    lines = found[1].replace("spark://HOST:7077", cluster.master).replace("airborne", NAME)
    lines = lines.replace("s3://bucket/lake", shlex.quote(url))
    # A cluster's users have these in its configuration.
    settings = "".join(f"{name} {value}\n" for name, value in settings_of(cluster).items())
    (folder / "spark-defaults.conf").write_text(settings)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_CONF_DIR": str(folder)}
    env["JAVA_HOME"] = str(find_launcher(os.environ).home)
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    done = subprocess.run(
        ["sh", "-ec", lines],
        cwd=folder,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout
