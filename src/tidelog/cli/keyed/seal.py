"""``tidelog keyed seal``: end the active segment."""

from __future__ import annotations

from dataclasses import asdict

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.output import choose_format, print_json, say


def seal(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Seal the active segment: the next record begins a new segment."""
    found = on_writer(context, name, lambda log: log.seal())
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "sealed": None if found is None else asdict(found)})
    elif found is None:
        say("The active segment is empty: nothing was sealed.")
    else:
        last = (found.limit or 0) - 1
        say(f"Sealed the segment {found.id}: sequences {found.start:,} to {last:,}.")
