"""``tidelog shard describe``: the schema, times, batches, holds, sizes and costs of a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from tidelog.cli.collection import schema_lines
from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import (
    bytes_text,
    choose_format,
    count_text,
    dollars_text,
    print_fields,
    print_json,
)
from tidelog.cli.output import time_text as wall_text
from tidelog.cli.shard.opened import ShardName, schema_of, time_text
from tidelog.store.prices import PRICES

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.persist.handle.shard import Shard

BATCHES_SHOWN: Final = 12


def describe(context: typer.Context, name: ShardName, as_json: AsJson = False) -> None:
    """Show a shard's schema, times, batches, holds and sizes, and the costs of reads and storage.

    The command draws the batches by level, in the order of their times. Batches of a level have
    similar numbers of updates, and the next level has several times as many.
    """

    async def work(location: Location) -> dict[str, Any]:
        from tidelog.persist.maintenance.sweeper import usage_of_shard

        shard = await location.shards.find(name)
        usage = await usage_of_shard(shard)
        described = _described(shard, name)
        return described | {
            "objects": sum(usage.objects.values()),
            "kept": usage.stored_bytes,
            "dollars_a_month": usage.dollars_a_month,
            "dollars_a_snapshot": described["gets_a_snapshot"] * PRICES["get"],
        }

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        print_fields(_fields(found))


def _described(shard: Shard, name: str) -> dict[str, Any]:
    from tidelog.collection.formats.types import sql_type_of
    from tidelog.persist.maintenance.merging import level_of

    state = shard.state
    schema = schema_of(state) if state.schema else None
    batches = list(state.batches)
    parts = [part for batch in batches for part in batch.parts]
    return {
        "name": name,
        "id": shard.id,
        "dropped": state.is_buried,
        "schema": []
        if schema is None
        else [{"name": f.name, "type": sql_type_of(f)} for f in schema.data],
        "key": [] if schema is None else schema.key,
        "since": state.since,
        "upper": state.upper,
        "seqno": shard.machine.seqno,
        "write_epoch": state.write_epoch,
        "updates": state.totals.rows,
        "diffs": state.totals.diffs,
        "bytes": state.totals.size_bytes,
        "inline_bytes": state.totals.inline_bytes,
        "parts": len(parts),
        "batches": [
            {
                "level": level_of(batch),
                "lower": batch.lower,
                "upper": batch.upper,
                "since": batch.since,
                "updates": batch.rows,
                "runs": len(batch.runs),
                "parts": len(batch.parts),
                "bytes": batch.size_bytes,
            }
            for batch in batches
        ],
        "holds": {
            name: {"kind": hold.kind.value, "since": hold.since, "until_us": hold.until_us}
            for name, hold in sorted(state.holds.items())
        },
        "writers": {name: [w.number, w.upper] for name, w in sorted(state.writers.items())},
        # One request for the state's records, one for its rollup, one for each part in the store.
        "gets_a_snapshot": 1
        + (shard.machine.history.newest is not None)
        + sum(part.path is not None for part in parts),
    }


def _fields(found: dict[str, Any]) -> list[tuple[str, str | list[str]]]:
    sizes = (
        f"{count_text(found['updates'], 'update')}, {bytes_text(found['bytes'])} in "
        f"{count_text(found['parts'], 'part')}, {bytes_text(found['inline_bytes'])} of it in the "
        "state"
    )
    gets, objects = (
        count_text(found["gets_a_snapshot"], "get"),
        count_text(found["objects"], "object"),
    )
    size, kept = bytes_text(found["bytes"]), bytes_text(found["kept"])
    costs = [
        f"a snapshot: {gets}, {size}, {dollars_text(found['dollars_a_snapshot'])}",
        f"storage: {objects}, {kept}, {dollars_text(found['dollars_a_month'])} a month",
    ]
    holds = [
        f"{name}: {time_text(one['since'])}, {one['kind']}"
        + ("" if one["until_us"] is None else f", until {wall_text(one['until_us'])}")
        for name, one in found["holds"].items()
    ]
    writers = [
        f"{name}: written up to {time_text(upper)}"
        for name, (_, upper) in sorted(found["writers"].items())
    ]
    return [
        ("name", found["name"]),
        ("schema", schema_lines(found["schema"], found["key"]) if found["schema"] else "none"),
        ("since, upper", _span(found)),
        ("seqno", f"{found['seqno']:,}, write epoch {found['write_epoch']}"),
        ("sizes", sizes),
        ("spine", _drawn(found["batches"]) or "no batches"),
        ("holds", holds or "none, so since does not move"),
        ("writers", writers or "no named writers"),
        ("costs", costs),
    ]


def _span(found: dict[str, Any]) -> str:
    if found["dropped"]:
        return "dropped: the shard is no longer readable or writable"
    return f"{time_text(found['since'])}, {time_text(found['upper'])}"


def _drawn(batches: list[dict[str, Any]]) -> list[str]:
    from tidelog.cli.shard.spine import draw_levels

    lines = []
    for one in draw_levels([batch["level"] for batch in batches]):
        of_level = [batch for batch in batches if batch["level"] == one.level]
        updates = sum(batch["updates"] for batch in of_level)
        size = sum(batch["bytes"] for batch in of_level)
        lines.append(
            f"level {one.level} |{one.marks}| {one.batches:,} of {count_text(updates, 'update')}, "
            f"{bytes_text(size)}"
        )
    lines += [
        f"[{batch['lower']}, {time_text(batch['upper'])}) level {batch['level']}: "
        f"{count_text(batch['updates'], 'update')} in {count_text(batch['parts'], 'part')}, "
        f"{bytes_text(batch['bytes'])}, since {batch['since']}"
        for batch in batches[-BATCHES_SHOWN:]
    ]
    if len(batches) > BATCHES_SHOWN:
        lines.append(f"the newest {BATCHES_SHOWN} of {len(batches):,} are shown; --json has all")
    return lines
