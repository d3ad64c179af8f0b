"""``tidelog shard``: its verbs, in the order of the help."""

from tidelog.cli.command import group
from tidelog.cli.shard.describe import describe, diffs, list_shards, parts, state, usage
from tidelog.cli.shard.read import changes, read
from tidelog.cli.shard.write import append, create, drop

app = group(
    "Shards: (row, time, diff) updates, the base of collections.",
    create=create,
    append=append,
    read=read,
    changes=changes,
    list=list_shards,
    describe=describe,
    state=state,
    diffs=diffs,
    parts=parts,
    usage=usage,
    drop=drop,
)
