"""``tidelog collect``: delete objects that nothing refers to any longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.maintenance import (
    Follow,
    LogTarget,
    TargetNames,
    Turn,
    Wait,
    again_and_again,
    maintenance_targets,
)
from tidelog.cli.output import count_text, is_json, print_json, say, time_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tidelog.collection.maintenance import GroupCollection, Maintenance, ShardGroup
    from tidelog.location import Location


def collect(
    context: typer.Context,
    names: TargetNames = None,
    *,
    after: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long replaced objects stay for running reads. A longer read may fail: "
            "start it again.",
        ),
    ] = "1h",
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="List all objects, and delete those that killed writers left, and old versions "
            "of states. Two sweeps during one write may delete its objects; the writer then writes "
            "them again. Keyed logs are always swept.",
        ),
    ] = False,
    follow: Follow = False,
    interval: Wait = 60.0,
    as_json: AsJson = False,
) -> None:
    """Delete the objects that merges replaced, and those of dropped sources and shards.

    With names, the command deletes no objects of dropped sources. All readable times stay readable.
    """
    from tidelog.collection.formats.times import parse_duration_ms

    after_us = 1_000 * parse_duration_ms(after, what="--after")

    async def once(location: Location, turn: Turn) -> None:
        maintenance = location.maintenance
        groups, logs = await maintenance_targets(location, names or (), dropped=True)

        def work(some: Sequence[ShardGroup]) -> AsyncIterator[GroupCollection]:
            return maintenance.collect(some, after_us=after_us, sweeps=sweep)

        def told(one: GroupCollection) -> None:
            shown = one.deleted > 0 or not follow
            if as_json or (shown and is_json(as_json=False)):
                print_json(_fields(one))
            if shown and not as_json:
                say("\n".join(_lines(one, after)))

        async def erase(some: Sequence[LogTarget]) -> AsyncIterator[GroupCollection]:
            from tidelog.collection.maintenance import GroupCollection

            for one in some:
                async with one.opened() as log:
                    yield GroupCollection(one.name, await log.collect(after_us=after_us), 0)

        async for one in turn.each(groups, work):
            told(one)
        async for one in turn.each(logs, erase):
            told(one)
        if not names:
            async for one in _others(maintenance, turn, sweep):
                told(one)

    on_location(context, lambda location: again_and_again(location, once, follow, interval))


def _fields(one: GroupCollection) -> dict[str, Any]:
    held = {name: hold.objects for name, hold in one.held.items()}
    return {"name": one.name, "deleted": one.deleted, "waiting": one.waiting, "held": held}


def _lines(one: GroupCollection, after: str) -> Iterator[str]:
    """Yield a line for the result, and one for each hold that keeps objects of any age."""
    aging = one.waiting - one.kept
    waits = f", {aging:,} kept until {after} old" if aging else ""
    yield f"{one.name}: {count_text(one.deleted, 'object')} deleted{waits}"
    for name, hold in one.held.items():
        purpose = f" ({hold.purpose})" if hold.purpose else ""
        end = f"until {time_text(hold.until_us)}" if hold.until_us else "until it is dropped"
        yield f"  the hold {name}{purpose} keeps {count_text(hold.objects, 'object')} {end}"
    if one.held:
        yield "  to drop a hold without a reader: tidelog hold drop NAME HOLD"


async def _others(
    maintenance: Maintenance, turn: Turn, sweep: bool
) -> AsyncIterator[GroupCollection]:
    """Collect data without a name: transactions, dropped sources, and the files of store checks."""
    async for one in maintenance.tidy(sweeps=sweep):
        yield one
    if sweep and (probes := await maintenance.sweep_probes()).deleted:
        yield probes
    async for _ in turn.each(await maintenance.unreleased(), maintenance.release):
        pass
