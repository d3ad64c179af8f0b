"""``tidelog keyed scan``: read the present records of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_reader
from tidelog.cli.keyed.options import (
    From,
    FromKey,
    Key,
    KeyForm,
    Prefix,
    RowsMax,
    To,
    ToKey,
    check_form,
    check_rows,
    check_sequence_range,
    keys_of,
)
from tidelog.cli.keyed.record_output import write_keyed
from tidelog.cli.log.options import Format, choose_record_format, time_us_of
from tidelog.cli.shown_rows import shown_rows
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedReads

Newest = Annotated[bool, typer.Option("--newest", help="Newest records first.")]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="CHECKPOINT", help="Read the log as of this checkpoint.")
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Start at the first sequence of this time or later: ISO 8601, or microseconds since "
        "1970.",
    ),
]


def scan(
    context: typer.Context,
    name: KeyedName,
    *,
    key: Key = None,
    prefix: Prefix = None,
    from_key: FromKey = None,
    to_key: ToKey = None,
    key_form: KeyForm = "text",
    start: From = 0,
    to: To = None,
    rows: RowsMax = None,
    since: Since = None,
    newest: Newest = False,
    checkpoint: Checkpoint = None,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write the records of a key, a prefix, a range, or all keys."""
    check_form(key_form)
    check_sequence_range(start, to)
    check_rows(rows)
    if start and since is not None:
        raise UsageError("--from and --since exclude each other: give one")
    chosen = choose_record_format(format, as_json=as_json)
    since_us = None if since is None else time_us_of(since, "--since")
    keys = keys_of(key_form, key=key, prefix=prefix, from_key=from_key, to_key=to_key)

    async def work(log: KeyedReads) -> None:
        at = start if since_us is None else await log.sequence_at(since_us)
        if rows == 0 or (to is not None and to <= at):
            return
        async with log.scan(keys, at, to, rows=rows, newest_first=newest) as found:
            await write_keyed(shown_rows(aiter(found), chosen, rows), chosen, key_form)

    on_reader(context, name, work, checkpoint=checkpoint)
