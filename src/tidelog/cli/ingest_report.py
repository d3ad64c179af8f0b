"""Reports of ``tidelog ingest`` with one source: progress bars, JSON lines, and the summary."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from tidelog.cli.output import (
    bytes_text,
    count_text,
    dollars_text,
    print_json,
    say,
    say_json,
    waiting_lines,
)
from tidelog.store.prices import storage_dollars_a_month

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from tidelog.collection.ingest.summary import RunProgress, Summary


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
        for line in progress_objects(progress):
            say_json(line)

    def finish(self, summary: Summary) -> None:
        print_json({**self._names, **summary_object(summary)})


class BarReporter:
    """A reporter with a bar of bytes, the rows, their rate, and the bytes left."""

    def __init__(self, source: str, engine: str) -> None:
        self._source = source
        self._engine = engine
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar = open_bars()
        self._task = self._bar.add_task(self._source, total=None, told="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        self._update(description=f"{self._source} ({text})" if text else self._source)

    def tell(self, progress: RunProgress) -> None:
        if self._bar is not None:
            for text in progress_texts(progress):
                self._bar.console.print(text, markup=False, highlight=False)
        if progress.trouble is None:
            self._update(**bar_fields(progress.so_far))

    def finish(self, summary: Summary) -> None:
        say(end_line(self._source, self._engine, summary))
        for line in waiting_lines(summary.waiting):
            say(f"waits until the next run: {line}")
        for line in waiting_lines(summary.notes):
            say(f"noted: {line}")

    def _update(self, **fields: Any) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **fields)


def open_bars() -> Bar:
    """Return progress bars on standard error, which `stop` removes."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bars.start()
    return bars


def bar_fields(done: Summary) -> dict[str, Any]:
    """Return the fields of a progress bar."""
    seconds = max(done.duration_us / 1e6, 1e-3)
    return {
        "total": max(done.size_bytes + done.left_bytes, 1),
        "completed": done.size_bytes if done.size_bytes + done.left_bytes else 1,
        "told": f"{count_text(done.rows, 'row')}, {bytes_text(done.size_bytes)}, "
        f"{done.rows / seconds:,.0f} rows/s, {bytes_text(done.left_bytes)} left",
    }


def progress_texts(progress: RunProgress) -> list[str]:
    """Return the error and the warnings of a progress, as lines for people."""
    if progress.trouble is not None:
        return [f"{progress.trouble}; trying again in {progress.pause_us / 1e6:.1f} s"]
    return [f"warning: {text}" for text in progress.warnings]


def progress_objects(progress: RunProgress) -> Iterator[dict[str, object]]:
    """Yield the JSON lines of a progress."""
    if progress.trouble is not None:
        yield {
            "trouble": str(progress.trouble),
            "kind": progress.trouble.kind,
            "pause_seconds": progress.pause_us / 1e6,
        }
    elif progress.tick is not None:
        yield _tick_object(progress)
    for text in progress.warnings:
        yield {"warning": text}


def summary_object(summary: Summary) -> dict[str, Any]:
    """Return the JSON object of a summary."""
    return {**summary.to_dict(), "complete_to": _complete_to(summary)}


def end_line(source: str, engine: str, summary: Summary) -> str:
    """Return the summary of a run on one line."""
    complete_to = _complete_to(summary)
    bad = f"{summary.bad:,} bad" + (f" (tidelog read {source}_errors)" if summary.bad else "")
    dropped = ", ".join(f"{name} ({count:,})" for name, count in summary.dropped.items())
    rows, ticks = count_text(summary.rows, "row"), count_text(summary.ticks, "tick")
    where = "on Spark" if engine == "spark" else "in this process"
    told = [f"{source}: {rows} in {ticks} {where}, {summary.late:,} late, {bad}"]
    if dropped:
        told.append(f"dropped fields that the schema lacks: {dropped}")
    told.append(f"complete to {complete_to}" if complete_to else "nothing is complete yet")
    return "; ".join([*told, *cost_texts(summary)])


def cost_texts(summary: Summary) -> list[str]:
    """Return the duration of a run, its requests and the size of its shards, with their prices."""
    store, month = summary.store, storage_dollars_a_month(summary.live_bytes)
    requests = (
        f"{store.get_count:,} get, {store.put_count:,} put, {store.list_count:,} list, "
        f"{store.delete_count:,} delete, {bytes_text(store.read_bytes)} read, "
        f"{bytes_text(store.written_bytes)} written, {dollars_text(store.dollars)}"
    )
    stored = f"{bytes_text(summary.live_bytes)} stored: {dollars_text(month)} a month"
    return [f"{summary.duration_us / 1e6:.1f} s", requests, stored]


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
