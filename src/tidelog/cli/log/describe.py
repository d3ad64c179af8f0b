"""``tidelog log list``, ``describe`` and ``scrub``: show and check logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, Damaged, LogName, location_url, on_location
from tidelog.cli.engine import check_installed, scrub_on_spark
from tidelog.cli.log.holds import CursorInfo, PinInfo, cursors_of, pins_of
from tidelog.cli.log.options import Start, To, check_range, on_log
from tidelog.cli.output import (
    Column,
    Field,
    bytes_text,
    count_text,
    print_table,
    say,
    show,
    write_text,
)
from tidelog.core.clock import run_all
from tidelog.errors import (
    CopyUnfinished,
    LocationError,
    ManifestLost,
    NoSuchLog,
    TidelogError,
    UsageError,
)

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo, Outline, TreeNode
    from tidelog.wal.format.link import Epoch
    from tidelog.wal.log import Log
    from tidelog.wal.scrub.report import ScrubReport

EPOCHS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A log that cannot be described, and the error."""

    name: str
    error: TidelogError

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {"name": self.name, "error": str(self.error), "error_kind": self.error.kind}


def list_logs(context: typer.Context, as_json: AsJson = False) -> None:
    """List the logs and their contents; a damaged log does not hide the others.

    An interrupted copy is listed with the commands that finish or remove it.

    Exit status: 1 if a log cannot be read.
    """
    found = on_location(context, logs_of)
    unreadable = [one for one in found if isinstance(one, Unreadable)]
    # An interrupted copy is not yet a log, and it damages no other log.
    damaged = [one for one in unreadable if not isinstance(one.error, CopyUnfinished)]
    columns: tuple[Column[LogInfo], ...] = (
        Column("name", lambda one: one.name),
        Column("protocol", lambda one: one.protocol),
        Column("records", lambda one: f"{one.records:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("oldest", lambda one: str(one.oldest), right=True),
        Column("next", lambda one: str(one.next), right=True),
        Column("sealed", lambda one: "yes" if one.seal else ""),
    )
    whole = [one for one in found if not isinstance(one, Unreadable)]
    none_yet = "No logs yet. Create one: tidelog log create NAME"
    text = partial(print_table, whole, columns) if whole else None if found else none_yet
    show([one.to_dict() for one in found], text, as_json=as_json)
    for one in unreadable:
        say(f"{one.name}: {one.error}")
    if damaged:
        told = count_text(len(damaged), "log")
        raise Damaged(f"{told} cannot be read: see above")


async def logs_of(location: Location) -> list[LogInfo | Unreadable]:
    """Return descriptions of all logs of a location, in the order of their names.

    Raises:
        LocationError: the store failed.
    """
    from tidelog.core.lookahead import AT_ONCE_MAX

    work = [partial(_described, location, name) for name in await location.logs.found()]
    return [one for one in await run_all(work, at_once=AT_ONCE_MAX) if one is not None]


async def _described(location: Location, name: str) -> LogInfo | Unreadable | None:
    """Describe a log; None if it was dropped."""
    try:
        return await (await location.log(name)).describe()
    except LocationError:
        raise
    except TidelogError as error:
        if isinstance(error, NoSuchLog) and not isinstance(error, ManifestLost):
            return None
        return Unreadable(name=name, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The description of a log that the command shows."""

    log: LogInfo
    outline: Outline
    cursors: list[CursorInfo]
    pins: list[PinInfo]

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {
            **self.log.to_dict(),
            **self.outline.to_dict(),
            "cursors": [asdict(cursor) for cursor in self.cursors],
            "pins": [asdict(pin) for pin in self.pins],
        }


def describe(
    context: typer.Context,
    name: LogName,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read and show all nodes of the manifest tree.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a log's bounds, manifest tree, epochs, cursors and pins."""
    found = on_log(context, name, lambda log: _describe(log, deep=deep))
    show(found.to_dict(), _fields_of(found), as_json=as_json)


async def _describe(log: Log, *, deep: bool) -> LogFacts:
    from tidelog.wal.describe import outline_log

    return LogFacts(
        log=await log.describe(),
        outline=await outline_log(log.store, log.clock, deep=deep),
        cursors=await cursors_of(log, (await log.cursors()).cursors),
        pins=await pins_of(log),
    )


def _fields_of(found: LogFacts) -> list[Field]:
    """Return the fields that describe a log to people."""
    log = found.log
    records = f"{log.records:,}"
    if log.records:
        records += f", positions {log.oldest:,} to {log.next - 1:,}"
    fields: list[Field] = [
        ("name", log.name),
        ("protocol", log.protocol),
        ("records", f"{records}; the next is {log.next:,}"),
        ("bytes", bytes_text(log.bytes)),
        ("tree", list(_drawn(found.outline.tree)) + _tail(log)),
    ]
    if log.epoch is not None:
        fields += _slot_fields(log, found.outline)
    fields.append(("cursors", [_cursor_line(cursor) for cursor in found.cursors]))
    if log.protocol != "manifest":
        fields.append(("pins", [_pin_line(pin) for pin in found.pins]))
    return fields


def _slot_fields(log: LogInfo, outline: Outline) -> list[Field]:
    epochs = outline.epochs
    shown = [_epoch_line(epoch) for epoch in epochs[-EPOCHS_SHOWN:]]
    if len(epochs) > EPOCHS_SHOWN:
        shown.insert(0, f"{count_text(len(epochs) - EPOCHS_SHOWN, 'earlier epoch')}")
    fields: list[Field] = [("epochs", shown)]
    if (origin := outline.origin) is not None:
        fields.append(("fork of", f"{origin.log}, whose pin {origin.pin} keeps the shared records"))
    if (seal := log.seal) is not None:
        fields.append(("sealed", f"yes; successor: {seal.successor or 'none'}"))
    return fields


def _epoch_line(epoch: Epoch) -> str:
    told = f"{epoch.number} from slot {epoch.first_slot:,}"
    told += f", of the log {epoch.log}" if epoch.log else ""
    lanes = count_text(epoch.lanes, "lane")
    return f"{told}, opened by {epoch.opener}, {lanes}, alpha {epoch.alpha}"


def _cursor_line(cursor: CursorInfo) -> str:
    held = count_text(cursor.records, "record")
    return f"{cursor.cursor} at {cursor.position:,}, holds {held}"


def _pin_line(pin: PinInfo) -> str:
    told = f"{pin.pin}: {pin.start:,} to {pin.limit - 1:,}"
    told += f", for the fork {pin.holder}" if pin.holder else ""
    return told if pin.is_sure else f"{told}, not finished"


def _tail(log: LogInfo) -> list[str]:
    if log.next <= log.rolled_up:
        return []
    left = count_text(log.next - log.rolled_up, "record")
    return [f"{left} not rolled up yet: {log.rolled_up:,} to {log.next - 1:,}"]


def _drawn(nodes: Sequence[TreeNode], indent: str = "") -> Iterator[str]:
    """Yield the lines of a drawing of a tree; a node's children follow it, indented."""
    from tidelog.wal.describe import SnapshotNode

    for number, node in enumerate(nodes):
        is_last = number == len(nodes) - 1
        corner, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        if isinstance(node, SnapshotNode):
            what, children = f"snapshot of depth {node.depth}", node.children or ()
        else:
            what, children = count_text(node.count, "fragment"), ()
        held = f"{what}: {node.start:,} to {node.limit - 1:,}, {bytes_text(node.bytes)}"
        yield f"{indent}{corner if indent or len(nodes) > 1 else ''}{held}"
        yield from _drawn(children, indent + below)


def scrub(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    limit: To = None,
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
        check_installed(instead="omit --spark")
        if start or limit is not None:
            raise UsageError("Spark scrubs a whole log: omit --from and --to, or omit --spark")

    async def work(log: Log) -> ScrubReport | None:
        # Spark takes seconds to start, so a wrong name must fail here first.
        return None if spark else await log.scrub(start, limit=limit)

    found = on_log(context, name, work) or scrub_on_spark(location_url(context), name)
    show(found.to_dict(), partial(_tell, found), as_json=as_json)
    if not found.is_clean:
        raise Damaged(f"the log {name!r} is damaged: restore the objects named above")


def _tell(found: ScrubReport) -> None:
    for problem in found.problems:
        write_text(f"{problem.path}: {problem.why}\n")
    read = count_text(found.records, "record"), count_text(found.fragments, "object")
    say(
        f"{read[0]} in {read[1]} read, {bytes_text(found.bytes_read)}; "
        f"{count_text(len(found.problems), 'problem')}; "
        f"{count_text(len(found.unnamed), 'object')} that the log does not name"
    )
