"""``tidelog log``: its verbs, in the order of the help."""

from tidelog.cli.command import group
from tidelog.cli.log.admin import adopt, collect, copy, drop, export, fork, rebuild
from tidelog.cli.log.describe import describe, list_logs, scrub
from tidelog.cli.log.holds import cursor_app, pin_app
from tidelog.cli.log.read import follow, scan
from tidelog.cli.log.write import append, create, seal, stream_app

app = group(
    "Logs: append, read, check.",
    create=create,
    append=append,
    scan=scan,
    follow=follow,
    list=list_logs,
    describe=describe,
    scrub=scrub,
    seal=seal,
    stream=stream_app,
    cursor=cursor_app,
    pin=pin_app,
    collect=collect,
    fork=fork,
    copy=copy,
    adopt=adopt,
    export=export,
    rebuild=rebuild,
    drop=drop,
)
