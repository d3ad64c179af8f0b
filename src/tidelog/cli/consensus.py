"""``tidelog consensus``: move the store that resolves concurrent commits."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog.cli.command import AsJson, group, on_location
from tidelog.cli.output import count_text, show

app = group("Consensus: move the place that resolves concurrent commits.")


@app.callback()
def _group() -> None:
    """Move the store that resolves concurrent commits."""


@app.command("move")
def move(
    context: typer.Context,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="KIND",
            help="The new place: store (the location itself), sqlite:PATH, "
            "postgresql://USER@HOST/DATABASE.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Move the place that resolves concurrent commits, also while processes write.

    Writers wait, and then fail with ConsensusMoved: start them again. If the command is killed, the
    location uses either the old place or the new one: run the command again to finish the move.
    Pass the password of the present place in --consensus or TIDELOG_CONSENSUS.
    """
    from tidelog.consensus.kinds import parse_consensus

    parse_consensus(to)
    found = on_location(context, lambda location: location.move_consensus(to))
    told = f"Consensus is at {found.consensus}"
    if found.keys:
        states, records = count_text(found.keys, "state"), count_text(found.records, "record")
        told += f" now: {states} moved, {records}"
    fields = {"consensus": found.consensus, "keys": found.keys, "records": found.records}
    show(fields, told, as_json=as_json)
