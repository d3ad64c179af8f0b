"""``tidelog keyed collect``: delete objects that a keyed log no longer needs."""

from __future__ import annotations

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.output import choose_format, count_text, print_json, say


def collect(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Delete the objects that no state and no checkpoint names.

    These are compacted fragments, merged runs and retired segments, an hour after their
    replacement.
    """
    found = on_writer(context, name, lambda log: log.collect())
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "deleted": found})
    else:
        say(f"{count_text(found, 'object')} deleted")
