"""``tidelog ingest``: bring the rows of a source into its collection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, SourceName, on_location
from tidelog.cli.engine_choice import Conf, Master, check_engine, choose_engine, parse_conf
from tidelog.cli.maintenance import stopped_by_sigterm
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.collection.ingest.summary import Summary
    from tidelog.location import Location

_SIZE: Final = re.compile(r"([0-9][0-9_]*)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


Interval = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="How often --follow looks for new data.")
]
Heartbeat = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="How often --follow advances an idle collection, if its times come from the clock.",
    ),
]
NothingMore = Annotated[
    bool,
    typer.Option(
        "--final",
        help="The source is complete: take a last record without a line end, and the rows "
        "that --lateness holds back.",
    ),
]


Merges = Annotated[
    bool,
    typer.Option(
        "--compact/--no-compact",
        help="Merge due batches in the background of --follow; see tidelog compact.",
    ),
]


def ingest(
    context: typer.Context,
    name: SourceName,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the present end of the source (the default).")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Ingest new data as it arrives, until stopped.")
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|spark|local",
            help="local: in this process, without Java. auto: spark for 1 GiB or more, else local.",
        ),
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    max_bytes_per_tick: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="The approximate size of a tick, such as 64MiB. The default on Spark is 256MiB.",
        ),
    ] = None,
    interval: Interval = 5.0,
    heartbeat: Heartbeat = "1m",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at rows that do not fit the schema.")
    ] = False,
    final: NothingMore = False,
    merges: Merges = True,
    as_json: AsJson = False,
) -> None:
    """Bring the rows of a source into its collection.

    Each row is ingested exactly once, also if several ingesters run. The process may be killed at
    any time: committed rows stay, and the next run resumes after them. On SIGTERM it stops after
    the present tick. With --json, or if standard error is not a terminal, the command writes a JSON
    object per tick to standard error, and a summary object to standard output.
    """
    if once and follow:
        raise UsageError("--once and --follow exclude each other: give one")
    settings = parse_conf(conf or [])
    engine = check_engine(engine, master=master, conf=conf or [])
    bytes_max = None if max_bytes_per_tick is None else parse_size(max_bytes_per_tick)
    interval_us = int(interval * 1e6)
    from tidelog.collection.formats.times import parse_duration_ms

    beat_us = 1_000 * parse_duration_ms(heartbeat, what="--heartbeat")
    wanted = _Wanted(
        name=name,
        engine=engine,
        master=master,
        conf=settings,
        follow=follow,
        interval_us=interval_us,
        heartbeat_us=beat_us,
        bytes_max=bytes_max,
        strict=strict,
        final=final,
        merges=follow and merges,
        as_json=as_json,
    )
    on_location(context, lambda location: _ingest(location, wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The arguments of the command, checked."""

    name: str
    engine: str
    master: str | None
    conf: Mapping[str, str]
    follow: bool
    interval_us: int
    heartbeat_us: int
    bytes_max: int | None
    strict: bool
    final: bool
    merges: bool
    as_json: bool


async def _ingest(location: Location, wanted: _Wanted) -> None:
    from tidelog.cli.late_spark import LateSession, LateSpark
    from tidelog.cli.progress import open_reporter
    from tidelog.collection.ingest.run import run_ingest

    ingester = await location.sources.ingester(
        wanted.name, bytes_max=wanted.bytes_max, strict=wanted.strict, final=wanted.final
    )
    engine, first = wanted.engine, None
    if engine == "auto":
        engine, first = await choose_engine(ingester)
    with open_reporter(wanted.name, engine, as_json=wanted.as_json) as reporter:
        session = LateSession(master=wanted.master, conf=wanted.conf)
        spark = LateSpark(location, reporter.note, session)
        if engine == "spark":
            ingester.engine = spark
            ingester.bytes_max = wanted.bytes_max or spark.tick_bytes
        try:
            with stopped_by_sigterm() as stopping:
                summary: Summary = await run_ingest(
                    ingester,
                    follow=wanted.follow,
                    interval_us=wanted.interval_us,
                    heartbeat_us=wanted.heartbeat_us,
                    on_tick=reporter.tell,
                    stop=stopping.is_set,
                    first=first,
                    merges=wanted.merges,
                )
        finally:
            await session.close()
    reporter.finish(summary)


def parse_size(text: str, what: str = "--max-bytes-per-tick") -> int:
    """Parse a number of bytes: 1000000, 64MiB (powers of 1024), 64MB (of 1000); 64M is 64MiB.

    Raises:
        UsageError: the text is not a number of bytes, or is zero.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found.group(1)):
        raise UsageError(
            f"{what} {text[:200]!r} is not a number of bytes: write 64MiB, or 67108864"
        )
    unit, binary = found.group(2), found.group(3)
    decimal = unit is not None and not binary and text.strip().lower().endswith("b")
    size: int = int(found.group(1))
    if unit is not None:
        size *= (1_000 if decimal else 1_024) ** _POWERS[unit.lower()]
    return size
