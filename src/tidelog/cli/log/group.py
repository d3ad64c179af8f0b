"""``tidelog log``: its verbs, in the order of the help."""

from __future__ import annotations

import typer

from tidelog.cli.log import cursor, pin, stream
from tidelog.cli.log.adopt import adopt
from tidelog.cli.log.append import append
from tidelog.cli.log.collect import collect
from tidelog.cli.log.copy import copy
from tidelog.cli.log.create import create
from tidelog.cli.log.describe import describe
from tidelog.cli.log.drop import drop
from tidelog.cli.log.export import export
from tidelog.cli.log.follow import follow
from tidelog.cli.log.fork import fork
from tidelog.cli.log.list import list_logs
from tidelog.cli.log.rebuild import rebuild
from tidelog.cli.log.scan import scan
from tidelog.cli.log.scrub import scrub
from tidelog.cli.log.seal import seal

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Logs: append, read, check.")
app.command("create")(create)
app.command("append")(append)
app.command("scan")(scan)
app.command("follow")(follow)
app.command("list")(list_logs)
app.command("describe")(describe)
app.command("scrub")(scrub)
app.command("seal")(seal)
app.add_typer(stream.app, name="stream")
app.add_typer(cursor.app, name="cursor")
app.add_typer(pin.app, name="pin")
app.command("collect")(collect)
app.command("fork")(fork)
app.command("copy")(copy)
app.command("adopt")(adopt)
app.command("export")(export)
app.command("rebuild")(rebuild)
app.command("drop")(drop)
