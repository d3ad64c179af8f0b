"""``tidelog log collect``: erase the records before the lowest cursor, and report the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.options import GRACE_SECONDS, Grace, grace_us_of, pace_of, time_us_of
from tidelog.cli.log.patience import with_patience
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.gc.collector import CollectReport
    from tidelog.wal.gc.orphans import OrphanReport

KeepSince = Annotated[
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

    def to_dict(self) -> dict[str, Any]:
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
    keep_since: KeepSince = None,
    share_max: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Fail if more than this share of the log would be erased (0 to 1).",
        ),
    ] = 0.9,
    force: Annotated[
        bool, typer.Option("--force", help="Erase without a limit on the share.")
    ] = False,
    grace: Grace = GRACE_SECONDS,
    deletes_per_second: DeletesPerSecond = None,
    sweep: Sweep = False,
    as_json: AsJson = False,
) -> None:
    """Erase the records before a log's lowest cursor.

    The command deletes whole objects, so a few records before the cursor may stay. The newest
    object always stays, and so do records that pins hold.
    """
    grace_us = grace_us_of(grace)
    if keep_from is not None and keep_from < 1:
        raise UsageError(f"--keep-from {keep_from} is not a position: positions begin at 1")
    if keep_records < 0:
        raise UsageError(f"--keep-records must be 0 or more, not {keep_records}")
    if not 0 < share_max <= 1:
        raise UsageError(f"--share-max must be above 0 and at most 1, not {share_max:g}")
    pace = pace_of(deletes_per_second)
    since_us = None if keep_since is None else time_us_of(keep_since, "--keep-since")

    async def work(location: Location) -> CollectedInfo:
        from tidelog.wal.gc.plan import Keep

        log = await location.log(name)
        before = await log.bounds()
        starts = [] if keep_from is None else [keep_from]
        if since_us is not None:
            starts.append(await log.position_at(since_us))
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

    found = on_location(context, lambda location: with_patience(work(location), grace))
    if choose_format(None, as_json=as_json) == "json":
        print_json(found.to_dict())
    else:
        for line in told_of(found):
            say(line)


def told_of(found: CollectedInfo) -> list[str]:
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
