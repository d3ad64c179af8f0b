"""A server in a process of its own, on loopback, that tests start, kill and start again."""

from __future__ import annotations

import abc
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Final, Self

from kit.processes import end_with_parent

_STOP_S: Final = 30.0


class ServerProcess(abc.ABC):
    """A context manager: the server runs inside ``with``, on one port, which it keeps.

    A subclass returns its command and tries it. ``directory`` holds its data and its log.
    """

    name: ClassVar[str]
    ready_s: ClassVar[float] = 120.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    owner: int | None = None  # The user that the process runs as, if it is another one.

    def __init__(self, directory: Path, *, port: int | None = None, outlives: bool = False) -> None:
        """Choose a free port, unless ``port`` is given.

        Args:
            directory: is made by the first start.
            port: of the server, on 127.0.0.1.
            outlives: lets the process run on. Otherwise the kernel kills it when the thread that
                started it ends, also by kill -9.
        """
        self.directory = directory
        self.port = port or free_ports(1)[0]
        self.log = directory / "server.log"
        self._outlives = outlives
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self.spawn()
        self.await_ready()

    def spawn(self) -> None:
        """Start the server, and do not wait."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        bound = sys.platform == "linux" and not self._outlives
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                user=self.owner,
                group=self.owner,
                env=self.environ(),
                start_new_session=True,
                # One system call without a lock, so it is safe with other threads.
                preexec_fn=end_with_parent if bound else None,  # noqa: PLW1509
            )

    def await_ready(self, seconds: float | None = None) -> None:
        """Wait until the server answers.

        Raises:
            RuntimeError: the server ended, or ``seconds`` passed (by default `ready_s`); the
                message has the end of its log.
        """
        deadline = time.monotonic() + (self.ready_s if seconds is None else seconds)
        while True:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at once:\n{self._last_lines()}")
            try:
                self.check()
                return
            except Exception as error:
                if time.monotonic() > deadline:
                    self.kill()
                    told = f"{self.name} is not ready in time:\n{self._last_lines()}"
                    raise RuntimeError(told) from error
            time.sleep(0.05)

    def stop(self) -> None:
        """Terminate the server, as an operator would."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Kill the server with -9; its data stays."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the process, so that connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server; a subclass may remove its data too."""
        self.kill()

    def prepare(self) -> None:  # noqa: B027 - most need none
        """Write what the command reads; called before each start."""

    @abc.abstractmethod
    def command(self) -> list[str]: ...

    def environ(self) -> dict[str, str] | None:
        """Return the environment of the process; None is that of this one."""
        return None

    @abc.abstractmethod
    def check(self) -> None:
        """Raise an exception unless the server answers."""

    def _end(self, sign: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, sign)
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def java(directory: Path, *, heap_mb: int) -> list[str]:
    """Return the beginning of a command that runs Java, for a quick start and little memory."""
    # The compiler's first tier and the serial collector start soonest.
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Xmx{heap_mb}m"]
    # Native libraries are unpacked there, and stay after kill -9.
    scratch = directory / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    return ["java", *options, f"-Djava.io.tmpdir={scratch}"]
