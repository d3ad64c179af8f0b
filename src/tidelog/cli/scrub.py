"""``tidelog scrub``: read and check all stored data of collections, shards and keyed logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.keyed.scrub import scrubbed_object, tell_scrubbed
from tidelog.cli.maintenance import (
    Follow,
    LogTarget,
    TargetNames,
    Turn,
    Wait,
    again_and_again,
    maintenance_targets,
)
from tidelog.cli.output import (
    bytes_text,
    choose_format,
    count_text,
    print_json,
    say,
    write_text,
)
from tidelog.errors import CorruptionError

if TYPE_CHECKING:
    from tidelog.collection.maintenance import GroupScrub
    from tidelog.keyed.maintenance.scrub import KeyedScrubReport
    from tidelog.location import Location


def scrub(
    context: typer.Context,
    names: TargetNames = None,
    *,
    follow: Follow = False,
    interval: Wait = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Read all stored data, check it, and report all damage.

    The command reads all objects of collections, shards and keyed logs, and writes nothing. It
    compares checksums, row counts, times and keys with the recorded state, and each stored state
    with the newest one. It reports each damaged object and the remedy. Logs without keys have their
    own command: tidelog log scrub. Exit status: 1 if an object is damaged.
    """
    is_json = choose_format(None, as_json=as_json) == "json"

    async def once(location: Location, turn: Turn) -> None:
        maintenance = location.maintenance
        groups, logs = await maintenance_targets(location, names or ())
        async for one in turn.each(groups, maintenance.scrub):
            if not one.found.is_clean:
                turn.damaged.append(one.name)
            if is_json:
                print_json(_object(one))
            else:
                _tell(one, quiet=follow)
        async for log in turn.each(logs, _scrub_logs):
            if not log.found.is_clean:
                turn.damaged.append(log.name)
            if is_json:
                print_json({"name": log.name, **scrubbed_object(log.found)})
            elif follow and log.found.is_clean:
                continue
            else:
                tell_scrubbed(log.found, f"{log.name}: ")
        for transactions in [] if names else await maintenance.transactions():
            try:
                await transactions.refresh()
            except CorruptionError as error:
                turn.damaged.append(f"({transactions.name}: transactions)")
                say(f"tidelog: the transactions {transactions.name!r}: {error}")

    on_location(context, lambda location: again_and_again(location, once, follow, interval))


@dataclass(frozen=True, slots=True)
class _ScrubbedLog:
    name: str
    found: KeyedScrubReport


async def _scrub_logs(logs: Sequence[LogTarget]) -> AsyncIterator[_ScrubbedLog]:
    for one in logs:
        async with one.opened() as log:
            yield _ScrubbedLog(one.name, await log.scrub())


def _object(one: GroupScrub) -> dict[str, Any]:
    found = one.found
    return {
        "name": one.name,
        "role": one.role,
        "shard": one.shard,
        "damages": [{"path": d.path, "why": d.why, "advice": d.advice} for d in found.damages],
        "parts": found.parts,
        "updates": found.rows,
        "bytes_read": found.bytes_read,
        "records": found.records,
        "states": found.states,
        "t_compared": not found.unseen_t,
    }


def _tell(one: GroupScrub, *, quiet: bool) -> None:
    found = one.found
    for damage in found.damages:
        write_text(f"{one.name}: {damage}\n")
    if found.is_clean and quiet:
        return
    name = one.name if one.name.startswith("(") else f"{one.name}, {one.role}"
    say(
        f"{name}: {count_text(found.rows, 'update')} in {count_text(found.parts, 'part')} read, "
        f"{bytes_text(found.bytes_read)}; {count_text(found.records, 'record')}, "
        f"{count_text(found.states, 'state')} compared; {count_text(len(found.damages), 'damage')}"
    )
