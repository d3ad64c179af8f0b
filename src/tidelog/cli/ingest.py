"""``tidelog ingest``: bring the rows of a source into its collection, and show the progress."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from tidelog.cli.command import AsJson, check_follows, interval_us, on_location
from tidelog.cli.engine import Conf, Master, check_engine, parse_conf
from tidelog.cli.ingest_run import IngestOptions, ingest_all, ingest_one
from tidelog.core.arguments import quoted
from tidelog.errors import UsageError

_SIZE: Final = re.compile(r"([0-9][0-9_]*)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


OneSource = Annotated[
    str | None, typer.Argument(metavar="NAME", help="A source; without it, pass --all.")
]
AllOfThem = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Ingest all sources in this process, in turn. The failure of a source does not stop "
        "the others. With --follow, sources created later are ingested too.",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="auto|spark|local",
        help="local: in this process, without Java. auto: spark for 1 GiB or more, else local.",
    ),
]
Interval = Annotated[
    str, typer.Option(metavar="DURATION", help="How often --follow looks for new data.")
]
Heartbeat = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="How often --follow advances the newest complete time of an idle collection, if its "
        "times come from the clock.",
    ),
]
NothingMore = Annotated[
    bool,
    typer.Option(
        "--final",
        help="Treat the present data as complete: take a last record without a line end, and the "
        "rows that --lateness holds back. Later runs still ingest new data.",
    ),
]


Merges = Annotated[
    bool,
    typer.Option(
        "--compact/--no-compact",
        help="Merge due batches in the background of --follow; see tidelog compact.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Stop at rows that do not fit the schema, and at fields outside it. By default, the "
        "rows become bad rows, and the fields are dropped.",
    ),
]


def ingest(
    context: typer.Context,
    name: OneSource = None,
    *,
    every: AllOfThem = False,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the present end of the source (the default).")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Ingest new data as it arrives, until stopped.")
    ] = False,
    engine: EngineName = "auto",
    master: Master = None,
    conf: Conf = None,
    max_bytes_per_tick: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="The approximate size of a tick, the rows of one commit. The default is 64MiB, "
            "and 256MiB on Spark.",
        ),
    ] = None,
    interval: Interval = "5s",
    heartbeat: Heartbeat = "1m",
    strict: Strict = False,
    final: NothingMore = False,
    merges: Merges = True,
    as_json: AsJson = False,
) -> None:
    """Bring the rows of one source, or of all, into collections.

    Each row is ingested exactly once, also if several ingesters run. The process may be killed at
    any time: committed rows stay, and the next run resumes after them. On SIGTERM it stops after
    the present tick. With --json, or if standard error is not a terminal, the command writes a JSON
    object per tick to standard error, and a summary object to standard output.
    """
    check_names(name, every=every)
    if once and follow:
        raise UsageError("--once and --follow exclude each other: pass one")
    settings = parse_conf(conf or [])
    engine = check_engine(engine, master=master, conf=conf or [])
    bytes_max = None if max_bytes_per_tick is None else parse_size(max_bytes_per_tick)
    pause_us = interval_us(context, interval, follow=follow)
    check_follows(context, "heartbeat", follow=follow)
    from tidelog.collection.formats.times import parse_duration_ms

    beat_us = 1_000 * parse_duration_ms(heartbeat, what="--heartbeat")
    options = IngestOptions(
        name=name,
        engine=engine,
        master=master,
        conf=settings,
        follow=follow,
        interval_us=pause_us,
        heartbeat_us=beat_us,
        bytes_max=bytes_max,
        strict=strict,
        final=final,
        merges=follow and merges,
        as_json=as_json,
    )
    if name is None:
        on_location(context, lambda location: ingest_all(location, options))
    else:
        on_location(context, lambda location: ingest_one(location, name, options))


def check_names(name: str | None, *, every: bool) -> None:
    """Check that the command names one source or all.

    Raises:
        UsageError: it names neither, or both.
    """
    if name is None and not every:
        raise UsageError("ingest needs the NAME of a source, or --all for all sources")
    if name is not None and every:
        raise UsageError(f"--all and the name {quoted(name)} exclude each other: pass one")


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
