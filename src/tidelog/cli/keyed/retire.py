"""``tidelog keyed retire``: drop the segments that the retention does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, ask_first
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.keyed.settings import (
    RetainAge,
    RetainBytes,
    RetainSegments,
    retention_of,
    retention_text,
)
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedWrites


def retire(
    context: typer.Context,
    name: KeyedName,
    *,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_segments: RetainSegments = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop the segments that the retention does not keep, for good.

    The active segment stays. 'tidelog keyed retain' sets the retention; options given here apply
    to this run only.
    """
    from tidelog.keyed.values import Retention

    retention = retention_of(Retention(), retain_age, retain_bytes, retain_segments)
    if retention.is_set and not yes:
        ask_first(
            lambda: f"Keep {retention_text(retention)} of {name!r}, and drop the rest, for good?",
            deed="drop segments",
            undone="Nothing was dropped.",
        )

    async def work(log: KeyedWrites) -> tuple[int, int]:
        if not retention.is_set and not (await log.describe()).retention.is_set:
            raise UsageError(
                f"the keyed log {name!r} has no retention: set one here, or with "
                "'tidelog keyed retain'"
            )
        gone = await log.retire(retention if retention.is_set else None)
        return gone, (await log.describe()).oldest

    gone, oldest = on_writer(context, name, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "retired": gone, "oldest": oldest})
    else:
        told = f"{count_text(gone, 'segment')} dropped; the oldest sequence is {oldest:,}"
        say(f"{told}. To delete their records: tidelog keyed collect {name}")
