"""``tidelog log describe``: a log's bounds, a drawing of its tree, its epochs, cursors, pins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.cursor import CursorInfo, cursors_of
from tidelog.cli.log.pin import PinInfo, pins_of
from tidelog.cli.output import bytes_text, choose_format, count_text, print_fields, print_json

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo, Outline, TreeNode
    from tidelog.wal.format.epoch import Epoch

EPOCHS_SHOWN: Final = 5

Fields = list[tuple[str, str | list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The description of a log that the command shows."""

    log: LogInfo
    outline: Outline
    cursors: list[CursorInfo]
    pins: list[PinInfo]

    def to_dict(self) -> dict[str, Any]:
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
        bool, typer.Option("--deep", help="Read every snapshot, and show the whole tree.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a log's bounds, manifest tree, epochs, cursors and pins."""
    found = on_location(context, lambda location: _describe(location, name, deep=deep))
    if choose_format(None, as_json=as_json) == "json":
        print_json(found.to_dict())
    else:
        print_fields(fields_of(found))


async def _describe(location: Location, name: str, *, deep: bool) -> LogFacts:
    from tidelog.wal.describe import outline_log

    log = await location.log(name)
    return LogFacts(
        log=await log.describe(),
        outline=await outline_log(log.store, log.clock, deep=deep),
        cursors=await cursors_of(log, (await log.cursors()).cursors),
        pins=await pins_of(log),
    )


def fields_of(found: LogFacts) -> Fields:
    """Return the fields that describe a log to people."""
    log = found.log
    records = f"{log.records:,}"
    if log.records:
        records += f", positions {log.oldest:,} to {log.next - 1:,}"
    fields: Fields = [
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


def _slot_fields(log: LogInfo, outline: Outline) -> Fields:
    epochs = outline.epochs
    shown = [_epoch_line(epoch) for epoch in epochs[-EPOCHS_SHOWN:]]
    if len(epochs) > EPOCHS_SHOWN:
        shown.insert(0, f"{count_text(len(epochs) - EPOCHS_SHOWN, 'earlier epoch')}")
    fields: Fields = [("epochs", shown)]
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
