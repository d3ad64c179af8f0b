"""Descriptions of sources and of their status, for people and for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli.collection import kept_text, schema_lines
from tidelog.cli.output import Field, bytes_text, count_text, waiting_lines
from tidelog.cli.source_options import csv_fields, csv_text

if TYPE_CHECKING:
    from tidelog.collection.catalog.catalog import RenditionInfo, SourceInfo
    from tidelog.collection.ingest.status import SourceStatus
    from tidelog.location import Location


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The description of a source; ``files`` are URLs without credentials."""

    info: SourceInfo
    rendition: RenditionInfo
    files: list[str] | None

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Return the names and the types of the columns."""
        from tidelog.collection.formats.types import sql_type_of

        return [(f.name, sql_type_of(f)) for f in self.rendition.data_schema.data]

    @property
    def schema_lines(self) -> list[str]:
        """Return a line for each column, for people."""
        return schema_lines(self.columns, self.info.key)

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings, without credentials."""
        from tidelog.store.urls import without_secrets

        return {name: without_secrets(value) for name, value in self.info.settings.items()}

    @property
    def reads(self) -> str:
        """Return the input of the source as text: its files, or its kind and settings."""
        if self.files is not None:
            return ", ".join(self.files)
        if self.info.kind == "collection":
            column = self.settings.get("column")
            read = f"the collection {self.settings['collection']}"
            return read if column is None else f"{read}, column {column}"
        settings = (f"{name}={value}" for name, value in sorted(self.settings.items()))
        return " ".join([self.info.kind, *settings])

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        info = self.info
        return {
            "name": info.name,
            "id": info.id,
            "kind": info.kind,
            "files": self.files,
            "settings": self.settings,
            "format": info.format,
            "envelope": info.envelope,
            "key": list(info.key),
            "time_column": info.time_column,
            "time_unit": info.time_unit,
            "max_ahead_ms": info.max_ahead_ms,
            "lateness_ms": info.lateness_ms,
            "retain_ms": info.retain_ms,
            "delete_when": info.delete_when,
            "evolve": info.evolve is True,
            "csv": None if info.dialect is None else csv_fields(info.dialect),
            "schema": [{"name": name, "type": kind} for name, kind in self.columns],
            "rendition": info.rendition,
            "shards": len(self.rendition.shards),
            "created": _iso(info.created_us),
        }


def describe_source(location: Location, info: SourceInfo, rendition: RenditionInfo) -> SourceFacts:
    """Return the description of a source."""
    from tidelog.collection.catalog.catalog import FILES
    from tidelog.store.urls import open_store

    if info.kind != FILES:
        return SourceFacts(info, rendition, None)
    # The catalog's URL may hold credentials; the store's URL has none.
    place, mark, query = open_store(info.url, clock=location.clock).url.partition("?")
    files = [f"{place.rstrip('/')}/{one}{mark}{query}" for one in info.patterns]
    return SourceFacts(info, rendition, files)


def times_from(info: SourceInfo) -> str:
    """Return the origin of the rows' times in a few words."""
    if info.is_clocked:
        return "the clock"
    return info.time_column or f"the collection {info.settings['collection']}"


def _times_text(found: SourceFacts) -> str:
    """Return the origin of the rows' times as text: a column, the clock or another collection."""
    info = found.info
    if info.time_column is None:
        return times_from(info)
    from tidelog.collection.formats.times import duration_text

    has_unit = dict(found.columns)[info.time_column].startswith(("TIMESTAMP", "DATE"))
    text = info.time_column if has_unit else f"{info.time_column} (integers in {info.time_unit})"
    held_ms, ahead_ms = info.lateness_ms, info.max_ahead_ms
    held = f", held back by {duration_text(held_ms)} (--lateness)" if held_ms else ""
    ahead = "any" if ahead_ms is None else duration_text(ahead_ms)
    return f"{text}{held}, --max-ahead {ahead}"


def source_fields(found: SourceFacts) -> list[Field]:
    """Return the fields that describe a source to people."""
    info = found.info
    csv = f" ({csv_text(info.dialect)})" if info.dialect is not None else ""
    return [
        ("name", info.name),
        ("reads", found.reads) if found.files is None else ("files", found.files),
        ("format", info.format + csv),
        ("envelope", info.envelope),
        ("key", ", ".join(info.key) or "none"),
        ("times from", _times_text(found)),
        ("keeps", kept_text(info.retain_ms)),
        ("delete when", info.delete_when or "never"),
        (
            "new fields",
            "become columns (--evolve)" if info.evolve is True else "are dropped, and counted",
        ),
        ("schema", found.schema_lines),
        ("shards", str(len(found.rendition.shards))),
        ("created", _iso(info.created_us)),
    ]


def status_object(found: SourceStatus) -> dict[str, object]:
    """Return the JSON object of a source's status."""
    run = found.run
    return {
        "name": found.name,
        "upper": found.upper,
        "complete_to": _complete_to(found.upper),
        "lag_bytes": found.left_bytes,
        "lateness_ms": found.lateness_ms,
        "retain_ms": found.retain_ms,
        "since": found.since,
        "held_bytes": found.held_bytes,
        "files": found.files,
        "reached": dict(found.reached),
        "lag": dict(found.lag),
        "late": found.late,
        "bad": found.bad,
        "notes": dict(found.notes),
        "skipped": {path: _iso(since) for path, since in sorted(found.skipped.items())},
        "source_error": found.trouble,
        "run": run
        and {
            "started": _iso(run.started_us),
            "updated": _iso(run.updated_us),
            "running": run.running,
            "engine": run.engine,
            "upper": run.upper,
            "ticks": run.ticks,
            "rows": run.rows,
            "late": run.late,
            "bad": run.bad,
            "waiting": run.waiting,
            "notes": run.notes,
            "dropped": run.dropped,
            "error": run.error,
            "error_kind": run.error_kind,
        },
    }


def status_fields(found: SourceStatus) -> list[Field]:
    """Return the fields of a source's status for people."""
    lag = found.trouble or "unknown"
    if found.left_bytes is not None:
        lag = bytes_text(found.left_bytes) if found.left_bytes else "none"
    merges = {} if found.run is None else found.run.merges
    bad = f"{found.bad:,}"
    if found.bad:
        bad += f" (see them: tidelog read {found.name}_errors)"
    return [
        ("name", found.name),
        ("complete to", _complete_to(found.upper) or "nothing yet"),
        ("keeps", f"{kept_text(found.retain_ms)}; earliest readable time: {_since(found.since)}"),
        ("lag", lag),
        *_reached_fields(found),
        *_held_fields(found),
        ("late rows", f"{found.late:,}"),
        ("bad rows", bad),
        ("skipped", [f"{path} (since {_iso(at)})" for path, at in sorted(found.skipped.items())]),
        ("waiting", waiting_lines({} if found.run is None else found.run.waiting)),
        ("dropped fields", _dropped_text(found)),
        ("noted", waiting_lines({**found.notes, **merges})),
        ("last run", _run_lines(found)),
    ]


def _dropped_text(found: SourceStatus) -> str:
    """Return the fields of the last run that the schema lacks, with their counts."""
    dropped = {} if found.run is None else found.run.dropped
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(dropped.items())) or "none"


def _held_fields(found: SourceStatus) -> list[Field]:
    if not found.lateness_ms:
        return []
    from tidelog.collection.formats.times import duration_text

    lateness = duration_text(found.lateness_ms)
    until = f"until rows {lateness} newer arrive, or: tidelog ingest {found.name} --final"
    if not found.held_bytes:
        return [("held back", "nothing")]
    what = f"rows newer than 'complete to', in {bytes_text(found.held_bytes)} of input"
    return [("held back", f"{what}, {until}")]


def _reached_fields(found: SourceStatus) -> list[Field]:
    if found.files is not None:
        return [("files", f"{found.files:,}")]
    reached = found.reached.items()
    if found.kind == "collection":  # The addresses are times, and the last one is complete.
        return [("read to", [f"{path}: {_complete_to(limit)}" for path, limit in reached])]
    paths = sorted({*found.reached, *found.lag})
    return [("read to", [_reached_text(path, found) for path in paths])]


def _reached_text(path: str, found: SourceStatus) -> str:
    at, left = found.reached.get(path), found.lag.get(path)
    told = f"{path}: " + ("nothing yet" if at is None else f"{at:,}")
    return told if not left else f"{told}, {left:,} left"


def _run_lines(found: SourceStatus) -> list[str]:
    run = found.run
    if run is None:
        return []
    did = f"{count_text(run.rows, 'row')} in {count_text(run.ticks, 'tick')} on {run.engine}"
    lines = [f"started {_iso(run.started_us)}: {did}"]
    if run.error is not None:
        how = "waiting, last report" if run.running else "stopped"
        lines.append(f"{how} {_iso(run.updated_us)}: {run.error}")
    else:
        lines.append(f"{'last report' if run.running else 'ended'} {_iso(run.updated_us)}")
    return lines


def _complete_to(upper: int | None) -> str | None:
    from tidelog.collection.formats.times import format_time

    return format_time(upper - 1) if upper else None


def _since(since: int) -> str:
    from tidelog.collection.formats.times import format_time

    return format_time(since) if since else "the beginning"


def _iso(time_us: int) -> str:
    from tidelog.collection.formats.times import format_time

    return format_time(time_us // 1_000)
