"""``tidelog keyed``: its verbs, in the order of the help."""

from __future__ import annotations

import typer

from tidelog.cli.keyed import checkpoint
from tidelog.cli.keyed.append import append
from tidelog.cli.keyed.collect import collect
from tidelog.cli.keyed.compact import compact
from tidelog.cli.keyed.configure import configure
from tidelog.cli.keyed.count import count
from tidelog.cli.keyed.create import create
from tidelog.cli.keyed.describe import describe
from tidelog.cli.keyed.drop import drop
from tidelog.cli.keyed.follow import follow
from tidelog.cli.keyed.fork import fork
from tidelog.cli.keyed.keys import keys
from tidelog.cli.keyed.list import list_keyed
from tidelog.cli.keyed.retain import retain
from tidelog.cli.keyed.retire import retire
from tidelog.cli.keyed.scan import scan
from tidelog.cli.keyed.scrub import scrub
from tidelog.cli.keyed.seal import seal
from tidelog.cli.keyed.segments import segments

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keyed logs: one ordered log for each key.",
)
app.command("create")(create)
app.command("list")(list_keyed)
app.command("describe")(describe)
app.command("append")(append)
app.command("scan")(scan)
app.command("follow")(follow)
app.command("count")(count)
app.command("keys")(keys)
app.command("segments")(segments)
app.command("seal")(seal)
app.command("compact")(compact)
app.command("configure")(configure)
app.command("retain")(retain)
app.command("retire")(retire)
app.command("collect")(collect)
app.command("scrub")(scrub)
app.add_typer(checkpoint.app, name="checkpoint")
app.command("fork")(fork)
app.command("drop")(drop)
