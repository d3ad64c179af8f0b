"""``tidelog keyed retain``: how much history a keyed log keeps."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.keyed.settings import (
    RetainAge,
    RetainBytes,
    RetainSegments,
    retention_of,
    retention_text,
)
from tidelog.cli.output import choose_format, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedWrites
    from tidelog.keyed.values import Retention


def retain(
    context: typer.Context,
    name: KeyedName,
    *,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_segments: RetainSegments = None,
    as_json: AsJson = False,
) -> None:
    """Set how much history a keyed log keeps; the active segment always stays.

    'tidelog keyed retire' and the maintenance by writers apply the setting. An option that is left
    out keeps its value; 'none' removes a limit.
    """
    from tidelog.keyed.values import Retention

    given = (retain_age, retain_bytes, retain_segments)
    if not any(one is not None for one in given):
        raise UsageError("no setting given: pass at least one --retain-... option")
    retention_of(Retention(), *given)  # Invalid values fail here, before any I/O.

    async def work(log: KeyedWrites) -> Retention:
        retention = retention_of((await log.describe()).retention, *given)
        await log.retain(retention)
        return retention

    found = on_writer(context, name, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "retention": asdict(found)})
    else:
        say(f"{name!r} keeps {retention_text(found)}")
