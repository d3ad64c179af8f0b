"""``tidelog shard list``, ``describe``, ``state``, ``diffs``, ``parts`` and ``usage``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from tidelog.cli.collection import schema_lines
from tidelog.cli.command import AsJson, Damaged, on_location
from tidelog.cli.output import (
    Column,
    Field,
    bytes_text,
    count_text,
    dollars_text,
    say,
    show,
    show_list,
    time_text,
    write_text,
)
from tidelog.cli.shard.arguments import ShardName, on_shard, schema_of, shard_time_text
from tidelog.errors import LocationError, TidelogError
from tidelog.store.prices import PRICES

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.machine.past import PastRecord
    from tidelog.persist.format.part import Part
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.maintenance.usage import ShardUsage
    from tidelog.persist.states.batch import Batch
    from tidelog.persist.states.state import State

AT_ONCE: Final = 8
WIDTH_MAX: Final = 48
BATCHES_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class ListedShard:
    """A shard of the list: its state, or the error if it is damaged."""

    name: str
    found: State | TidelogError

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        found = self.found
        if isinstance(found, TidelogError):
            return {"name": self.name, "error": str(found), "error_kind": found.kind}
        return {
            "name": self.name,
            "since": found.since,
            "upper": found.upper,
            "updates": found.totals.rows,
            "bytes": found.totals.size_bytes,
            "batches": len(found.batches),
            "dropped": found.is_dropped,
        }

    def text(self, of: Callable[[State], str]) -> str:
        """Return a cell of the list; it is empty if the shard is damaged."""
        return "" if isinstance(self.found, TidelogError) else of(self.found)


def list_shards(context: typer.Context, as_json: AsJson = False) -> None:
    """List the shards and their contents. A damaged shard does not hide the others.

    Exit status: 1 if a shard cannot be read.
    """
    found = on_location(context, _listed_shards)

    def cell(of: Callable[[State], str]) -> Callable[[ListedShard], str]:
        return lambda one: one.text(of)

    columns: tuple[Column[ListedShard], ...] = (
        Column("name", lambda one: one.name),
        Column("updates", cell(lambda state: f"{state.totals.rows:,}"), right=True),
        Column("bytes", cell(lambda state: bytes_text(state.totals.size_bytes)), right=True),
        Column("batches", cell(lambda state: f"{len(state.batches):,}"), right=True),
        Column("since", cell(lambda state: shard_time_text(state.since)), right=True),
        Column("upper", cell(_upper_text), right=True),
    )
    show_list(
        found,
        columns,
        fields=ListedShard.to_dict,
        as_json=as_json,
        none_yet="No shards yet. Create one: tidelog shard create NAME --schema COLUMNS",
    )
    damaged = [one for one in found if isinstance(one.found, TidelogError)]
    for one in damaged:
        say(f"tidelog: the shard {one.name!r} cannot be read: {one.found}")
    if damaged:
        raise Damaged(f"{len(damaged)} of {len(found)} shards cannot be read: see above")


def _upper_text(state: State) -> str:
    return "dropped" if state.is_dropped else shard_time_text(state.upper)


async def _listed_shards(location: Location) -> list[ListedShard]:
    from tidelog.core.clock import run_all

    names = await location.shards.list()
    return await run_all([partial(_listed, location, name) for name in names], at_once=AT_ONCE)


async def _listed(location: Location, name: str) -> ListedShard:
    try:
        return ListedShard(name, await location.shard(name).refresh())
    except LocationError:
        raise
    except TidelogError as error:
        return ListedShard(name, error)


def describe(context: typer.Context, name: ShardName, as_json: AsJson = False) -> None:
    """Show a shard's schema, times, batches, holds and sizes, and the costs of reads and storage.

    The command draws the batches by level, in the order of their times. Batches of a level have
    similar numbers of updates, and the next level has several times as many.
    """

    async def work(shard: Shard) -> tuple[Shard, ShardUsage]:
        from tidelog.persist.maintenance.sweeper import usage_of_shard

        return shard, await usage_of_shard(shard)

    shard, usage = on_shard(context, name, work)
    show(_object(name, shard, usage), _fields(name, shard, usage), as_json=as_json)


def _object(name: str, shard: Shard, usage: ShardUsage) -> dict[str, object]:
    from tidelog.persist.maintenance.merging import level_of

    state, gets = shard.state, _gets_a_snapshot(shard)
    return {
        "name": name,
        "id": shard.id,
        "dropped": state.is_dropped,
        "schema": [{"name": column, "type": kind} for column, kind in _columns_of(state)],
        "key": schema_of(state).key if state.schema else [],
        "since": state.since,
        "upper": state.upper,
        "seqno": shard.machine.seqno,
        "write_epoch": state.write_epoch,
        "updates": state.totals.rows,
        "diffs": state.totals.diffs,
        "bytes": state.totals.size_bytes,
        "inline_bytes": state.totals.inline_bytes,
        "parts": _parts_count(state),
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
            for batch in state.batches
        ],
        "holds": {
            name: {"kind": hold.kind.value, "since": hold.since, "until_us": hold.until_us}
            for name, hold in sorted(state.holds.items())
        },
        "writers": {name: [w.number, w.upper] for name, w in sorted(state.writers.items())},
        "gets_a_snapshot": gets,
        "objects": sum(usage.objects.values()),
        "kept": usage.stored_bytes,
        "dollars_a_month": usage.dollars_a_month,
        "dollars_a_snapshot": gets * PRICES["get"],
    }


def _columns_of(state: State) -> list[tuple[str, str]]:
    from tidelog.collection.formats.types import sql_type_of

    if not state.schema:
        return []
    return [(column.name, sql_type_of(column)) for column in schema_of(state).data]


def _parts_count(state: State) -> int:
    return sum(len(batch.parts) for batch in state.batches)


def _gets_a_snapshot(shard: Shard) -> int:
    """Return the requests of a snapshot: the records of the state, its rollup, the stored parts."""
    stored = sum(part.path is not None for batch in shard.state.batches for part in batch.parts)
    return 1 + (shard.machine.history.newest is not None) + stored


def _fields(name: str, shard: Shard, usage: ShardUsage) -> list[Field]:
    state, totals, gets = shard.state, shard.state.totals, _gets_a_snapshot(shard)
    size = bytes_text(totals.size_bytes)
    sizes = (
        f"{count_text(totals.rows, 'update')}, {size} in "
        f"{count_text(_parts_count(state), 'part')}, {bytes_text(totals.inline_bytes)} of it in "
        "the state"
    )
    objects = count_text(sum(usage.objects.values()), "object")
    month = f"{bytes_text(usage.stored_bytes)}, {dollars_text(usage.dollars_a_month)} a month"
    costs = [
        f"a snapshot: {count_text(gets, 'get')}, {size}, {dollars_text(gets * PRICES['get'])}",
        f"storage: {objects}, {month}",
    ]
    holds = [
        f"{name}: {shard_time_text(hold.since)}, {hold.kind.value}"
        + ("" if hold.until_us is None else f", until {time_text(hold.until_us)}")
        for name, hold in sorted(state.holds.items())
    ]
    writers = [
        f"{name}: written up to {shard_time_text(writer.upper)}"
        for name, writer in sorted(state.writers.items())
    ]
    span = f"{shard_time_text(state.since)}, {shard_time_text(state.upper)}"
    dropped = "dropped: the shard is no longer readable or writable"
    columns = _columns_of(state)
    return [
        ("name", name),
        ("schema", schema_lines(columns, schema_of(state).key) if columns else "none"),
        ("since, upper", dropped if state.is_dropped else span),
        ("seqno", f"{shard.machine.seqno:,}, write epoch {state.write_epoch}"),
        ("sizes", sizes),
        ("spine", _drawn(list(state.batches)) or "no batches"),
        ("holds", holds or "none, so since does not move"),
        ("writers", writers or "no named writers"),
        ("costs", costs),
    ]


def _drawn(batches: list[Batch]) -> list[str]:
    from tidelog.persist.maintenance.merging import level_of

    lines = []
    for one in draw_levels([level_of(batch) for batch in batches]):
        of_level = [batch for batch in batches if level_of(batch) == one.level]
        updates = count_text(sum(batch.rows for batch in of_level), "update")
        size = bytes_text(sum(batch.size_bytes for batch in of_level))
        lines.append(f"level {one.level} |{one.marks}| {one.batches:,} of {updates}, {size}")
    lines += [
        f"[{batch.lower}, {shard_time_text(batch.upper)}) level {level_of(batch)}: "
        f"{count_text(batch.rows, 'update')} in {count_text(len(batch.parts), 'part')}, "
        f"{bytes_text(batch.size_bytes)}, since {batch.since}"
        for batch in batches[-BATCHES_SHOWN:]
    ]
    if len(batches) > BATCHES_SHOWN:
        lines.append(f"the newest {BATCHES_SHOWN} of {len(batches):,} are shown; --json has all")
    return lines


@dataclass(frozen=True, slots=True)
class DrawnLevel:
    """A level of the drawing; if the batches exceed its width, neighbours share a mark."""

    level: int
    batches: int
    marks: str


def draw_levels(levels: Sequence[int]) -> list[DrawnLevel]:
    """Draw batches by their levels, given in the order of their times; the highest level first."""
    width = min(WIDTH_MAX, len(levels))
    drawn = []
    for level in sorted(set(levels), reverse=True):
        marks = [" "] * width
        for place, found in enumerate(levels):
            if found == level:
                marks[place * width // len(levels)] = "#"
        drawn.append(DrawnLevel(level, list(levels).count(level), "".join(marks)))
    return drawn


def parts(context: typer.Context, name: ShardName, as_json: AsJson = False) -> None:
    """List the parts of a shard, batch by batch. Small batches are stored inline in the state."""

    async def work(shard: Shard) -> list[PlacedPart]:
        return [
            PlacedPart(number, batch, run, part)
            for number, batch in enumerate(shard.state.batches)
            for run, part in zip(_runs_of(batch), batch.parts, strict=True)
        ]

    columns: tuple[Column[PlacedPart], ...] = (
        Column("lower", lambda one: shard_time_text(one.batch.lower), right=True),
        Column("upper", lambda one: shard_time_text(one.batch.upper), right=True),
        Column("run", lambda one: str(one.run), right=True),
        Column("updates", lambda one: f"{one.part.rows:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.part.size_bytes), right=True),
        Column("sorted", lambda one: "yes" if one.part.is_sorted else "no"),
        Column("where", lambda one: one.part.path or "in the state", whole=True),
    )
    show_list(
        on_shard(context, name, work),
        columns,
        fields=PlacedPart.to_dict,
        as_json=as_json,
        none_yet=f"The shard {name!r} is empty: it has no parts.",
    )


def _runs_of(batch: Batch) -> list[int]:
    """Return the run of each part of a batch."""
    return [run for run, count in enumerate(batch.runs) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A part with its place: the number of its batch, the batch, and its run."""

    number: int
    batch: Batch
    run: int
    part: Part

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        from tidelog.persist.format.part import decode_bounds

        part = self.part
        return {
            "batch": self.number,
            "lower": self.batch.lower,
            "upper": self.batch.upper,
            "run": self.run,
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


def usage(context: typer.Context, name: ShardName, as_json: AsJson = False) -> None:
    """List the objects of a shard by kind. Each object counts once.

    live: the state names it. gone: a merge replaced it, and collect will delete it. young: no state
    names it yet. dead: no state will ever name it. other: it is not of the shard.
    """

    async def work(shard: Shard) -> ShardUsage:
        from tidelog.persist.maintenance.sweeper import usage_of_shard

        return await usage_of_shard(shard)

    found = on_shard(context, name, work)
    lines: list[Field] = [
        (kind.value, f"{count_text(count, 'object')}, {bytes_text(found.size_bytes[kind])}")
        for kind, count in found.objects.items()
    ]
    total = (
        f"{count_text(sum(found.objects.values()), 'object')}, {bytes_text(found.stored_bytes)}: "
        f"{dollars_text(found.dollars_a_month)} a month"
    )
    lines += [("total", total), ("in the state", bytes_text(found.inline_bytes))]
    fields = {"shard": name, **usage_fields(found), "dead": list(found.dead)}
    show(fields, lines, as_json=as_json)


def usage_fields(usage: ShardUsage) -> dict[str, object]:
    """Return the JSON fields of the counts and sizes of objects."""
    return {
        "objects": {kind.value: count for kind, count in usage.objects.items()},
        "bytes": {kind.value: size for kind, size in usage.size_bytes.items()},
        "inline_bytes": usage.inline_bytes,
        "stored_bytes": usage.stored_bytes,
        "storage_dollars_a_month": usage.dollars_a_month,
    }


def state(
    context: typer.Context,
    name: ShardName,
    *,
    seqno: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="The number of the commit (seqno). The default is the newest."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole state of a shard after one of its commits, as one JSON object."""

    async def work(shard: Shard) -> dict[str, object]:
        from tidelog.machine.past import state_at

        at = int(shard.machine.seqno) if seqno is None else seqno
        found = shard.state if seqno is None else await state_at(shard.machine, seqno)
        return {
            "shard": name,
            "seqno": at,
            **_plain_fields(found, [field.name for field in fields(found)]),
        }

    found = on_shard(context, name, work)
    text = json.dumps(found, indent=2, ensure_ascii=False)
    show(found, partial(write_text, f"{text}\n"), as_json=as_json)


def diffs(
    context: typer.Context,
    name: ShardName,
    *,
    start: Annotated[
        int,
        typer.Option("--from", min=1, metavar="N", help="The number of the first commit."),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Show the stored commits of a shard's state, oldest first, one JSON object per commit.

    The list begins at the oldest stored copy of the whole state (rollup). 'tidelog collect' deletes
    earlier commits. For the changes of the rows: 'tidelog shard changes'.
    """
    from tidelog.persist.states.state import Diff

    async def work(shard: Shard) -> list[PastRecord[Diff]]:
        from tidelog.machine.past import kept_records

        return await kept_records(shard.machine, start)

    objects, lines = [], []
    for one in on_shard(context, name, work):
        changes = [_changed_fields(diff, Diff()) for diff in one.diffs]
        rollup = None if one.record.rollup is None else one.record.rollup.seqno
        place = {"seqno": one.seqno, "at_us": one.record.at_us, "rollup": rollup}
        objects.append({**place, "floor": one.record.floor, "changes": changes})
        rolled = "" if rollup is None else f", rollup of {rollup}"
        lines.append(f"{one.seqno}  {time_text(one.record.at_us)}{rolled}\n")
        lines += [f"    {json.dumps(change, ensure_ascii=False)}\n" for change in changes]
    if not objects:
        say(f"The shard {name!r} has no commit {start} yet, and no later one.")
    show(objects, partial(write_text, "".join(lines)), as_json=as_json)


def _plain(value: object, *, name: str = "") -> object:
    """Return a value for JSON: bytes in hex, a schema as its columns, a batch as its totals."""
    from tidelog.persist.states.batch import Batch, Spine

    if isinstance(value, bytes):
        return _columns(value) if name == "schema" and value else value.hex()
    if isinstance(value, Batch):
        told = {n: _plain(getattr(value, n)) for n in value.__struct_fields__ if n != "packed"}
        return {**_without_nothing(told), "parts": len(value.parts)}
    if isinstance(value, Spine | tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(n): _plain(one) for n, one in value.items()}
    if isinstance(value, msgspec.Struct):
        return _plain_fields(value, value.__struct_fields__)
    if is_dataclass(value):
        return _plain_fields(value, [field.name for field in fields(value)])
    return value


def _plain_fields(value: object, names: Iterable[str]) -> dict[str, object]:
    """Return the named fields of a value, converted by `_plain`."""
    return _without_nothing({name: _plain(getattr(value, name), name=name) for name in names})


def _changed_fields(value: msgspec.Struct, nothing: msgspec.Struct) -> dict[str, object]:
    """Return the fields in which a value differs from ``nothing``, converted by `_plain`."""
    names = [n for n in value.__struct_fields__ if getattr(value, n) != getattr(nothing, n)]
    return {name: _plain(getattr(value, name), name=name) for name in names}


def _without_nothing(told: dict[str, object]) -> dict[str, object]:
    return {name: one for name, one in told.items() if name != "extra" or one}


def _columns(schema: bytes) -> list[dict[str, object]]:
    from tidelog.collection.formats.types import sql_type_of
    from tidelog.persist.format.schema import decode_schema

    found = decode_schema(schema)
    key = set(found.key)
    return [
        {"name": one.name, "type": sql_type_of(one), "key": one.name in key} for one in found.data
    ]
