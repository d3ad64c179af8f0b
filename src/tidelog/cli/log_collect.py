"""``tidelog log collect``: erase what no cursor needs, and say what is left and why."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location

T = TypeVar("T")

Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="How long those who still read have before anything is deleted.",
    ),
]
GRACE_SECONDS = 60.0


def collect(
    context: typer.Context,
    name: LogName,
    *,
    keep_from: Annotated[
        int | None, typer.Option(metavar="POSITION", help="Keep this one, and all after it.")
    ] = None,
    keep_records: Annotated[
        int, typer.Option(metavar="N", help="Keep the newest so many records.")
    ] = 0,
    share_max: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Refuse to erase more than this part of it at once."),
    ] = 0.9,
    force: Annotated[
        bool, typer.Option("--force", help="Erase whatever share the cursors allow.")
    ] = False,
    grace: Grace = GRACE_SECONDS,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Then delete what dead writers and collectors left behind."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Erase the records that lie before a log's lowest cursor.

    Whole objects go, so a few records before the cursor may stay. What pins hold stays readable.
    """
    grace_us = grace_us_of(grace)
    if keep_from is not None and keep_from < 1:
        raise UsageError(f"--keep-from {keep_from} is no position: they count from 1")
    if keep_records < 0:
        raise UsageError(f"--keep-records {keep_records} is no number of records")
    if not 0 < share_max <= 1:
        raise UsageError(f"--share-max {share_max:g} is no share: it is above 0, up to 1")

    async def work(location: Location) -> dict[str, Any]:
        from tidelog.wal.gc.plan import Keep

        log = await location.log(name)
        before = await log.bounds()
        keep = Keep(start=keep_from, records=keep_records, share_max=share_max)
        collected = await log.collect(keep=keep, grace_us=grace_us, force=force)
        found = {"log": name, "records": 0, **collected.to_dict(), "held_at": None}
        if collected.oldest is not None:
            found["records"] = collected.oldest - before.oldest
        if collected.held_by is not None:
            cursor = (await log.cursors()).cursors.get(collected.held_by)
            found["held_at"] = cursor.position if cursor else None
        if sweep:
            found["swept"] = (await log.sweep(grace_us=grace_us)).to_dict()
        return found

    found = on_location(context, lambda location: with_patience(work(location), grace))
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        for line in told_of(found):
            say(line)


def told_of(found: dict[str, Any]) -> list[str]:
    """Say what a collection came to, a line each."""
    name, lines = found["log"], list[str]()
    if found["fragments"]:
        objects = count_text(found["fragments"], "object")
        lines.append(
            f"{count_text(found['records'], 'record')} in {objects} collected; the log now begins "
            f"at {found['oldest']:,}."
        )
    if found["held_by"] is None:
        lines.append(
            "Nothing was collected, for no cursor says what is no longer needed. Make one: "
            f"tidelog log cursor create {name} CURSOR --at POSITION"
        )
    elif not found["fragments"]:
        lines.append("No whole object was there to collect.")
    if found["held_at"] is not None:
        lines.append(f"The cursor {found['held_by']!r} holds all from {found['held_at']:,} on.")
    if found["pinned"]:
        lines.append(f"{count_text(found['pinned'], 'object')} left to pins.")
    if found["discarded"]:
        lines.append(f"{count_text(found['discarded'], 'plan')} of others taken away.")
    lines += [f"{key} lies where cursors do, and is none." for key in found["foreign"]]
    lines += [f"{key} was to be erased, and the log names it: scrub it." for key in found["spared"]]
    if (swept := found.get("swept")) is not None:
        told = [
            count_text(len(swept["deleted"]), "object") + " swept",
            count_text(len(swept["unproven"]), "object") + " that may still become part of the log",
            count_text(len(swept["foreign"]), "object") + " that no log has",
        ]
        lines.append("; ".join(told) + ".")
        lines += [f"{key} is none of a log's." for key in swept["foreign"]]
    return lines


def grace_us_of(seconds: float) -> int:
    """Return a time for readers in microseconds.

    Raises:
        UsageError: it is none, or longer than a week.
    """
    if not 0 <= seconds <= 604_800:
        raise UsageError(f"--grace {seconds:g} is no time: it is from 0 seconds up to a week")
    return int(seconds * 1e6)


async def with_patience(work: Awaitable[T], grace: float) -> T:
    """Do work that waits for readers; say so if it takes a while and somebody watches."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=1.0)
        if not done and grace > 1 and sys.stderr.isatty():
            say(f"Readers are given {grace:g} s before anything is deleted (--grace SECONDS) ...")
        return await task
    finally:
        task.cancel()
