"""``tidelog shard``: its verbs, in the order of the help."""

from __future__ import annotations

import typer

from tidelog.cli.shard.append import append
from tidelog.cli.shard.changes import changes
from tidelog.cli.shard.create import create
from tidelog.cli.shard.describe import describe
from tidelog.cli.shard.drop import drop
from tidelog.cli.shard.list import list_shards
from tidelog.cli.shard.parts import parts
from tidelog.cli.shard.past import diffs, state
from tidelog.cli.shard.read import read
from tidelog.cli.shard.usage import usage

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Shards: (row, time, diff) updates, the base of collections.",
)
app.command("create")(create)
app.command("append")(append)
app.command("read")(read)
app.command("changes")(changes)
app.command("list")(list_shards)
app.command("describe")(describe)
app.command("state")(state)
app.command("diffs")(diffs)
app.command("parts")(parts)
app.command("usage")(usage)
app.command("drop")(drop)
