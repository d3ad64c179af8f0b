"""Reports of ``tidelog ingest --all``: a bar or JSON lines for each source, and one summary."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.cli.ingest_report import (
    bar_fields,
    cost_texts,
    end_line,
    open_bars,
    progress_objects,
    progress_texts,
    summary_object,
)
from tidelog.cli.output import count_text, print_json, say, say_json, waiting_lines
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from tidelog.collection.ingest.all_sources import AllResults
    from tidelog.collection.ingest.summary import RunProgress


class AllReporter(Protocol):
    """A reporter of the runs of all sources."""

    engines: dict[str, str]  # The engine of each source, by name.

    def note(self, text: str) -> None:
        """Show the reason of a wait; the empty text ends the wait."""
        ...

    def tell(self, name: str, progress: RunProgress) -> None:
        """Show the progress of a source."""
        ...

    def fail(self, name: str | None, error: TidelogError, pause_us: int) -> None:
        """Show the error of a source, or of the catalog, and the pause before the next try."""
        ...

    def finish(self, results: AllResults) -> None:
        """Show the summary of all sources."""
        ...


@contextmanager
def open_all_reporter(*, as_json: bool) -> Iterator[AllReporter]:
    """Yield a reporter: JSON lines with ``--json`` or without a terminal, else bars."""
    if as_json or not sys.stderr.isatty():
        yield AllLines()
        return
    bars = AllBars(open_bars())
    try:
        yield bars
    finally:
        bars.bars.stop()


@dataclass(slots=True)
class AllLines:
    """A reporter of JSON lines that name their source, and one summary on standard output."""

    engines: dict[str, str] = field(default_factory=dict)

    def note(self, text: str) -> None:
        pass

    def tell(self, name: str, progress: RunProgress) -> None:
        for line in progress_objects(progress):
            say_json({"source": name, **line})

    def fail(self, name: str | None, error: TidelogError, pause_us: int) -> None:
        told = {"source": name, "error": str(error), "kind": error.kind}
        say_json({**told, "pause_seconds": pause_us / 1e6} if pause_us else told)

    def finish(self, results: AllResults) -> None:
        total = results.total().to_dict()
        for one in ("upper", "waiting", "notes"):
            del total[one]  # Only a single source has these.
        sources = {
            name: {"engine": self.engines[name], **summary_object(summary)}
            for name, summary in results.summaries.items()
        }
        failed = {
            name: {"error": str(error), "kind": error.kind}
            for name, error in results.failed.items()
        }
        print_json({**total, "sources": sources, "failed": failed})


@dataclass(slots=True)
class AllBars:
    """A reporter with a bar for each source that has input left, and one line each at the end."""

    bars: Bars
    engines: dict[str, str] = field(default_factory=dict)
    _tasks: dict[str, TaskID] = field(default_factory=dict)

    def note(self, text: str) -> None:
        if text:
            self._print(text)

    def tell(self, name: str, progress: RunProgress) -> None:
        for text in progress_texts(progress):
            self._print(f"{name}: {text}")
        if progress.trouble is not None:
            return
        if name not in self._tasks:
            self._tasks[name] = self.bars.add_task(name, total=None, told="")
        fields: dict[str, Any] = bar_fields(progress.so_far)
        is_busy = progress.so_far.left_bytes > 0
        self.bars.update(self._tasks[name], visible=is_busy, **fields)

    def fail(self, name: str | None, error: TidelogError, pause_us: int) -> None:
        again = f"; trying again in {pause_us / 1e6:g} s" if pause_us else ""
        self._print(f"{name}: {error}{again}" if name else f"{error}{again}")
        if name in self._tasks:
            self.bars.update(self._tasks[name], visible=False)

    def finish(self, results: AllResults) -> None:
        if not results.summaries and not results.failed:
            say("No sources to ingest. Create one: tidelog source create NAME --files FILES")
            return
        for name, summary in results.summaries.items():
            say(end_line(name, self.engines[name], summary))
            for line in waiting_lines(summary.waiting):
                say(f"{name}: waits until the next run: {line}")
            for line in waiting_lines(summary.notes):
                say(f"{name}: noted: {line}")
        total, count = results.total(), count_text(len(results.summaries), "source")
        rows, ticks = count_text(total.rows, "row"), count_text(total.ticks, "tick")
        told = f"{count}: {rows} in {ticks}, {total.late:,} late, {total.bad:,} bad"
        say("; ".join([told, *cost_texts(total)]))

    def _print(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False)
