"""Commands that run in real processes, are killed at random moments, and start again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kit.processes import end_with_parent

SPAN_S: Final = 3.0
SUCCEEDED: Final = "read another rendition since"


@dataclass(slots=True)
class Role:
    """One command; ``once`` ends with success, and the others run until they are killed."""

    process: subprocess.Popen[str]
    once: bool
    dies_at: float
    said: Path

    @property
    def is_done(self) -> bool:
        return self.once and self.process.poll() == 0


@dataclass(slots=True)
class Roles:
    """The commands of a location by name, all of which run at the same time.

    A command whose output has the text ``forgives`` may end by itself.
    """

    url: str
    folder: Path
    dice: random.Random
    forgives: str = SUCCEEDED
    running: dict[str, Role] = field(default_factory=dict)
    kills: int = 0
    faults: list[str] = field(default_factory=list)

    def start(self, name: str, *command: str, once: bool = False) -> None:
        """Start a command, or start it again."""
        said = self.folder / f"{name}.txt"
        with said.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli.main", "--location", self.url, *command],
                stdout=out,
                stderr=out,
                text=True,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock
            )
        dies_at = time.monotonic() + self.dice.uniform(0, SPAN_S)
        self.running[name] = Role(process, once, dies_at, said)

    def tend(self, kills_max: int) -> None:
        """Kill the commands that are due, and restart the killed and the stopped ones."""
        for name, role in list(self.running.items()):
            command = role.process.args
            assert isinstance(command, list)
            ended = role.process.poll()
            if role.is_done:
                continue
            if ended is None and (self.kills >= kills_max or time.monotonic() < role.dies_at):
                continue
            if ended is None:
                self.kills += 1
                _kill(role)
            elif self.forgives not in role.said.read_text():
                self.faults.append(f"{name} ended with {ended}: {role.said.read_text()[-2_000:]}")
            self.start(name, *map(str, command[5:]), once=role.once)

    def is_done(self, name: str) -> bool:
        return self.running[name].is_done

    def end(self, *names: str) -> None:
        """Kill some commands, by default all."""
        for name in names or list(self.running):
            role = self.running.pop(name, None)
            if role is not None:
                _kill(role)


def _kill(role: Role) -> None:
    with suppress(ProcessLookupError):
        os.killpg(role.process.pid, signal.SIGKILL)
    role.process.wait()
