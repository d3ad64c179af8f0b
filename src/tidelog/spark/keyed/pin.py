"""The contents of a DataFrame of a keyed log: parts and fragments, fixed at ``load``.

Their objects stay stored for an hour after a compaction or retirement; see
`tidelog.keyed.maintenance.collecting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from tidelog.core.clock import Clock, SystemClock
from tidelog.errors import NoSuchLog
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.read.sources import PieceSource, RunSource
from tidelog.keyed.read.state_handle import KeyedStateHandle, KeyedView
from tidelog.keyed.states.transition import check_readable
from tidelog.keyed.values import KEYED_RECORDS
from tidelog.location import open_location
from tidelog.spark.keyed.options import KeyedReadSettings
from tidelog.spark.keyed.share import KeyedLogPlace, KeyedShare, share_loose, share_parts
from tidelog.spark.keyed.wanted import KeyedScope
from tidelog.spark.place import url_for_executors
from tidelog.spark.types import spark_schema
from tidelog.wal.format.fragment import Fragment

KEYED_SCHEMA: Final = spark_schema(KEYED_RECORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedPin:
    """The part of a view of a keyed log that a read needs.

    Shape: runs hold the loose fragments' records before ``since``. The pin covers exactly the
        wanted records before ``next_sequence``.
    """

    place: KeyedLogPlace
    wanted: KeyedScope
    parts: tuple[RunPart, ...]
    loose: tuple[Fragment, ...]
    since: int
    next_sequence: int

    def narrowed(self, wanted: KeyedScope) -> KeyedPin:
        """Return the pin for a scope that selects no more than the present one."""
        is_nothing = wanted.is_nothing
        return KeyedPin(
            place=self.place,
            wanted=wanted,
            parts=() if is_nothing else tuple(p for p in self.parts if wanted.may_be_in(p)),
            loose=() if is_nothing else tuple(f for f in self.loose if wanted.may_be_loose_in(f)),
            since=self.since,
            next_sequence=self.next_sequence,
        )


def pin_view(place: KeyedLogPlace, view: KeyedView, wanted: KeyedScope) -> KeyedPin:
    """Choose the parts and fragments to read from a view whose pieces are all stored.

    Raises:
        SequenceRetired: records from the start were retired.
    """
    check_readable(view.state, wanted.start)
    limit = min(wanted.limit, view.next)
    parts = [
        part
        for source in view.sources
        if isinstance(source, RunSource)
        for part in source.run.parts
    ]
    pieces = [source.piece for source in view.sources if isinstance(source, PieceSource)]
    whole = KeyedPin(
        place=place,
        wanted=wanted,
        parts=tuple(parts),
        loose=tuple(piece.fragment for piece in pieces if piece.fragment is not None),
        since=view.state.compacted,
        next_sequence=limit,
    )
    return whole.narrowed(wanted.between(view.oldest, limit))


async def open_keyed(
    settings: KeyedReadSettings, *, clock: Clock | None = None
) -> tuple[KeyedLogPlace, KeyedStateHandle]:
    """Open a keyed log, and read its state up to the present end.

    Raises:
        NoSuchLocation, NoSuchLog, UsageError: an option is wrong.
        CorruptionError: the log is damaged.
        LocationError: the store failed.
    """
    location = await open_location(settings.location_url, clock=clock)
    state_handle = await location.keyed.state_handle(settings.name)
    await state_handle.refresh()
    url = url_for_executors(location.executor_url, location.store)
    place = KeyedLogPlace(location_url=url, name=settings.name, wal=state_handle.wal_name)
    return place, state_handle


async def choose_keyed_pin(settings: KeyedReadSettings) -> KeyedPin:
    """Open the log, and choose the parts and fragments to read; see `open_keyed`."""
    place, state_handle = await open_keyed(settings)
    name = settings.checkpoint
    view = state_handle.view() if name is None else state_handle.view_at(name)
    refuse_start_beyond(settings.wanted.start, view.next)
    return pin_view(place, view, settings.wanted)


def refuse_start_beyond(start: int, following: int) -> None:
    """Check that a sequence is not after the end of the log.

    Raises:
        NoSuchLog: it is.
    """
    if start > following:
        raise NoSuchLog(
            f"start {start} is after the end of the log: start at {following}, its next sequence, "
            "or earlier. If a stream has read that far, the log was replaced, or lost records: "
            "restore it, or begin a new stream"
        )


async def plan_shares(pin: KeyedPin) -> list[KeyedShare]:
    """Divide the read among tasks; see `share_parts`."""
    store = pin.place.open(SystemClock())
    shares = await share_parts(pin.place, pin.parts, pin.wanted, store)
    return shares + share_loose(pin.place, pin.loose, pin.wanted, pin.since)


class KeyedPartition(InputPartition):
    """A partition for Spark, with its encoded share."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)


def keyed_partitions(shares: list[KeyedShare]) -> list[InputPartition]:
    """Return shares as partitions for Spark."""
    return [KeyedPartition(msgspec.msgpack.encode(share)) for share in shares]
