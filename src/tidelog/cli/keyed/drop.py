"""``tidelog keyed drop``: delete a keyed log with its records and checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog.cli.command import AsJson, ask_first, on_location
from tidelog.cli.keyed.opened import KeyedName, check_keyed
from tidelog.cli.output import choose_format, print_json, say


def drop(
    context: typer.Context,
    name: KeyedName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a keyed log with its keys, records and checkpoints, for good.

    The name is never reused.
    """
    check_keyed(name)
    if not yes:
        ask_first(
            lambda: f"Drop the keyed log {name!r} with its records and checkpoints, for good?",
            deed="drop the keyed log",
            undone="Nothing was dropped.",
        )
    on_location(context, lambda location: location.keyed.drop(name))
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "dropped": True})
    else:
        say(f"Dropped the keyed log {name!r}.")
