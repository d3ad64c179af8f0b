"""``tidelog verify`` and ``tidelog demo``: trials of logs and of collections, end to end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, location_url, refuse_write
from tidelog.cli.engine import Conf, LateSession, Master, check_engine, parse_conf
from tidelog.cli.output import (
    Field,
    bytes_text,
    count_text,
    say,
    show,
)
from tidelog.errors import TidelogError, UsageError

if TYPE_CHECKING:
    from tidelog.verify.figures import Figures
    from tidelog.verify.run import Report, Settings

SECONDS: Final = 20.0
TELL_SECONDS: Final = 60.0  # Between progress lines without a terminal; on a terminal, a second.


Seconds = Annotated[
    float | None, typer.Option(metavar="S", help=f"How long to write; {SECONDS:g} by default.")
]
Days = Annotated[float | None, typer.Option(metavar="D", help="How long to write, in days.")]
Writers = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="The number of writers. They fence each other in turn.",
    ),
]
Readers = Annotated[
    int, typer.Option(metavar="N", help="The number of readers that follow the log.")
]
Streams = Annotated[
    int,
    typer.Option(
        metavar="N", help="The number of streams of records; the first get the most records."
    ),
]
Protocol = Annotated[str, typer.Option(metavar="slot|manifest", help="The protocol of the log.")]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="The seed of the sequences; by default random. With the seed of an earlier run "
        "with --keep, the command continues with the log of that run.",
    ),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Leave the logs, for a later run with the same seed.")
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="auto|local|spark",
        help="spark: tasks on the machines of a cluster verify a log each. auto: spark with "
        "--master or --conf, else local.",
    ),
]
Tasks = Annotated[
    int | None,
    typer.Option(metavar="N", help="With Spark, the number of tasks; by default its cores."),
]


class VerifyFailed(TidelogError):
    """The records read from a log differ from the records appended to it."""

    kind = "corruption"


def verify(
    context: typer.Context,
    *,
    seconds: Seconds = None,
    days: Days = None,
    writers: Writers = 2,
    readers: Readers = 2,
    streams: Streams = 64,
    protocol: Protocol = "slot",
    seed: Seed = None,
    keep: Keep = False,
    engine: Engine = "auto",
    tasks: Tasks = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Append, read and collect concurrently, and check the records read.

    The command creates a log of its own, and the location if it does not exist (memory:// is
    enough, but not for Spark). With Spark, each task has a log of its own. Ctrl-C ends the run
    early, with its report; on Spark, without one. Exit status: 1 if a check fails; the log is then
    kept.
    """
    from tidelog.verify.run import Settings, new_seed

    if seconds is not None and days is not None:
        raise UsageError("--seconds and --days exclude each other: pass one")
    settings = Settings(
        seed=new_seed() if seed is None else seed,
        seconds=days * 86_400 if days is not None else SECONDS if seconds is None else seconds,
        writers=writers,
        readers=readers,
        streams=streams,
        protocol=protocol,
    )
    on_spark = check_engine(engine, master=master, conf=conf or []) == "spark"
    if tasks is not None and not on_spark:
        raise UsageError("--tasks is for Spark: add --engine spark, or remove --tasks")
    url = location_url(context, is_lasting=False)
    if on_spark:
        session = LateSession(master=master, conf=parse_conf(conf or []))
        reports = asyncio.run(_verify_on_spark(url, session, settings, tasks=tasks, keep=keep))
    else:
        reports = [asyncio.run(_verify(url, settings, keep=keep))]
    for report in reports:
        show(report.to_dict(), fields_of(report), as_json=as_json)
    wrong = [report.settings for report in reports if not report.is_clean]
    if wrong:
        raise VerifyFailed(
            f"the records read from the log {wrong[0].log!r} differ from those appended: the log "
            f"was kept; its seed is {wrong[0].seed}"
        )


async def _verify_on_spark(
    url: str, session: LateSession, settings: Settings, *, tasks: int | None, keep: bool
) -> list[Report]:
    from tidelog.core.clock import SystemClock
    from tidelog.location import open_location
    from tidelog.spark.log_verify import check_tasks, verify
    from tidelog.spark.place import url_for_executors

    check_tasks(tasks, settings)
    location = await open_location(url, create=True)
    url_for_executors(location.executor_url, location.store)  # Fail before Spark starts.
    async with session.started() as spark:
        work = partial(verify, spark, url, settings, tasks=tasks, keep=keep)
        return await SystemClock().offload(work)


async def _verify(url: str, settings: Settings, *, keep: bool) -> Report:
    from tidelog.location import open_location
    from tidelog.location.location import writer_name
    from tidelog.verify.run import Verification

    location = await open_location(url, create=True)
    verification = Verification(
        store=location.store, clock=location.clock, writer=writer_name(), settings=settings
    )
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        # Threads and some systems have no signal handlers. Then Ctrl-C ends it without a report.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(each, verification.stopping.set)
    return await verification.run(keep=keep, tell=_teller(settings))


def _teller(settings: Settings) -> Callable[[Figures], None]:
    watched = sys.stderr.isatty()
    step = 1.0 if watched else TELL_SECONDS
    due = step

    def tell(figures: Figures) -> None:
        nonlocal due
        if figures.seconds < due:
            return
        due = figures.seconds + step
        say(
            f"{figures.seconds:.0f} of {settings.seconds:.0f} s: "
            f"{count_text(figures.records, 'record')} appended, {figures.records_read:,} read, "
            f"{count_text(figures.collections, 'collection')}, "
            f"{count_text(figures.takeovers, 'takeover')}, lag {_lag_text(figures)}"
        )

    return tell


def fields_of(report: Report) -> list[Field]:
    """Return the fields that report a run to people."""
    found, settings = report.figures, report.settings
    rate = found.records / found.seconds if found.seconds else 0.0
    appended = [
        f"{count_text(found.records, 'record')} in {count_text(found.appends, 'append')}",
        f"{bytes_text(found.bytes)} in {round(found.seconds, 1):g} s",
        f"{round(rate):,} records/s",
    ]
    read = [
        f"{count_text(found.records_read, 'record')} in {count_text(found.reads, 'object')}",
        f"{count_text(found.replays, 'replay')} from a cut",
    ]
    others = [
        count_text(found.takeovers, "takeover"),
        f"{count_text(found.collections, 'collection')} of {found.collected:,} objects",
        f"{found.refused:,} refused and {found.unknown:,} unknown outcomes",
    ]
    fields: list[Field] = [
        ("log", f"{settings.log}, {settings.protocol}, {count_text(settings.streams, 'stream')}"),
        ("appended", ", ".join(appended)),
        ("read", ", ".join(read)),
        ("lag", _lag_text(found)),
        ("concurrently", ", ".join(others)),
    ]
    if found.resumed_at is not None:
        told = f"an earlier run was replayed from position {found.resumed_at:,}"
        fields.append(("resumed", told))
    fields.append(("wrong", _wrong_lines(report) or "nothing"))
    return fields


def _wrong_lines(report: Report) -> list[str]:
    lines = [f"{problem['path']}: {problem['why']}" for problem in report.problems]
    if report.mismatch is not None:
        named = report.mismatch.to_dict().items()
        lines += [f"{name}: {value}" for name, value in named if value is not None]
    return lines


def _lag_text(found: Figures) -> str:
    median_us, most_us = found.lags.quantile_us(0.5), found.lags.quantile_us(0.99)
    if median_us is None or most_us is None:
        return "nothing read yet"
    return f"{median_us / 1e3:.1f} ms at the median, {most_us / 1e3:.1f} ms at p99"


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
    from tidelog.demo import run_demo

    refuse_write("demo")
    # A wrong option must fail before the demo deletes the earlier one.
    if engine not in ("spark", "local"):
        raise UsageError(f"--engine must be spark or local, not {engine!r}")
    check_engine(engine, master=None, conf=())

    run_demo(folder, engine=engine)
