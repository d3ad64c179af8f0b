"""``tidelog demo``: the main job, end to end, on real flights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="The working directory. An earlier demo in it is deleted."
        ),
    ] = Path("demo-data"),
    engine: Annotated[
        str, typer.Option(metavar="spark|local", help="local works without Java.")
    ] = "spark",
) -> None:
    """Ingest real flights, kill the ingester, and check the result.

    The demo resumes the killed ingester, and compares the rows read with the data itself.
    """
    from tidelog.cli.engine_choice import check_engine
    from tidelog.demo import run_demo
    from tidelog.errors import UsageError

    # A wrong option must fail before the demo deletes the earlier one.
    if engine not in ("spark", "local"):
        raise UsageError(f"--engine must be spark or local, not {engine!r}")
    check_engine(engine, master=None, conf=())

    run_demo(folder, engine=engine)
