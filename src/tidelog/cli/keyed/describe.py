"""``tidelog keyed list``, ``describe``, ``segments``, ``compact``, ``collect`` and ``scrub``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, Damaged, on_location
from tidelog.cli.engine import Conf, LateSession, Master, check_engine, parse_conf
from tidelog.cli.keyed.arguments import (
    From,
    KeyedName,
    To,
    check_keyed,
    check_sequence_range,
    closing,
    on_reader,
    on_writer,
)
from tidelog.cli.keyed.settings import retention_text, sealing_text
from tidelog.cli.output import (
    Column,
    Field,
    bytes_text,
    count_text,
    say,
    show,
    show_list,
    time_text,
    write_text,
)
from tidelog.core.clock import run_all
from tidelog.errors import NoSuchLog

if TYPE_CHECKING:
    from tidelog.keyed.log import KeyedLog
    from tidelog.keyed.maintenance.scrub import KeyedScrubReport
    from tidelog.keyed.values import CheckpointInfo, KeyedInfo, Segment
    from tidelog.location import Location


def list_keyed(context: typer.Context, as_json: AsJson = False) -> None:
    """List the keyed logs and their contents."""
    columns: tuple[Column[KeyedInfo], ...] = (
        Column("name", lambda one: one.name),
        Column("oldest", lambda one: f"{one.oldest:,}", right=True),
        Column("next", lambda one: f"{one.next_sequence:,}", right=True),
        Column("segments", lambda one: f"{one.segments:,}", right=True),
        Column("runs", lambda one: f"{one.runs:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("loose", lambda one: f"{one.loose_fragments:,}", right=True),
    )
    show_list(
        on_location(context, _described),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet="No keyed logs yet. Create one: tidelog keyed create NAME",
    )


async def _described(location: Location) -> list[KeyedInfo]:
    from tidelog.core.lookahead import AT_ONCE_MAX

    work = [partial(_one, location, name) for name in await location.keyed.list()]
    return [one for one in await run_all(work, at_once=AT_ONCE_MAX) if one is not None]


async def _one(location: Location, name: str) -> KeyedInfo | None:
    """Return a log's description; None if another process dropped it concurrently."""
    try:
        async with closing(await location.keyed.reader(name)) as log:
            return await log.describe()
    except NoSuchLog:
        return None


def describe(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Show a keyed log's bounds, settings, checkpoints, runs and loose (uncompacted) fragments."""
    found = on_reader(context, name, lambda log: log.describe())
    show(asdict(found), _fields(found), as_json=as_json)


def _fields(found: KeyedInfo) -> list[Field]:
    runs = f"{count_text(found.runs, 'run')} of {count_text(found.records_in_runs, 'record')}"
    return [
        ("name", found.name),
        ("sequences", f"from {found.oldest:,}; the next is {found.next_sequence:,}"),
        ("segments", f"{found.segments:,}; sealed {sealing_text(found.sealing)}"),
        ("compacted", f"up to {found.compacted:,}, {runs}, {bytes_text(found.bytes)}"),
        ("loose", count_text(found.loose_fragments, "fragment")),
        ("keeps", retention_text(found.retention)),
        ("checkpoints", [_line(one) for one in found.checkpoints]),
    ]


def _line(one: CheckpointInfo) -> str:
    told = f"{one.name}: {one.oldest:,} to {one.next_sequence - 1:,}"
    return f"{told}, for the fork {one.fork}" if one.fork else told


def segments(
    context: typer.Context,
    name: KeyedName,
    *,
    start: From = 0,
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """List the segments, in order.

    The last one is the active segment, unless it is empty. Counts leave out records that are not
    compacted yet: 'tidelog keyed compact --full' compacts them.
    """
    check_sequence_range(start, to)
    columns: tuple[Column[Segment], ...] = (
        Column("id", lambda one: str(one.id), right=True),
        Column("from", lambda one: f"{one.start:,}", right=True),
        Column("to", lambda one: "" if one.limit is None else f"{one.limit - 1:,}", right=True),
        Column("records", lambda one: f"{one.records:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("runs", lambda one: f"{one.runs:,}", right=True),
        Column("state", _state),
        Column("sealed", lambda one: _time(one.sealed_us), whole=True),
    )
    show_list(
        on_reader(context, name, lambda log: log.segments(start, to)),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"The keyed log {name!r} has no segments in this range.",
    )


def _state(one: Segment) -> str:
    if one.limit is None:
        return "active"
    return "compacted" if one.is_compacted else "sealed"


def _time(sealed_us: int | None) -> str:
    return "" if sealed_us is None else time_text(sealed_us)


def compact(
    context: typer.Context,
    name: KeyedName,
    *,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Move all records. By default, a few small fragments of the active segment wait "
            "for more.",
        ),
    ] = False,
    everything: Annotated[bool, typer.Option("--everything", hidden=True)] = False,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|local|spark",
            help="spark: merge large runs in Spark tasks. local: merge all runs in this process. "
            "auto: spark with --master or --conf, else local.",
        ),
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Move records from the log into sorted runs.

    Each sealed segment becomes one run. Any process may run the command, also while another process
    writes.
    """
    check_keyed(name)
    settings = parse_conf(conf or [])
    on_spark = check_engine(engine, master=master, conf=conf or []) == "spark"

    async def work(log: KeyedLog) -> int:
        if not on_spark:
            return await log.compact(full=full or everything)
        async with LateSession(master=master, conf=settings).started() as spark:
            return await log.compact(full=full or everything, spark=spark)

    found = on_writer(context, name, work)
    show(
        {"log": name, "runs": found},
        f"{count_text(found, 'run')} written" if found else "Nothing to compact.",
        as_json=as_json,
    )


def collect(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Delete the objects that no state and no checkpoint names.

    These are compacted fragments, merged runs and retired segments, an hour after their
    replacement.
    """
    found = on_writer(context, name, lambda log: log.collect())
    show({"log": name, "deleted": found}, f"{count_text(found, 'object')} deleted", as_json=as_json)


def scrub(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Read all stored data, and check it.

    The command reads checkpoints as well, and reports every problem. Exit status: 1 if it finds
    one.
    """
    found = on_writer(context, name, lambda log: log.scrub())
    fields = {"log": name, **scrubbed_object(found)}
    show(fields, partial(tell_scrubbed, found), as_json=as_json)
    if not found.is_clean:
        raise Damaged(f"the keyed log {name!r} is damaged: restore the objects named above")


def scrubbed_object(found: KeyedScrubReport) -> dict[str, object]:
    """Return the JSON object of a scrub."""
    return {**asdict(found), "is_clean": found.is_clean}


def tell_scrubbed(found: KeyedScrubReport, of: str = "", *, quiet: bool = False) -> None:
    """Write the result of a scrub for people; each line begins with ``of``.

    With ``quiet``, an intact log gets no line.
    """
    if quiet and found.is_clean:
        return
    for problem in found.problems:
        write_text(f"{of}{problem}\n")
    read = count_text(found.records, "record"), count_text(found.runs, "run")
    say(
        f"{of}{read[0]} in {read[1]} read, {bytes_text(found.bytes)}, and "
        f"{count_text(found.wal_records, 'record')} in its log; "
        f"{count_text(len(found.problems), 'problem')}"
    )
