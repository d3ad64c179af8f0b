"""The list of routers that ``tidelog serve`` serves; a new router adds a line here."""

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
    """Return the routers of a location; ``log`` is the keyed log at OpenData's paths."""
    logs = ServedLogs(place, is_read_only=is_read_only, visibility=visibility)
    return [KeyedRoom(logs, state.metrics, state.limits, log=log).room()]
