"""``tidelog keyed count``: the number of records of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_reader
from tidelog.cli.keyed.options import (
    From,
    KeyForm,
    OneKey,
    To,
    check_form,
    check_sequence_range,
    key_bytes,
    shown_key,
)
from tidelog.cli.output import choose_format, count_text, print_json, write_text

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedReads


def count(
    context: typer.Context,
    name: KeyedName,
    *,
    key: OneKey,
    key_form: KeyForm = "text",
    start: From = 0,
    to: To = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Read only indexes, and show bounds of the count.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count the records of a key, also between two sequences."""
    check_form(key_form)
    check_sequence_range(start, to)
    wanted = key_bytes(key, key_form, "--key")

    async def work(log: KeyedReads) -> dict[str, Any]:
        if not approximate:
            return {"count": await log.count(wanted, start, to)}
        found = await log.count_approximate(wanted, start, to)
        return {"count": found.value, "least": found.least, "most": found.most}

    found = on_reader(context, name, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **shown_key(wanted, key_form), **found})
        return
    told = count_text(found["count"], "record")
    if approximate:
        told += f", at least {found['least']:,} and at most {found['most']:,}"
    write_text(f"{told}\n")
