"""The marker of a location, ``tidelog.json``: its format, and the place of its consensus.

Shape: ``{"format": 1, "created_us": microseconds, "consensus": "store"}``. For another kind of
    consensus also ``consensus_at``, its URL without a password, and ``id``. A database that serves
    several locations files each location's records under its ``id``. ``moves`` counts the moves of
    consensus (see `consensus_migration`); each move makes a new ``id``. ``left`` is the previous
    place, until it is closed. ``stamp`` makes each body unique.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tidelog.consensus.kinds import KINDS, STORE, ConsensusPlace, found_location
from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError, ObjectExists, UsageError
from tidelog.store.conditional import create as create_object
from tidelog.store.port import Store
from tidelog.store.probe import probe_store

FORMAT: Final = 1
MARKER: Final = "tidelog.json"
WITNESS: Final = "consensus.json"


class MoveInProgress(msgspec.Struct, frozen=True):
    """A move of consensus in progress: its id, and its target without a password."""

    id: str
    to: str


class FormerPlace(msgspec.Struct, frozen=True):
    """The place that consensus moved from, until all its keys name the new place."""

    consensus: str
    at: str
    id: str


class Marker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of ``tidelog.json``."""

    format: int
    created_us: int
    consensus: str
    consensus_at: str = ""
    id: str = ""
    moves: int = 0
    moving: MoveInProgress | None = None
    left: FormerPlace | None = None
    stamp: str = ""


async def make_marker(store: Store, place: ConsensusPlace, clock: Clock) -> bytes:
    """Create a location's marker, or read the marker that another process created first.

    Raises:
        StoreRefused: the store fails its probe, or denies access.
    """
    await probe_store(store, clock=clock)
    is_own = place.kind == STORE
    marker = Marker(
        format=FORMAT,
        created_us=clock.now_us(),
        consensus=place.kind,
        consensus_at=place.told,
        id="" if is_own else clock.unique(),
    )
    # The database must know the location before the marker names the database.
    await found_location(place, location=marker.id, clock=clock)
    # The time makes the body unique. If an answer is lost, the writer recognizes its own marker.
    data = encode_marker(marker)
    try:
        await create_object(store, MARKER, data, clock=clock)
    except ObjectExists:
        return (await store.get(MARKER)).data
    if not is_own:
        # Otherwise the store could hold nothing but the marker for long, and a lost marker would
        # make it look like an empty store.
        await store.put(WITNESS, data)
    return data


def encode_marker(marker: Marker) -> bytes:
    return msgspec.json.encode(marker)


def read_marker(data: bytes, *, where: str) -> Marker:
    """Decode ``tidelog.json``.

    Raises:
        UsageError: a newer tidelog wrote it.
        CorruptionError: it is not a valid marker.
    """
    try:
        fields: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        if fields["format"] > FORMAT:
            raise UsageError(
                f"{where} was made by a newer tidelog (format {fields['format']}; this one reads "
                f"format {FORMAT}): upgrade tidelog to use it"
            )
        marker = msgspec.convert(fields, Marker)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"{where}/{MARKER} cannot be decoded: restore it from a backup"
        ) from error
    if marker.consensus not in KINDS:
        raise UsageError(
            "the location uses a consensus that this tidelog does not support: upgrade tidelog",
            consensus=marker.consensus,
        )
    return marker
