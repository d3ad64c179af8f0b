"""``tidelog log collect``, ``drop`` and ``rebuild``, and the copies of a log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidelog.cli.command import AsJson, LogName, Yes, ask_first, location_url, on_location
from tidelog.cli.log.options import (
    GRACE,
    Grace,
    NewLog,
    SourceLog,
    Start,
    check_log,
    check_place,
    check_protocol,
    check_start,
    grace_us_of,
    on_log,
    pace_of,
    range_text,
    show_made,
)
from tidelog.cli.output import count_text, say, show
from tidelog.cli.records import time_us_of
from tidelog.errors import NoSuchLog, UsageError
from tidelog.store.listing import first_entry

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.admin.destroy import DropReport
    from tidelog.wal.describe import LogInfo
    from tidelog.wal.gc.collector import CollectReport
    from tidelog.wal.gc.orphans import OrphanReport
    from tidelog.wal.log import Log

T = TypeVar("T")

KeepFromTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Keep the first record of this time or later, and all after it: ISO 8601, or "
        "microseconds since 1970.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedInfo:
    """The result of a collection; ``held_at`` is the position of the lowest cursor."""

    log: str
    records: int
    collected: CollectReport
    held_at: int | None
    swept: OrphanReport | None

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        swept = {} if self.swept is None else {"swept": self.swept.to_dict()}
        return {
            "log": self.log,
            "records": self.records,
            **self.collected.to_dict(),
            "held_at": self.held_at,
            **swept,
        }


DeletesPerSecond = Annotated[
    float | None,
    typer.Option(metavar="N", help="Delete at most N objects per second. The default is no limit."),
]
Sweep = Annotated[
    bool,
    typer.Option("--sweep", help="Also delete objects that killed writers and collectors left."),
]


def collect(
    context: typer.Context,
    name: LogName,
    *,
    keep_from: Annotated[
        int | None, typer.Option(metavar="POSITION", help="Keep this position and all later ones.")
    ] = None,
    keep_records: Annotated[int, typer.Option(metavar="N", help="Keep the newest N records.")] = 0,
    keep_from_time: KeepFromTime = None,
    share_max: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Fail if more than this share of the log would be deleted (0 to 1).",
        ),
    ] = 0.9,
    force: Annotated[
        bool, typer.Option("--force", help="Delete without a limit on the share.")
    ] = False,
    grace: Grace = GRACE,
    deletes_per_second: DeletesPerSecond = None,
    sweep: Sweep = False,
    as_json: AsJson = False,
) -> None:
    """Erase the records before a log's lowest cursor.

    Without a cursor, the command erases nothing. The options --keep-... keep further records before
    the cursor; they never erase one after it. The command deletes whole objects, so a few records
    before the cursor may stay. The newest object always stays, and so do records that pins hold.
    """
    grace_us = grace_us_of(grace)
    if keep_from is not None and keep_from < 1:
        raise UsageError(f"--keep-from {keep_from} is not a position: positions begin at 1")
    if keep_records < 0:
        raise UsageError(f"--keep-records must be 0 or more, not {keep_records}")
    if not 0 < share_max <= 1:
        raise UsageError(f"--share-max must be above 0 and at most 1, not {share_max:g}")
    pace = pace_of(deletes_per_second)
    time_us = None if keep_from_time is None else time_us_of(keep_from_time, "--keep-from-time")

    async def work(log: Log) -> CollectedInfo:
        from tidelog.wal.gc.plan import Keep

        before = await log.bounds()
        starts = [] if keep_from is None else [keep_from]
        if time_us is not None:
            starts.append(await log.position_at(time_us))
        keep = Keep(start=min(starts, default=None), records=keep_records, share_max=share_max)
        done = await log.collect(keep=keep, grace_us=grace_us, pace=pace, force=force)
        held = (await log.cursors()).cursors.get(done.held_by) if done.held_by else None
        return CollectedInfo(
            log=name,
            records=0 if done.oldest is None else done.oldest - before.oldest,
            collected=done,
            held_at=None if held is None else held.position,
            swept=await log.sweep(grace_us=grace_us, pace=pace) if sweep else None,
        )

    found = on_log(context, name, lambda log: with_patience(work(log), grace_us))
    show(found.to_dict(), "\n".join(_collected_lines(found)), as_json=as_json)


def _collected_lines(found: CollectedInfo) -> list[str]:
    """Return the lines that report a collection to people."""
    done, lines = found.collected, list[str]()
    if done.fragments:
        objects = count_text(done.fragments, "object")
        lines.append(
            f"{count_text(found.records, 'record')} in {objects} collected; the log now begins "
            f"at {done.oldest:,}."
        )
    if done.held_by is None:
        lines.append(
            "Nothing was collected: the log has no cursor. Create one: "
            f"tidelog log cursor create {found.log} CURSOR --at POSITION"
        )
    elif not done.fragments:
        lines.append(
            "Nothing was collected: no whole object is before the kept records. The newest object "
            "always stays."
        )
    if found.held_at is not None:
        lines.append(f"The cursor {done.held_by!r} holds the records since {found.held_at:,}.")
    if done.pinned:
        lines.append(f"{count_text(done.pinned, 'object')} kept by pins.")
    if done.discarded:
        lines.append(f"{count_text(done.discarded, 'plan')} of other collectors removed.")
    lines += [f"{key} is in the folder of cursors, but is not a cursor." for key in done.foreign]
    lines += [
        f"{key} was planned for deletion, but the log names it, so it was kept: check the log "
        f"with tidelog log scrub {found.log}"
        for key in done.spared
    ]
    return lines if found.swept is None else lines + _swept_lines(found.swept)


def _swept_lines(swept: OrphanReport) -> list[str]:
    told = [
        count_text(len(swept.deleted), "object") + " swept",
        count_text(len(swept.unproven), "object") + " kept that may still become part of the log",
        count_text(len(swept.foreign), "object") + " not of a log",
    ]
    foreign = [f"{key} does not belong to a log, and was not deleted." for key in swept.foreign]
    return ["; ".join(told) + ".", *foreign]


async def with_patience(work: Awaitable[T], grace_us: int) -> T:
    """Await work that waits for readers; after a second, a message on a terminal explains it."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=1.0)
        if not done and grace_us > 1_000_000 and sys.stderr.isatty():
            say(f"Waiting {grace_us / 1e6:g} s for running reads before deletions (--grace) ...")
        return await task
    finally:
        task.cancel()


def drop(
    context: typer.Context,
    name: LogName,
    *,
    yes: Yes = False,
    grace: Grace = GRACE,
    as_json: AsJson = False,
) -> None:
    """Drop a log with all records, cursors and pins; a second run finishes an interrupted one.

    The name is never reused, so a stale client cannot mistake a new log for this one.
    """
    grace_us = grace_us_of(grace)
    check_log(name)
    if not yes:
        ask_first(
            lambda: on_location(context, lambda at: _question(at, name)),
            deed="drop the log",
        )

    async def work(location: Location) -> DropReport:
        return await with_patience(location.logs.drop(name, grace_us=grace_us), grace_us)

    found = on_location(context, work)
    left = f", {count_text(found.kept, 'object')} kept" if found.kept else ""
    lines = [f"Dropped the log {name!r}: {count_text(found.deleted, 'object')} deleted{left}."]
    lines += [f"{key} does not belong to a log, and was not deleted." for key in found.foreign]
    show({"log": name, **found.to_dict()}, "\n".join(lines), as_json=as_json)


async def _question(location: Location, name: str) -> str:
    try:
        log = await location.log(name)
    except NoSuchLog:
        # An interrupted drop leaves objects of a log that can no longer be opened.
        if await first_entry(location.logs.within(name), "") is None:
            raise
        return f"The log {name!r} is dropped, but some objects are left. Delete them?"
    return f"Drop the log {name!r} ({range_text(await log.describe())}) for good?"


def fork(
    context: typer.Context,
    source: SourceLog,
    name: NewLog,
    *,
    start: Start = 0,
    as_json: AsJson = False,
) -> None:
    """Create a log that begins with the records of SOURCE, and shares its objects.

    Nothing is copied. Later appends to one do not change the other. SOURCE cannot be dropped
    before its forks. NAME has letters, digits and _ only.
    """
    from tidelog.wal.format.pin import check_pin_name

    check_start(start)
    check_log(name)
    check_pin_name(name, of="fork")  # A pin with the fork's name holds the shared records.

    made = _made(context, lambda location: location.logs.fork(source, name, start=start))
    show_made(made, f"a fork of {source!r}", as_json=as_json)


def copy(
    context: typer.Context,
    source: SourceLog,
    name: NewLog,
    *,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="slot|manifest",
            help="The protocol of the copy. The default is the protocol of SOURCE.",
        ),
    ] = None,
    start: Start = 0,
    as_json: AsJson = False,
) -> None:
    """Copy a log, with the same protocol or the other one.

    The records keep their positions and times. Hold SOURCE by a cursor or a pin if another process
    may collect it during the copy.
    """
    check_start(start)
    check_log(name)
    check_protocol(protocol)

    made = _made(context, lambda at: at.logs.copy(source, name, protocol=protocol, start=start))
    show_made(made, f"a copy of {source!r}", as_json=as_json)


def adopt(
    context: typer.Context,
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="The place of a log that wal3 wrote: a path, file://, s3://, gs://, az://.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The name of the copy. The default is the last part of PLACE."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Copy a log that Chroma's wal3 wrote, and its cursors, into the location as the log NAME.

    The log at PLACE does not change.
    """
    called = _name_of(place) if name is None else name
    check_log(called)
    check_place(place)
    location_url(context)
    # Read the source first, so that a log that cannot be adopted creates no location.
    asyncio.run(_check_source(place))
    made = _made(context, lambda location: location.logs.adopt(place, called), create=True)
    show_made(made, "adopted", as_json=as_json)


async def _check_source(place: str) -> None:
    from tidelog.core.clock import SystemClock
    from tidelog.store.urls import open_store
    from tidelog.wal.read.head import load_head, refuse_slots

    refuse_slots((await load_head(open_store(place, clock=SystemClock()))).manifest)


def _name_of(place: str) -> str:
    from tidelog.store.urls import without_secrets

    name = without_secrets(place).rstrip("/").rpartition("/")[2]
    if not name or name.endswith(":"):
        raise UsageError(f"{place} does not end in a name: write NAME after PLACE")
    return name


def export(
    context: typer.Context,
    name: LogName,
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="The place of the exported log: a path, file://, s3://, gs://, az://.",
        ),
    ],
    *,
    start: Start = 0,
    as_json: AsJson = False,
) -> None:
    """Copy the log NAME, of either protocol, to PLACE in the manifest protocol, for Chroma's wal3.

    NAME does not change. A log with streams cannot be exported, because wal3 has none.
    """
    from tidelog.store.urls import without_secrets

    check_start(start)
    check_log(name)
    check_place(place)
    # A URL may hold credentials, which must not be shown; a path may hold bytes that are no text.
    shown = without_secrets(place).encode(errors="backslashreplace").decode()

    async def work(location: Location) -> LogInfo:
        from tidelog.store.urls import open_store
        from tidelog.wal.opening import open_log

        await location.logs.export(name, place, start=start)
        # Read the written log back, so that the bounds shown are those of the stored copy.
        store = open_store(place, clock=location.clock)
        made = await open_log(store, name=name, clock=location.clock, writer="")
        return await made.describe()

    found = on_location(context, work)
    show(
        {**found.to_dict(), "to": shown},
        f"Exported the log {name!r} to {shown}, in the manifest protocol: {range_text(found)}.",
        as_json=as_json,
    )


def rebuild(
    context: typer.Context,
    name: LogName,
    *,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="The first position of the log. Earlier ones count as collected.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a lost manifest of a log again, from the objects of the log.

    The manifest must be missing: move a damaged one away first. Cursors and pins stay. The object
    gc/GARBAGE, the plan of the last 'log collect', has the first position of the log. If it is lost
    as well, pass in --from the first position after which no object is missing.
    """
    check_log(name)
    if start is not None and start < 1:
        raise UsageError(f"--from {start} is not a position: positions begin at 1")

    made = _made(context, lambda location: location.logs.rebuild(name, start=start))
    show_made(made, "rebuilt", as_json=as_json)
    say(f"Check it with: tidelog log scrub {name}")


def _made(
    context: typer.Context, make: Callable[[Location], Awaitable[Log]], *, create: bool = False
) -> LogInfo:
    """Make a log, and return its description."""

    async def work(location: Location) -> LogInfo:
        return await (await make(location)).describe()

    return on_location(context, work, create=create)
