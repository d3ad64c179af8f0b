"""``tidelog log scrub``: read and check all stored data of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, location_url, on_location
from tidelog.cli.late_spark import check_installed, scrub_on_spark
from tidelog.cli.log.options import Start, check_range
from tidelog.cli.output import bytes_text, choose_format, count_text, print_json, say, write_text
from tidelog.errors import TidelogError, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.scrub.report import ScrubReport


class LogBroken(TidelogError):
    """A scrub found damaged or missing data."""

    kind = "corruption"


def scrub(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="POSITION", help="Stop before this position. The default is the end."
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Read and check records in Spark's executors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read all stored data, check it, and report every problem.

    With --from or --to, the command reads only that range. It then checks no cursors, and no
    objects that the log does not name.
    """
    check_range(start, limit)
    if spark:
        check_installed(instead="leave --spark out")
        if start or limit is not None:
            raise UsageError("Spark scrubs a whole log: leave --from and --to out, or --spark")

    async def work(location: Location) -> ScrubReport | None:
        log = await location.log(name)
        # Spark takes seconds to start, so a wrong name must fail here first.
        return None if spark else await log.scrub(start, limit=limit)

    found = on_location(context, work) or scrub_on_spark(location_url(context), name)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found.to_dict())
    else:
        _tell(found)
    if not found.is_clean:
        raise LogBroken(f"the log {name!r} is damaged: restore the objects named above")


def _tell(found: ScrubReport) -> None:
    for problem in found.problems:
        write_text(f"{problem.path}: {problem.why}\n")
    read = count_text(found.records, "record"), count_text(found.fragments, "object")
    say(
        f"{read[0]} in {read[1]} read, {bytes_text(found.bytes_read)}; "
        f"{count_text(len(found.problems), 'problem')}; "
        f"{count_text(len(found.unnamed), 'object')} that the log does not name"
    )
