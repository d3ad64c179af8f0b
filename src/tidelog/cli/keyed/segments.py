"""``tidelog keyed segments``: the segments of a keyed log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_reader
from tidelog.cli.keyed.options import From, To, check_sequence_range
from tidelog.cli.output import Column, bytes_text, print_listing, time_text

if TYPE_CHECKING:
    from tidelog.keyed.values import Segment


def segments(
    context: typer.Context,
    name: KeyedName,
    *,
    start: From = 0,
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """List the segments, in order.

    The last one is the active segment, unless it is empty. Counts leave out records that are not
    compacted yet: 'tidelog keyed compact --everything' compacts them.
    """
    check_sequence_range(start, to)
    columns: tuple[Column[Segment], ...] = (
        Column("id", lambda one: str(one.id), right=True),
        Column("from", lambda one: f"{one.start:,}", right=True),
        Column("to", lambda one: "" if one.limit is None else f"{one.limit - 1:,}", right=True),
        Column("records", lambda one: f"{one.records:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("runs", lambda one: f"{one.runs:,}", right=True),
        Column("state", _state),
        Column("sealed", lambda one: _time(one.sealed_us), whole=True),
    )
    print_listing(
        on_reader(context, name, lambda log: log.segments(start, to)),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"The keyed log {name!r} has no segments in this range.",
    )


def _state(one: Segment) -> str:
    if one.limit is None:
        return "active"
    return "compacted" if one.is_compacted else "sealed"


def _time(sealed_us: int | None) -> str:
    return "" if sealed_us is None else time_text(sealed_us)
