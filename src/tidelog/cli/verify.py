"""``tidelog verify``: the end-to-end check of logs at a location."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.command import AsJson, location_url
from tidelog.cli.output import bytes_text, choose_format, count_text, print_fields, print_json, say
from tidelog.errors import TidelogError, UsageError

if TYPE_CHECKING:
    from tidelog.verify.figures import Figures
    from tidelog.verify.run import Report, Settings

SECONDS: Final = 20.0
TELL_SECONDS: Final = 60.0  # Between progress lines without a terminal; on a terminal, a second.


class VerifyFailed(TidelogError):
    """The records read from a log differ from the records appended to it."""

    kind = "corruption"


def verify(
    context: typer.Context,
    *,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help=f"How long to write; {SECONDS:g} by default.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(metavar="D", help="How long to write, in days.")
    ] = None,
    writers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="The number of writers. They fence each other in turn.",
        ),
    ] = 2,
    readers: Annotated[
        int, typer.Option(metavar="N", help="The number of readers that follow the log.")
    ] = 2,
    streams: Annotated[
        int,
        typer.Option(
            metavar="N", help="The number of record sequences; the first get the most records."
        ),
    ] = 64,
    protocol: Annotated[
        str, typer.Option(metavar="slot|manifest", help="The protocol of the log.")
    ] = "slot",
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The seed of the sequences; by default random. With the seed of an earlier run "
            "with --keep, the command continues with the log of that run.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the logs, for a later run with the same seed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Append, read and collect concurrently, and check the records read.

    The command creates a log of its own, and the location if it does not exist (memory:// is
    enough). Ctrl-C ends the run early, with its report. Exit status: 1 if a check fails; the log is
    then kept.
    """
    from tidelog.verify.run import Settings

    if seconds is not None and days is not None:
        raise UsageError("--seconds and --days exclude each other: give one")
    settings = Settings(
        seed=_new_seed() if seed is None else seed,
        seconds=days * 86_400 if days is not None else SECONDS if seconds is None else seconds,
        writers=writers,
        readers=readers,
        streams=streams,
        protocol=protocol,
    )
    url = location_url(context, is_lasting=False)
    report = asyncio.run(_verify(url, settings, keep=keep))
    if choose_format(None, as_json=as_json) == "json":
        print_json(report.to_dict())
    else:
        print_fields(fields_of(report))
    if not report.is_clean:
        raise VerifyFailed(
            f"the records read from the log {settings.log!r} differ from those appended: the log "
            f"was kept; its seed is {settings.seed}"
        )


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
        found = figures.to_dict()
        say(
            f"{found['seconds']:.0f} of {settings.seconds:.0f} s: "
            f"{count_text(found['records'], 'record')} appended, {found['records_read']:,} read, "
            f"{count_text(found['collections'], 'collection')}, "
            f"{count_text(found['takeovers'], 'takeover')}, lag {_lag_text(found)}"
        )

    return tell


def fields_of(report: Report) -> list[tuple[str, str | list[str]]]:
    """Return the fields that report a run to people."""
    found = report.to_dict()
    appended = [
        f"{count_text(found['records'], 'record')} in {count_text(found['appends'], 'append')}",
        f"{bytes_text(found['bytes'])} in {found['seconds']:g} s",
        f"{found['records_per_second']:,} records/s",
    ]
    read = [
        f"{count_text(found['records_read'], 'record')} in {count_text(found['reads'], 'object')}",
        f"{count_text(found['replays'], 'replay')} from a cut",
    ]
    meanwhile = [
        count_text(found["takeovers"], "takeover"),
        f"{count_text(found['collections'], 'collection')} of {found['collected']:,} objects",
        f"{found['refused']:,} refused and {found['unknown']:,} unknown outcomes",
    ]
    fields: list[tuple[str, str | list[str]]] = [
        ("log", f"{found['log']}, {found['protocol']}, {count_text(found['streams'], 'stream')}"),
        ("appended", ", ".join(appended)),
        ("read", ", ".join(read)),
        ("lag", _lag_text(found)),
        ("concurrently", ", ".join(meanwhile)),
    ]
    if found["resumed_at"] is not None:
        told = f"an earlier run was replayed from position {found['resumed_at']:,}"
        fields.append(("resumed", told))
    fields.append(("wrong", _wrong_lines(found) or "nothing"))
    return fields


def _wrong_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{problem['path']}: {problem['why']}" for problem in found["problems"]]
    if (mismatch := found["mismatch"]) is not None:
        lines += [f"{name}: {value}" for name, value in mismatch.items() if value is not None]
    return lines


def _lag_text(found: dict[str, Any]) -> str:
    if found["lag_p50_us"] is None:
        return "nothing read yet"
    median, most = found["lag_p50_us"] / 1e3, found["lag_p99_us"] / 1e3
    return f"{median:.1f} ms at the median, {most:.1f} ms at p99"


def _new_seed() -> int:
    from tidelog.core.clock import SystemClock

    return int(SystemClock().unique()[:8], 16)
