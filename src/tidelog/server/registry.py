"""The rooms that ``tidelog serve`` serves: one that comes is a line here, and files of its own."""

from __future__ import annotations

from tidelog.keyed.values import DURABLE
from tidelog.server.app import ServerState
from tidelog.server.keyed_logs import KeyedPlace, ServedLogs
from tidelog.server.keyed_room import KeyedRoom
from tidelog.server.rooms import ServedRoom


def rooms_of(
    place: KeyedPlace,
    state: ServerState,
    *,
    log: str | None,
    is_read_only: bool,
    visibility: str = DURABLE,
) -> list[ServedRoom]:
    """Return the rooms of a location; ``log`` is the keyed log of OpenData's paths."""
    logs = ServedLogs(place, is_read_only=is_read_only, visibility=visibility)
    return [KeyedRoom(logs, state.metrics, state.limits, log=log).room()]
