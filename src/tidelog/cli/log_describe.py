"""``tidelog log describe``: a log's bounds, its tree drawn, its epochs, and what holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log_cursor import cursor_fields
from tidelog.cli.log_pin import pin_fields
from tidelog.cli.output import bytes_text, choose_format, count_text, print_fields, print_json

if TYPE_CHECKING:
    from tidelog.location import Location

EPOCHS_SHOWN: Final = 5

Fields = list[tuple[str, str | list[str]]]


def describe(
    context: typer.Context,
    name: LogName,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every snapshot, and draw the whole tree.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a log's bounds, its manifest's tree, its epochs, cursors and pins."""
    found = on_location(context, lambda location: _describe(location, name, deep=deep))
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        print_fields(fields_of(found))


async def _describe(location: Location, name: str, *, deep: bool) -> dict[str, Any]:
    from tidelog.wal.describe import outline_log

    log = await location.log(name)
    found = await log.describe()
    found |= await outline_log(log.store, log.clock, deep=deep)
    cursors = sorted((await log.cursors()).cursors.items())
    found["cursors"] = [cursor_fields(name, *cursor, found["next"]) for cursor in cursors]
    pins = sorted((await log.pins()).items())
    return {**found, "pins": [pin_fields(name, *pin) for pin in pins]}


def fields_of(found: dict[str, Any]) -> Fields:
    """Say what there is to know of a log, for people."""
    following = found["next"]
    records = f"{found['records']:,}"
    if found["records"]:
        records += f", positions {found['oldest']:,} to {following - 1:,}"
    fields: Fields = [
        ("name", found["name"]),
        ("protocol", found["protocol"]),
        ("records", f"{records}; the next is {following:,}"),
        ("bytes", bytes_text(found["bytes"])),
        ("tree", list(_drawn(found["tree"])) + _tail(found)),
    ]
    if "epochs" in found:
        fields += _slot_fields(found)
    fields.append(
        (
            "cursors",
            [
                f"{one['cursor']} at {one['position']:,}, holds "
                f"{count_text(one['records'], 'record')}"
                for one in found["cursors"]
            ],
        )
    )
    if found["protocol"] != "manifest":
        fields.append(("pins", [_pin_line(pin) for pin in found["pins"]]))
    return fields


def _slot_fields(found: dict[str, Any]) -> Fields:
    epochs = found["epochs"]
    shown = [_epoch_line(epoch) for epoch in epochs[-EPOCHS_SHOWN:]]
    if len(epochs) > EPOCHS_SHOWN:
        shown.insert(0, f"{count_text(len(epochs) - EPOCHS_SHOWN, 'epoch')} before these")
    fields: Fields = [("epochs", shown)]
    if found["origin"] is not None:
        origin = found["origin"]
        fields.append(("fork of", f"{origin['log']}, which holds it by the pin {origin['pin']}"))
    if found["sealed"]:
        fields.append(("sealed", f"yes; goes on in {found['successor'] or 'no other log'}"))
    return fields


def _epoch_line(epoch: dict[str, Any]) -> str:
    told = f"{epoch['number']} from slot {epoch['first_slot']:,}"
    told += f", of the log {epoch['log']}" if epoch["log"] else ""
    lanes = count_text(epoch["lanes"], "lane")
    return f"{told}, opened by {epoch['opener']}, {lanes}, alpha {epoch['alpha']}"


def _pin_line(pin: dict[str, Any]) -> str:
    told = f"{pin['pin']}: {pin['start']:,} to {pin['limit'] - 1:,}"
    told += f", for the fork {pin['holder']}" if pin["holder"] else ""
    return told if pin["is_sure"] else f"{told}, not finished"


def _tail(found: dict[str, Any]) -> list[str]:
    reached = found["manifest"]["next"]
    if found["next"] <= reached:
        return []
    left = count_text(found["next"] - reached, "record")
    return [f"{left} not rolled up yet: {reached:,} to {found['next'] - 1:,}"]


def _drawn(nodes: Sequence[dict[str, Any]], indent: str = "") -> Iterator[str]:
    """Draw a tree, a line each; what is below a node is drawn below it."""
    for number, node in enumerate(nodes):
        is_last = number == len(nodes) - 1
        corner, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield f"{indent}{corner if indent or len(nodes) > 1 else ''}{_node_line(node)}"
        yield from _drawn(node.get("children", ()), indent + below)


def _node_line(node: dict[str, Any]) -> str:
    what = (
        f"snapshot of depth {node['depth']}"
        if node["kind"] == "snapshot"
        else count_text(node["count"], "fragment")
    )
    return f"{what}: {node['start']:,} to {node['limit'] - 1:,}, {bytes_text(node['bytes'])}"
