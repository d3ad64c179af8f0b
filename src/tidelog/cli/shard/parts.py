"""``tidelog shard parts``: the parts of a shard's batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import Column, bytes_text, print_listing
from tidelog.cli.shard.opened import ShardName, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidelog.location import Location
    from tidelog.persist.states.state import State


def parts(context: typer.Context, name: ShardName, as_json: AsJson = False) -> None:
    """List the parts of a shard, batch by batch. Small batches are stored inline in the state."""

    async def work(location: Location) -> list[dict[str, Any]]:
        return list(_parts((await location.shards.find(name)).state))

    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("lower", lambda one: time_text(one["lower"]), right=True),
        Column("upper", lambda one: time_text(one["upper"]), right=True),
        Column("run", lambda one: str(one["run"]), right=True),
        Column("updates", lambda one: f"{one['updates']:,}", right=True),
        Column("bytes", lambda one: bytes_text(one["bytes"]), right=True),
        Column("sorted", lambda one: "yes" if one["sorted"] else "no"),
        Column("where", lambda one: one["path"] or "in the state", whole=True),
    )
    print_listing(
        on_location(context, work),
        columns,
        fields=dict,
        as_json=as_json,
        none_yet=f"The shard {name!r} is empty: it has no parts.",
    )


def _parts(state: State) -> Iterator[dict[str, Any]]:
    from tidelog.persist.format.part import decode_bounds

    for number, batch in enumerate(state.batches):
        runs = [run for run, count in enumerate(batch.runs) for _ in range(count)]
        for run, part in zip(runs, batch.parts, strict=True):
            yield {
                "batch": number,
                "lower": batch.lower,
                "upper": batch.upper,
                "run": run,
                "path": part.path,
                "updates": part.rows,
                "diffs": part.diffs,
                "bytes": part.size_bytes,
                "time_min": part.time_min,
                "time_max": part.time_max,
                "bounds": {
                    column: [_shown(low), _shown(high)]
                    for column, (low, high) in decode_bounds(part).items()
                },
                "sorted": part.is_sorted,
                "xxh3": part.xxh3.hex(),
                "v": part.sum_v.hex(),
                "t": part.sum_t.hex(),
            }


def _shown(value: object) -> object:
    return value if isinstance(value, str | int | bool | None) else str(value)
