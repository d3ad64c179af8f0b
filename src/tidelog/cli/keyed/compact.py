"""``tidelog keyed compact``: bring loose fragments into runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.output import choose_format, count_text, print_json, say


def compact(
    context: typer.Context,
    name: KeyedName,
    *,
    everything: Annotated[
        bool, typer.Option("--everything", help="All that is loose, not only what is due.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring loose fragments into runs, and each sealed segment into one.

    Any process may do it, at any time, beside the one that writes.
    """
    found = on_writer(context, name, lambda log: log.compact(everything=everything))
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "runs": found})
    else:
        say(f"{count_text(found, 'run')} written" if found else "Nothing was due.")
