"""A standalone cluster of Spark from the package pyspark: a master, and workers on loopback.

Each worker has a directory of its own. Its Python has the dependencies of tidelog, but not tidelog.
All processes end with the one that started them, also by ``kill -9``: executors end with their
worker, and their Python ends with them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyspark

from kit.processes import end_with_parent
from kit.server_process import free_ports
from tidelog.spark import java
from tidelog.spark.java import find_launcher

_READY_S = 90.0
_OURS = ("tidelog", "pyspark_tidelog", "__editable__")
# Each run starts Java three times, and once more for each executor. Half of a start is the
# verification and the optimization of Spark's classes, and the set-up of its log.
_LOG = Path(java.__file__).with_name("log4j2.properties").as_uri()
LIGHT_JAVA = (
    "-Xlog:disable -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
    f"-XX:-BytecodeVerificationRemote -Dlog4j2.configurationFile={_LOG}"
)


@dataclass(slots=True)
class Daemon:
    """The master or a worker: its name, ports, directory and process."""

    name: str
    port: int
    web_port: int
    directory: Path
    process: subprocess.Popen[bytes]


@dataclass(slots=True)
class StandaloneCluster:
    """A cluster of ``workers`` with one core each; a context manager."""

    directory: Path
    workers: int = 2
    memory: str = "1g"
    _master: Daemon | None = None
    _workers: list[Daemon] = field(default_factory=list)

    def __enter__(self) -> Self:
        try:
            self._master = self._start("master", "Master", [])
            for number in range(self.workers):
                self.start_worker(f"worker-{number}")
            self.await_workers(self.workers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in [*self._workers, *([self._master] if self._master else [])]:
            _kill(daemon)

    @property
    def master(self) -> str:
        """The URL for ``--master``."""
        assert self._master is not None
        return f"spark://127.0.0.1:{self._master.port}"

    @property
    def worker_pid(self) -> int:
        """The process id of the worker that started last."""
        return self._workers[-1].process.pid

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a driver with few rows, for a quick start on a machine with few cores."""
        return {
            "spark.pyspark.python": str(bare_python(self.directory)),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": LIGHT_JAVA,
        }

    def start_worker(self, name: str) -> None:
        """Start a worker, which offers one core."""
        options = ["--cores", "1", "--memory", self.memory]
        self._workers.append(self._start(name, "worker.Worker", [*options, self.master]))

    def kill_worker(self) -> str:
        """Kill a worker with -9, whose executors then end; return its name."""
        worker = self._workers.pop()
        worker.process.kill()
        worker.process.wait()
        return worker.name

    def await_workers(self, count: int) -> None:
        """Wait until the master reports ``count`` live workers."""
        deadline = time.monotonic() + _READY_S
        while (alive := self._alive()) != count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{alive} workers, not {count}:\n{self._last_lines()}")
            time.sleep(0.1)

    def app_ids(self) -> list[str]:
        """Return the ids of the running applications, in order of their start."""
        return sorted(app["id"] for app in self._state()["activeapps"])

    def _alive(self) -> int:
        try:
            return sum(worker["state"] == "ALIVE" for worker in self._state()["workers"])
        except (OSError, ValueError):  # The master does not listen yet, or its pages are not ready.
            return 0

    def _state(self) -> dict[str, Any]:
        assert self._master is not None
        url = f"http://127.0.0.1:{self._master.web_port}/json/"
        with urllib.request.urlopen(url, timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    def _start(self, name: str, kind: str, arguments: list[str]) -> Daemon:
        directory = self.directory / name
        directory.mkdir(parents=True)
        port, web_port = free_ports(2)
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{_path(kind)}"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=self._environment(home, directory),
                start_new_session=True,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        return Daemon(name, port, web_port, directory, process)

    def _environment(self, home: Path, directory: Path) -> dict[str, str]:
        names = [name for name in os.environ if name in ("PATH", "HOME") or name.startswith("AWS_")]
        kept = {name: os.environ[name] for name in names}
        return kept | {
            "JAVA_HOME": str(find_launcher(os.environ).home),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(directory / "work"),
            "SPARK_LOCAL_DIRS": str(directory / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": LIGHT_JAVA,
        }

    def _last_lines(self) -> str:
        logs = [worker.directory / "log" for worker in self._workers]
        return "\n".join(log.read_text(errors="replace")[-2_000:] for log in logs)


def executor_pids(app_id: str) -> dict[str, int]:
    """Return the local process ids of an application's executors, by executor id."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if "--executor-id" in words and app_id in words:
            found[words[words.index("--executor-id") + 1]] = int(place.name)
    return found


def bare_python(directory: Path) -> Path:
    """Return a program that runs this Python with all its packages except tidelog."""
    program, packages = directory / "bare-python", directory / "packages"
    if program.exists():
        return program
    packages.mkdir(parents=True)
    for place in map(Path, sys.path):
        if place.name in ("site-packages", "dist-packages"):
            for package in place.iterdir():
                link = packages / package.name
                if not package.name.startswith(_OURS) and not link.is_symlink():
                    link.symlink_to(package)
    run = f'PYTHONPATH="{packages}:$PYTHONPATH" exec {plain_python()} -S "$@"'
    program.write_text(f"#!/bin/sh\n{run}\n")
    program.chmod(0o755)
    return program


def plain_python() -> Path:
    """Return the base Python of this environment, which lacks its packages."""
    return Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")


def _path(kind: str) -> str:
    return f"master.{kind}" if kind == "Master" else kind


def _kill(daemon: Daemon) -> None:
    if daemon.process.poll() is None:
        os.killpg(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()
