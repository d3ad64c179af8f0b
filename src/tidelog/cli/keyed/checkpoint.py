"""``tidelog keyed checkpoint``: named states of a keyed log that stay readable."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_reader, on_writer
from tidelog.cli.output import Column, choose_format, print_json, print_listing, say, time_text

if TYPE_CHECKING:
    from tidelog.keyed.values import CheckpointInfo

CheckpointName = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The name of a checkpoint.")
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Checkpoints: keep a keyed log readable as it is at one moment.",
)


@app.command("create")
def create(
    context: typer.Context,
    name: KeyedName,
    checkpoint: CheckpointName,
    *,
    as_json: AsJson = False,
) -> None:
    """Create a checkpoint: all records readable now stay readable until it is dropped."""
    _check_name(checkpoint)
    found = on_writer(context, name, lambda log: log.create_checkpoint(checkpoint))
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **asdict(found)})
    else:
        last = f"{found.next_sequence - 1:,}"
        say(f"The checkpoint {checkpoint!r} keeps sequences {found.oldest:,} to {last}.")


@app.command("list")
def list_checkpoints(context: typer.Context, name: KeyedName, as_json: AsJson = False) -> None:
    """List the checkpoints of a keyed log."""
    columns: tuple[Column[CheckpointInfo], ...] = (
        Column("checkpoint", lambda one: one.name),
        Column("from", lambda one: f"{one.oldest:,}", right=True),
        Column("to", lambda one: f"{one.next_sequence - 1:,}", right=True),
        Column("for", lambda one: f"the fork {one.fork}" if one.fork else ""),
        Column("created", lambda one: time_text(one.made_us), whole=True),
    )
    print_listing(
        on_reader(context, name, lambda log: log.checkpoints()),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"No checkpoints. Create one: tidelog keyed checkpoint create {name} CHECKPOINT",
    )


@app.command("drop")
def drop(
    context: typer.Context,
    name: KeyedName,
    checkpoint: CheckpointName,
    *,
    as_json: AsJson = False,
) -> None:
    """Drop a checkpoint.

    The next 'tidelog keyed collect' deletes the objects that only this checkpoint kept.
    """
    _check_name(checkpoint)
    on_writer(context, name, lambda log: log.drop_checkpoint(checkpoint))
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "dropped": checkpoint})
    else:
        say(f"Dropped the checkpoint {checkpoint!r}.")


def _check_name(checkpoint: str) -> None:
    from tidelog.core.ids import check_name

    check_name(checkpoint, of="name of a checkpoint")
