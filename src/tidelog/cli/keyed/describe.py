"""``tidelog keyed describe``: the bounds, settings and contents of a keyed log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_reader
from tidelog.cli.keyed.settings import retention_text, sealing_text
from tidelog.cli.output import bytes_text, choose_format, count_text, print_fields, print_json

if TYPE_CHECKING:
    from tidelog.keyed.values import CheckpointInfo, KeyedInfo


def describe(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Show the bounds, settings, checkpoints, runs and loose fragments of a keyed log."""
    found = on_reader(context, name, lambda log: log.describe())
    if choose_format(None, as_json=as_json) == "json":
        print_json(asdict(found))
    else:
        print_fields(_fields(found))


def _fields(found: KeyedInfo) -> list[tuple[str, str | list[str]]]:
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
