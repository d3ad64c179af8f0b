"""The demo: real flights, ingested exactly once although the ingester is killed in between."""

from __future__ import annotations

from pathlib import Path


def run_demo(folder: Path, *, engine: str = "spark") -> None:
    """Run the demo in ``folder``, and print its progress on standard output.

    Raises:
        UsageError: a package is missing, or the folder holds other files.
        DemoFailed: a check failed.
    """
    import asyncio

    from tidelog.core.clock import SystemClock
    from tidelog.demo.run import KILL_TICKS, Demo

    least, most = KILL_TICKS
    kill_at = least + int(SystemClock().uniform() * (most - least + 1))

    def say(line: str) -> None:
        print(line, flush=True)

    asyncio.run(Demo(folder=folder, engine=engine, say=say, kill_at=kill_at).run())
