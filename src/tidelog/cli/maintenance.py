"""``tidelog compact``, ``collect``, ``inspect`` and ``scrub``: the maintenance of stored data."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, interval_us, on_location, wait_us
from tidelog.cli.engine import (
    Conf,
    LateChecker,
    LateMerger,
    LateSession,
    Master,
    check_engine,
    parse_conf,
)
from tidelog.cli.keyed.describe import scrubbed_object, tell_scrubbed
from tidelog.cli.output import (
    Field,
    bytes_text,
    count_text,
    dollars_text,
    print_fields,
    say,
    show,
    time_text,
    write_text,
)
from tidelog.cli.rounds import (
    Follow,
    LogTarget,
    ShardNames,
    TargetNames,
    Turn,
    Wait,
    again_and_again,
    maintenance_targets,
)
from tidelog.cli.shard.describe import usage_fields
from tidelog.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tidelog.collection.maintenance import (
        GroupCollection,
        GroupCompaction,
        GroupScrub,
        Maintenance,
        ShardFacts,
        ShardGroup,
    )
    from tidelog.keyed.maintenance.scrub import KeyedScrubReport
    from tidelog.location import Location


def compact(
    context: typer.Context,
    names: TargetNames = None,
    *,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Merge all batches of each shard into one, and erase the bad rows that retention "
            "no longer keeps. By default, merge only groups of many batches of similar size.",
        ),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|local|spark",
            help="spark: run merges of 64 MiB or more in Spark's executors. local: run all merges "
            "in this process. auto: spark with --master or --conf, else local.",
        ),
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    follow: Follow = False,
    interval: Wait = "60s",
    as_json: AsJson = False,
) -> None:
    """Merge the batches of collections and shards, so that reads open fewer objects.

    The contents at every readable time stay the same. A merge drops rows that were deleted before
    the earliest readable time, and writes new objects. The first run of tidelog collect after an
    hour deletes the old objects. In keyed logs, the command compacts new records into runs, and
    drops the segments that the retention does not keep.
    """
    wait = interval_us(context, interval, follow=follow)
    settings = parse_conf(conf or [])
    on_spark = check_engine(engine, master=master, conf=conf or []) == "spark"

    async def work(location: Location) -> None:
        from tidelog.persist.maintenance.compactor import HERE

        async with _late_session(on_spark, master, settings) as session:
            merger = HERE if session is None else LateMerger(location, session)

            async def once(location: Location, turn: Turn) -> None:
                groups, logs = await maintenance_targets(location, names or ())
                done = partial(location.maintenance.compact, full=full, merger=merger)
                async for one in turn.each(groups, done):
                    if one.done.merges or as_json or not follow:
                        show(_object(one), _line(one), as_json=as_json, is_said=True)
                async for log in turn.each(logs, partial(_compact_logs, full=full)):
                    if log.runs or log.retired or as_json or not follow:
                        show(asdict(log), _log_line(log), as_json=as_json, is_said=True)

            await again_and_again(location, once, follow, wait)

    on_location(context, work)


@dataclass(frozen=True, slots=True)
class _LogCompaction:
    """The numbers of runs written and of segments retired in one keyed log."""

    name: str
    runs: int
    retired: int


async def _compact_logs(logs: Sequence[LogTarget], *, full: bool) -> AsyncIterator[_LogCompaction]:
    for one in logs:
        async with one.opened() as log:
            runs = await log.compact(full=full)
            yield _LogCompaction(one.name, runs, await log.retire())


@asynccontextmanager
async def _late_session(
    on_spark: bool, master: str | None, conf: Mapping[str, str]
) -> AsyncGenerator[LateSession | None, None]:
    if not on_spark:
        yield None
        return
    session = LateSession(master=master, conf=conf)
    try:
        yield session
    finally:
        await session.close()


def _object(one: GroupCompaction) -> dict[str, object]:
    done = one.done
    return {
        "name": one.name,
        "merges": done.merges,
        "overtaken": done.overtaken,
        "updates_read": done.rows_read,
        "updates_written": done.rows_written,
        "bytes_read": done.bytes_read,
        "bytes_written": done.bytes_written,
        "batches": one.batches,
    }


def _log_line(one: _LogCompaction) -> str:
    told = f"{count_text(one.runs, 'run')} written" if one.runs else "nothing to compact"
    return f"{one.name}: {told}" + (
        f", {count_text(one.retired, 'segment')} retired" if one.retired else ""
    )


def _line(one: GroupCompaction) -> str:
    done, has = one.done, "1 batch" if one.batches == 1 else f"{one.batches:,} batches"
    if not done.merges:
        return f"{one.name}: nothing to merge, {has}"
    return (
        f"{one.name}: {count_text(done.merges, 'merge')} of "
        f"{count_text(done.rows_read, 'update')} to {done.rows_written:,}, "
        f"{bytes_text(done.bytes_read)} to {bytes_text(done.bytes_written)}; {has} now"
    )


def collect(
    context: typer.Context,
    names: TargetNames = None,
    *,
    grace: Annotated[
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
            "of states. Two sweeps during one write may delete the objects of that write; the "
            "writer then writes them again. Keyed logs are always swept.",
        ),
    ] = False,
    follow: Follow = False,
    interval: Wait = "60s",
    as_json: AsJson = False,
) -> None:
    """Delete the objects that merges of batches replaced, and those of dropped tables and sources.

    With names, the command deletes no objects of dropped tables and sources. All readable times
    stay readable.
    """
    from tidelog.collection.formats.times import duration_text

    wait = interval_us(context, interval, follow=follow)
    after_us = wait_us(grace, "--grace")

    async def once(location: Location, turn: Turn) -> None:
        maintenance = location.maintenance
        groups, logs = await maintenance_targets(location, names or (), dropped=True)

        def work(some: Sequence[ShardGroup]) -> AsyncIterator[GroupCollection]:
            return maintenance.collect(some, after_us=after_us, sweeps=sweep)

        def told(one: GroupCollection) -> None:
            if one.deleted or as_json or not follow:
                lines = "\n".join(_lines(one, duration_text(after_us // 1_000)))
                show(_fields(one), lines, as_json=as_json, is_said=True)

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

    on_location(context, lambda location: again_and_again(location, once, follow, wait))


def _fields(one: GroupCollection) -> dict[str, object]:
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


def inspect(
    context: typer.Context,
    names: ShardNames = None,
    *,
    follow: Follow = False,
    interval: Wait = "60s",
    as_json: AsJson = False,
) -> None:
    """Show the batches, holds and objects of collections and shards.

    Without names, the command shows all of them. Then it lists the commands that were begun and not
    ended, each with its remedy. It counts each object once: live (the state names it), gone (a
    merge replaced it), young (no state names it yet), dead (no state will ever name it: tidelog
    collect --sweep) or other.
    """
    wait = interval_us(context, interval, follow=follow)
    shown = 0

    def write(fields: Sequence[Field]) -> None:
        nonlocal shown
        if shown:
            typer.echo()
        print_fields(fields)
        shown += 1

    async def once(location: Location, turn: Turn) -> None:
        from tidelog.cli.hold import purposes_in

        maintenance = location.maintenance
        groups = await maintenance.groups(names or (), dropped=True)
        purposes = await purposes_in(location)
        async for one in turn.each(groups, maintenance.inspect):
            text = partial(write, _inspect_fields(one, purposes))
            show(_inspect_object(one, purposes), text, as_json=as_json)
        if not names:
            for begun in await maintenance.unfinished():
                fields: list[Field] = [("unfinished", begun.left), ("remedy", begun.remedy)]
                show(asdict(begun), partial(write, fields), as_json=as_json)

    on_location(context, lambda location: again_and_again(location, once, follow, wait))


def _inspect_object(one: ShardFacts, purposes: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": one.name,
        "shard": one.shard,
        "role": one.role,
        "since": one.since,
        "upper": one.upper,
        "seqno": one.seqno,
        "updates": one.updates,
        "batches": [
            {"lower": b.lower, "upper": b.upper, "since": b.since, "updates": b.rows}
            | {"bytes": b.size_bytes, "parts": len(b.parts)}
            for b in one.batches
        ],
        "holds": {name: hold.since for name, hold in sorted(one.holds.items())},
        "purposes": dict(_purposes_of(one, purposes)),
        **usage_fields(one.usage),
    }


def _purposes_of(one: ShardFacts, purposes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the names of holds and their purposes, if these are known."""
    for name, hold in sorted(one.holds.items()):
        purpose = hold.purpose or purposes.get(name)
        if purpose:
            yield name, purpose


def _inspect_fields(one: ShardFacts, purposes: Mapping[str, str]) -> list[Field]:
    from tidelog.collection.formats.times import format_time
    from tidelog.collection.maintenance import SHARD_ROLE

    def when(time: int | None) -> str:
        if time is None:
            return "the end"
        # Times of a user's own shards are plain numbers: only the user knows their unit.
        return str(time) if one.role == SHARD_ROLE else format_time(time)

    dollars = dollars_text(one.usage.dollars_a_month)
    objects = [
        f"{kind.value}: {count:,}, {bytes_text(one.usage.size_bytes[kind])}"
        for kind, count in one.usage.objects.items()
        if count
    ]
    batches = [
        f"{when(b.lower)} to {when(b.upper)}: {count_text(b.rows, 'update')} in "
        f"{count_text(len(b.parts), 'part')}, {bytes_text(b.size_bytes)}"
        for b in one.batches
    ]
    named = {name: f"{name} ({why})" for name, why in _purposes_of(one, purposes)}
    holds = [f"{named.get(n, n)}: {when(hold.since)}" for n, hold in sorted(one.holds.items())]
    return [
        ("name", one.name if one.name.startswith("(") else f"{one.name}: {one.role}"),
        ("shard", one.shard),
        ("since, upper", f"{when(one.since)}, {when(one.upper)}"),
        ("updates", f"{one.updates:,}"),
        ("batches", batches or "none"),
        ("holds", holds or "none"),
        ("objects", objects or "none"),
        ("storage", f"{bytes_text(one.usage.stored_bytes)}: {dollars} a month"),
        ("in the state", bytes_text(one.usage.inline_bytes)),
    ]


def scrub(
    context: typer.Context,
    names: TargetNames = None,
    *,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|local|spark",
            help="spark: read shards of 8 MiB or more in Spark's executors. local: read all in "
            "this process. auto: spark with --master or --conf, else local.",
        ),
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    follow: Follow = False,
    interval: Wait = "1h",
    as_json: AsJson = False,
) -> None:
    """Read all stored data, check it, and report all damage.

    The command reads all objects of collections, shards and keyed logs, and writes nothing. It
    compares checksums, row counts, times and keys with the recorded state, and each stored state
    with the newest one. It reports each damaged object and the remedy. Logs without keys have their
    own command: tidelog log scrub. Exit status: 1 if an object is damaged.
    """
    wait = interval_us(context, interval, follow=follow)
    settings = parse_conf(conf or [])
    on_spark = check_engine(engine, master=master, conf=conf or []) == "spark"

    async def work(location: Location) -> None:
        async with _late_session(on_spark, master, settings) as session:
            checker = None if session is None else LateChecker(location, session)

            async def once(location: Location, turn: Turn) -> None:
                groups, logs = await maintenance_targets(location, names or ())
                done = partial(location.maintenance.scrub, checker=checker)
                async for one in turn.each(groups, done):
                    if not one.found.is_clean:
                        turn.damaged.append(one.name)
                    show(_scrub_object(one), partial(_tell, one, quiet=follow), as_json=as_json)
                await _scrub_keyed(turn, logs, quiet=follow, as_json=as_json)
                if not names:
                    await _check_transactions(location, turn)

            await again_and_again(location, once, follow, wait)

    on_location(context, work)


async def _scrub_keyed(
    turn: Turn, logs: Sequence[LogTarget], *, quiet: bool, as_json: bool
) -> None:
    async for log in turn.each(logs, _scrub_logs):
        if not log.found.is_clean:
            turn.damaged.append(log.name)
        fields = {"name": log.name, **scrubbed_object(log.found)}
        text = partial(tell_scrubbed, log.found, f"{log.name}: ", quiet=quiet)
        show(fields, text, as_json=as_json)


async def _check_transactions(location: Location, turn: Turn) -> None:
    from tidelog.collection.maintenance import transactions_label

    for transactions in await location.maintenance.transactions():
        try:
            await transactions.refresh()
        except CorruptionError as error:
            turn.damaged.append(transactions_label(transactions.name))
            say(f"tidelog: {transactions_label(transactions.name)}: {error}")


@dataclass(frozen=True, slots=True)
class _ScrubbedLog:
    name: str
    found: KeyedScrubReport


async def _scrub_logs(logs: Sequence[LogTarget]) -> AsyncIterator[_ScrubbedLog]:
    for one in logs:
        async with one.opened() as log:
            yield _ScrubbedLog(one.name, await log.scrub())


def _scrub_object(one: GroupScrub) -> dict[str, object]:
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
