"""``tidelog collection``: list and describe collections, set their retention, hand them over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, CollectionName, Yes, ask_first, group, on_location
from tidelog.cli.output import (
    Column,
    Field,
    bytes_text,
    count_text,
    dollars_text,
    say,
    show,
    show_list,
    when_text,
)
from tidelog.cli.rendition import hand_over

if TYPE_CHECKING:
    from tidelog.cli.hold import HoldRow
    from tidelog.collection.catalog.retention import RetentionPlan
    from tidelog.collection.reading import CollectionDescription
    from tidelog.location import Location
    from tidelog.persist.maintenance.usage import ShardUsage
    from tidelog.persist.states.state import State

app = group("List and describe collections, set their retention, and hand them over.")


@app.command("list")
def list_collections(context: typer.Context, as_json: AsJson = False) -> None:
    """List the collections and their readable times."""
    columns: tuple[Column[CollectionDescription], ...] = (
        Column("name", lambda one: one.name),
        Column("rows", lambda one: f"{one.rows:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("since", lambda one: _since(one.since), whole=True),
        Column("complete to", lambda one: one.complete_to or "nothing yet", whole=True),
        Column("shards", lambda one: str(sum(len(r.shards) for r in one.renditions)), right=True),
    )
    show_list(
        on_location(context, _describe_all),
        columns,
        fields=lambda one: one.to_dict(),
        as_json=as_json,
        none_yet="No collections yet. Create one from files: tidelog source create NAME --files "
        "FILES; or for writes of programs: tidelog table create NAME --schema COLUMNS",
    )


@app.command("describe")
def describe(context: typer.Context, name: CollectionName, as_json: AsJson = False) -> None:
    """Show a collection's schema, times, renditions, sizes and costs.

    A rendition is one complete version of the collection.
    """

    async def work(location: Location) -> tuple[CollectionDescription, ShardUsage]:
        from tidelog.persist.maintenance.sweeper import usage_of_shard
        from tidelog.persist.maintenance.usage import NOTHING

        collection = await location.collection(name)
        found = await collection.describe()
        return found, sum([await usage_of_shard(shard) for shard in collection.shards], NOTHING)

    found, usage = on_location(context, work)
    costs = {
        "stored_bytes": usage.stored_bytes,
        "storage_dollars_a_month": usage.dollars_a_month,
    }
    show(found.to_dict() | costs, _fields(found, usage), as_json=as_json)


@app.command("retain")
def retain(
    context: typer.Context,
    name: CollectionName,
    retention: Annotated[
        str,
        typer.Argument(
            metavar="DURATION|forever", help="How long earlier times stay readable, such as 7d."
        ),
    ],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set how much of its past a collection keeps readable.

    The command shows the times to give up, and asks first. Times more than DURATION before the
    newest complete time become unreadable for good. Each later tick (a commit of tidelog ingest)
    gives up more; for a table, each run of tidelog compact does. A longer retention keeps all times
    that are still readable. Merges (tidelog compact) drop the rows that were deleted before the
    kept times.
    """
    from tidelog.collection.catalog.retention import parse_retention_ms

    retain_ms = parse_retention_ms(retention, what="the retention")
    plan, later = on_location(context, lambda location: _plan(location, name, retain_ms))
    loss = _loss_text(name, plan, later)
    if retain_ms is not None and not yes:
        ask_first(
            lambda: f"{loss} Keep {kept_text(retain_ms)}?",
            deed=_deed(plan),
            undone="Nothing was given up.",
        )
    elif plan.gives_up:
        say(loss)

    async def work(location: Location) -> tuple[RetentionPlan, list[HoldRow]]:
        from tidelog.cli.hold import hold_rows, purposes_in

        await location.collections.retain(name, retain_ms)
        states = await _states(location, name)
        return plan_of(states, retain_ms), hold_rows(states, await purposes_in(location))

    after, holds = on_location(context, work)
    told = f"{name!r} keeps {kept_text(retain_ms)}; earliest readable time: {_since(after.since)}"
    if after.gives_up and after.holders:
        told += f", and {_since(after.kept)} {_once_moved(after.holders)}"
    told += "\nHolds: " + ", ".join(map(_hold_text, holds))
    since = {"name": name, "retain_ms": retain_ms, "since": after.since}
    fields = {**since, "holds": [asdict(one) for one in holds]}
    show(fields, told, as_json=as_json, is_said=True)


app.command("handover")(hand_over)


def _hold_text(one: HoldRow) -> str:
    purpose = f" ({one.purpose})" if one.purpose else ""
    return f"{one.hold}{purpose} at {_since(one.since)}"


def plan_of(states: Sequence[State], retain_ms: int | None) -> RetentionPlan:
    """Return the effect of a retention; see `plan_retention`."""
    from tidelog.collection.catalog.retention import plan_retention

    return plan_retention(states, retain_ms)


async def _plan(location: Location, name: str, retain_ms: int | None) -> tuple[RetentionPlan, str]:
    """Return the effect of a retention, and the actor that gives up further times later."""
    catalog = await location.controller.catalog()
    catalog.writer(name)
    later = "runs of 'tidelog compact'" if name in catalog.tables else "ticks"
    return plan_of(await _states(location, name), retain_ms), f"later {later}"


async def _states(location: Location, name: str) -> list[State]:
    collection = await location.collection(name)
    await collection.refresh()
    return collection.all_states


def _loss_text(name: str, plan: RetentionPlan, later: str) -> str:
    """Return a sentence about the times that a retention gives up, and when."""
    readable = f"The earliest readable time of {name!r} is {_since(plan.since)}."
    if not plan.gives_up:
        return f"{readable} It does not change now; {later} give up older times."
    when = _once_moved(plan.holders) if plan.holders else "immediately"
    return (
        f"{readable} Times before {_since(plan.kept)} are given up for good {when}; {later} "
        "give up more."
    )


def _once_moved(holders: Sequence[str]) -> str:
    """Return the conditions that move the holds of earlier times.

    They include ``compact --full``, because an idle source has no next tick.
    """
    found = [f"the hold {name!r} is moved or dropped" for name in holders if name != "ingest"]
    if "ingest" in holders:
        found.append("the next tick or 'tidelog compact --full' moves the hold 'ingest'")
    return f"after {' and '.join(found)}"


def _deed(plan: RetentionPlan) -> str:
    return f"give up times before {_since(plan.kept)}" if plan.gives_up else "set the retention"


def kept_text(retain_ms: int | None) -> str:
    """Return the retention of a collection as text."""
    from tidelog.collection.catalog.retention import retention_text

    if not retain_ms:
        return "all times" if retain_ms is None else "only its newest contents"
    return f"the last {retention_text(retain_ms)}"


async def _describe_all(location: Location) -> list[CollectionDescription]:
    names = await location.collections.list()
    return [await (await location.collection(name)).describe() for name in names]


def _since(since: int | None) -> str:
    return when_text(since, "never")


def _fields(found: CollectionDescription, usage: ShardUsage) -> list[Field]:
    kept = f"{bytes_text(usage.stored_bytes)}: {dollars_text(usage.dollars_a_month)} a month"
    return [
        ("name", found.name),
        ("schema", schema_lines([(c.name, c.type) for c in found.schema], found.key)),
        ("rows", f"{found.rows:,} ({count_text(found.updates, 'update')})"),
        ("bytes", f"{bytes_text(found.bytes)} in {count_text(found.parts, 'part')}"),
        ("storage", f"{kept}, with replaced objects that are not collected yet"),
        ("since", _since(found.since)),
        ("complete to", found.complete_to or "nothing yet"),
        (
            "renditions",
            [
                f"{r.name}, {count_text(len(r.shards), 'shard')}" + (", active" if r.active else "")
                for r in found.renditions
            ],
        ),
    ]


def schema_lines(schema: Sequence[tuple[str, str]], key: Sequence[str]) -> list[str]:
    """Return a line for each column of a schema (names and types), for people."""
    width = max(len(name) for name, _ in schema)
    return [f"{name:<{width}}  {kind}" + (" key" if name in key else "") for name, kind in schema]
