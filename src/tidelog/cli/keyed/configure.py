"""``tidelog keyed configure``: the sealing and the retention of segments."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.keyed.settings import (
    RetainAge,
    RetainBytes,
    RetainSegments,
    SealAge,
    SealBytes,
    retention_of,
    retention_text,
    sealing_of,
    sealing_text,
)
from tidelog.cli.output import choose_format, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedWrites
    from tidelog.keyed.values import KeyedInfo


def configure(
    context: typer.Context,
    name: KeyedName,
    *,
    seal_bytes: SealBytes = None,
    seal_age: SealAge = None,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_segments: RetainSegments = None,
    as_json: AsJson = False,
) -> None:
    """Set when segments are sealed, and which segments are kept.

    The settings apply to 'tidelog keyed retire', and to the maintenance by writers. An option that
    is left out keeps its value; 'none' removes a limit.
    """
    from tidelog.keyed.values import Retention, Sealing

    given = (seal_bytes, seal_age, retain_age, retain_bytes, retain_segments)
    if not any(one is not None for one in given):
        raise UsageError("no setting given: pass at least one --seal-... or --retain-... option")
    # Invalid values fail here, before any I/O.
    sealing_of(Sealing(), seal_bytes, seal_age)
    retention_of(Retention(), retain_age, retain_bytes, retain_segments)

    async def work(log: KeyedWrites) -> KeyedInfo:
        known = await log.describe()
        told: dict[str, Any] = {}
        if seal_bytes is not None or seal_age is not None:
            told["sealing"] = sealing_of(known.sealing, seal_bytes, seal_age)
        if any(one is not None for one in (retain_age, retain_bytes, retain_segments)):
            told["retention"] = retention_of(
                known.retention, retain_age, retain_bytes, retain_segments
            )
        await log.configure(**told)
        return await log.describe()

    found = on_writer(context, name, work)
    if choose_format(None, as_json=as_json) == "json":
        settings = {"sealing": asdict(found.sealing), "retention": asdict(found.retention)}
        print_json({"log": name, **settings})
    else:
        told = f"segments are sealed {sealing_text(found.sealing)}"
        say(f"{name!r}: {told}; it keeps {retention_text(found.retention)}")
