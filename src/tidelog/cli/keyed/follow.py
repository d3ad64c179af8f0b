"""``tidelog keyed follow``: read records as writers append them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_reader
from tidelog.cli.keyed.options import (
    From,
    Key,
    KeyForm,
    Prefix,
    check_form,
    check_sequence_range,
    keys_of,
)
from tidelog.cli.keyed.record_output import write_keyed
from tidelog.cli.log.options import Format, choose_record_format
from tidelog.cli.output import say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedReads


def follow(
    context: typer.Context,
    name: KeyedName,
    *,
    key: Key = None,
    prefix: Prefix = None,
    key_form: KeyForm = "text",
    start: From = 0,
    new: Annotated[bool, typer.Option("--new", help="Only records appended from now on.")] = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write records as writers append them, until Ctrl-C."""
    check_form(key_form)
    check_sequence_range(start, None)
    if new and start:
        raise UsageError("--new and --from exclude each other: give one")
    chosen = choose_record_format(format, as_json=as_json)
    keys = keys_of(key_form, key=key, prefix=prefix)

    async def work(log: KeyedReads) -> None:
        coming = await log.next_sequence()
        if start > coming:
            say(f"The log {name!r} ends before {start}; the next sequence is {coming}: waiting ...")
        async with log.follow(keys, start=None if new else start) as found:
            await write_keyed(aiter(found), chosen, key_form)

    on_reader(context, name, work)
