"""``tidelog ingest``: bring the rows of a source into its collection, and show the progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, Self

import typer

from tidelog.cli.command import AsJson, SourceName, check_follows, interval_us, on_location
from tidelog.cli.engine import Conf, Master, check_engine, choose_engine, parse_conf
from tidelog.cli.output import (
    bytes_text,
    count_text,
    dollars_text,
    print_json,
    say,
    say_json,
    waiting_lines,
)
from tidelog.cli.rounds import stopped_by_sigterm
from tidelog.errors import UsageError
from tidelog.store.prices import storage_dollars_a_month

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from tidelog.collection.ingest.summary import RunProgress, Summary
    from tidelog.location import Location

_SIZE: Final = re.compile(r"([0-9][0-9_]*)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


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
    """Bring the rows of a source into its collection.

    Each row is ingested exactly once, also if several ingesters run. The process may be killed at
    any time: committed rows stay, and the next run resumes after them. On SIGTERM it stops after
    the present tick. With --json, or if standard error is not a terminal, the command writes a JSON
    object per tick to standard error, and a summary object to standard output.
    """
    if once and follow:
        raise UsageError("--once and --follow exclude each other: pass one")
    settings = parse_conf(conf or [])
    engine = check_engine(engine, master=master, conf=conf or [])
    bytes_max = None if max_bytes_per_tick is None else parse_size(max_bytes_per_tick)
    pause_us = interval_us(context, interval, follow=follow)
    check_follows(context, "heartbeat", follow=follow)
    from tidelog.collection.formats.times import parse_duration_ms

    beat_us = 1_000 * parse_duration_ms(heartbeat, what="--heartbeat")
    options = _IngestOptions(
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
    on_location(context, lambda location: _ingest(location, options))


@dataclass(frozen=True, slots=True, kw_only=True)
class _IngestOptions:
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


async def _ingest(location: Location, options: _IngestOptions) -> None:
    from tidelog.cli.engine import LateSession, LateSpark
    from tidelog.collection.ingest.run import run_ingest

    ingester = await location.sources.ingester(
        options.name, bytes_max=options.bytes_max, strict=options.strict, final=options.final
    )
    engine, first = options.engine, None
    if engine == "auto":
        engine, first = await choose_engine(ingester)
    with open_reporter(options.name, engine, as_json=options.as_json) as reporter:
        session = LateSession(master=options.master, conf=options.conf)
        spark = LateSpark(location, reporter.note, session)
        if engine == "spark":
            ingester.engine = spark
            ingester.bytes_max = options.bytes_max or spark.tick_bytes
        try:
            with stopped_by_sigterm() as stopping:
                summary: Summary = await run_ingest(
                    ingester,
                    follow=options.follow,
                    interval_us=options.interval_us,
                    heartbeat_us=options.heartbeat_us,
                    on_tick=reporter.tell,
                    stop=stopping.is_set,
                    first=first,
                    merges=options.merges,
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


class Reporter(Protocol):
    """A reporter of the progress and the result of a run."""

    def note(self, text: str) -> None:
        """Show the reason of a wait; the empty text ends the wait."""
        ...

    def tell(self, progress: RunProgress) -> None:
        """Show the progress of the run."""
        ...

    def finish(self, summary: Summary) -> None:
        """Show the summary of the run."""
        ...


@contextmanager
def open_reporter(source: str, engine: str, *, as_json: bool) -> Iterator[Reporter]:
    """Yield a reporter: JSON lines with ``--json`` or without a terminal, else a bar."""
    if as_json or not sys.stderr.isatty():
        yield LineReporter(source, engine)
        return
    with BarReporter(source, engine) as reporter:
        yield reporter


class LineReporter:
    """A reporter of one JSON line per tick on standard error, and a summary on standard output."""

    def __init__(self, source: str, engine: str) -> None:
        self._names = {"source": source, "engine": engine}

    def note(self, text: str) -> None:
        pass

    def tell(self, progress: RunProgress) -> None:
        if progress.trouble is not None:
            say_json(
                {
                    "trouble": str(progress.trouble),
                    "kind": progress.trouble.kind,
                    "pause_seconds": progress.pause_us / 1e6,
                }
            )
        elif progress.tick is not None:
            say_json(_tick_object(progress))
        for text in progress.warnings:
            say_json({"warning": text})

    def finish(self, summary: Summary) -> None:
        print_json({**self._names, **summary.to_dict(), "complete_to": _complete_to(summary)})


class BarReporter:
    """A reporter with a bar of bytes, the rows, their rate, and the bytes left."""

    def __init__(self, source: str, engine: str) -> None:
        self._source = source
        self._engine = engine
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._source, total=None, told="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        self._update(description=f"{self._source} ({text})" if text else self._source)

    def tell(self, progress: RunProgress) -> None:
        if progress.trouble is not None and self._bar is not None:
            self._bar.console.print(
                f"{progress.trouble}; trying again in {progress.pause_us / 1e6:.1f} s",
                markup=False,
                highlight=False,
            )
            return
        for text in progress.warnings:
            if self._bar is not None:
                self._bar.console.print(f"warning: {text}", markup=False, highlight=False)
        done = progress.so_far
        seconds = max(done.duration_us / 1e6, 1e-3)
        self._update(
            total=max(done.size_bytes + done.left_bytes, 1),
            completed=done.size_bytes if done.size_bytes + done.left_bytes else 1,
            told=f"{count_text(done.rows, 'row')}, {bytes_text(done.size_bytes)}, "
            f"{done.rows / seconds:,.0f} rows/s, {bytes_text(done.left_bytes)} left",
        )

    def finish(self, summary: Summary) -> None:
        say(end_line(self._source, self._engine, summary))
        for line in waiting_lines(summary.waiting):
            say(f"waits until the next run: {line}")
        for line in waiting_lines(summary.notes):
            say(f"noted: {line}")

    def _update(self, **fields: Any) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **fields)


def end_line(source: str, engine: str, summary: Summary) -> str:
    """Return the summary of a run on one line."""
    store, complete_to = summary.store, _complete_to(summary)
    bad = f"{summary.bad:,} bad" + (f" (tidelog read {source}_errors)" if summary.bad else "")
    dropped = ", ".join(f"{name} ({count:,})" for name, count in summary.dropped.items())
    rows, ticks = count_text(summary.rows, "row"), count_text(summary.ticks, "tick")
    where = "on Spark" if engine == "spark" else "in this process"
    told = [f"{source}: {rows} in {ticks} {where}, {summary.late:,} late, {bad}"]
    if dropped:
        told.append(f"dropped fields that the schema lacks: {dropped}")
    told.append(f"complete to {complete_to}" if complete_to else "nothing is complete yet")
    told.append(f"{summary.duration_us / 1e6:.1f} s")
    told.append(
        f"{store.get_count:,} get, {store.put_count:,} put, {store.list_count:,} list, "
        f"{store.delete_count:,} delete, {bytes_text(store.read_bytes)} read, "
        f"{bytes_text(store.written_bytes)} written, {dollars_text(store.dollars)}"
    )
    month = storage_dollars_a_month(summary.live_bytes)
    told.append(f"{bytes_text(summary.live_bytes)} stored: {dollars_text(month)} a month")
    return "; ".join(told)


def _tick_object(progress: RunProgress) -> dict[str, object]:
    tick, done = progress.tick, progress.so_far
    if tick is None:
        return {}
    return {
        "tick": done.ticks,
        "lower": tick.lower,
        "upper": tick.upper,
        "rows": tick.rows,
        "late": tick.late,
        "bad": tick.bad,
        "won": tick.won,
        "dropped": dict(tick.dropped),
        "bytes": tick.size_bytes,
        "store": done.store.to_dict(),
        "left_bytes": done.left_bytes,
        "seconds": round(done.duration_us / 1e6, 3),
    }


def _complete_to(summary: Summary) -> str | None:
    from tidelog.collection.formats.times import format_time

    return None if summary.upper is None else format_time(summary.upper - 1)
