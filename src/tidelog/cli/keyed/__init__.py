"""``tidelog keyed``: its verbs, in the order of the help."""

from tidelog.cli.command import group
from tidelog.cli.keyed.describe import collect, compact, describe, list_keyed, scrub, segments
from tidelog.cli.keyed.read import count, follow, keys, scan
from tidelog.cli.keyed.settings import configure, create, retain, retire
from tidelog.cli.keyed.write import append, checkpoint_app, drop, fork, seal

app = group(
    "Keyed logs: one ordered log for each key.",
    create=create,
    list=list_keyed,
    describe=describe,
    append=append,
    scan=scan,
    follow=follow,
    count=count,
    keys=keys,
    segments=segments,
    seal=seal,
    compact=compact,
    configure=configure,
    retain=retain,
    retire=retire,
    collect=collect,
    scrub=scrub,
    checkpoint=checkpoint_app,
    fork=fork,
    drop=drop,
)
