"""``tidelog keyed configure``: when segments are sealed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.keyed.settings import (
    SealAge,
    SealBytes,
    sealing_of,
    sealing_text,
)
from tidelog.cli.output import choose_format, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedWrites
    from tidelog.keyed.values import Sealing


def configure(
    context: typer.Context,
    name: KeyedName,
    *,
    seal_bytes: SealBytes = None,
    seal_age: SealAge = None,
    as_json: AsJson = False,
) -> None:
    """Set when segments are sealed.

    The setting applies to all writers. An option that is left out keeps its value; 'none' removes a
    limit. 'tidelog keyed retain' sets the retention.
    """
    from tidelog.keyed.values import Sealing

    if seal_bytes is None and seal_age is None:
        raise UsageError("no setting given: pass at least one --seal-... option")
    sealing_of(Sealing(), seal_bytes, seal_age)  # Invalid values fail here, before any I/O.

    async def work(log: KeyedWrites) -> Sealing:
        sealing = sealing_of((await log.describe()).sealing, seal_bytes, seal_age)
        await log.configure(sealing)
        return sealing

    found = on_writer(context, name, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "sealing": asdict(found)})
    else:
        say(f"{name!r}: segments are sealed {sealing_text(found)}")
