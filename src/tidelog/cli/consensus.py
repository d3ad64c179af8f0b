"""``tidelog consensus``: move the store that resolves concurrent commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import choose_format, count_text, print_json, say

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.location.consensus_migration import MoveReport

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Consensus: move the store that resolves concurrent commits.",
)


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
            "--to", metavar="KIND", help="store, sqlite:PATH, postgresql://USER@HOST/DATABASE."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Move the store that resolves concurrent commits, also while processes write.

    Writers wait, and then fail with ConsensusMoved: start them again. If the command is killed, the
    location uses either the old store or the new one: run the command again to finish the move.
    Pass the password of the present store in --consensus or TIDELOG_CONSENSUS.
    """
    from tidelog.consensus.kinds import parse_consensus

    parse_consensus(to)

    async def work(location: Location) -> MoveReport:
        return await location.move_consensus(to)

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        told_keys = {"keys": found.keys, "records": found.records}
        print_json({"consensus": found.consensus, **told_keys})
    elif found.keys:
        states, records = count_text(found.keys, "state"), count_text(found.records, "record")
        say(f"Consensus is at {found.consensus} now: {states} moved, {records}")
    else:
        say(f"Consensus is at {found.consensus}")
