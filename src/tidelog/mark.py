"""The mark of a location, ``tidelog.json``: what made it, and where its consensus is.

Shape: ``{"format": 1, "created_us": microseconds, "consensus": "store"}``; of another kind, besides
    ``consensus_at``, its URL without a password, and ``id``, by which a database tells the records
    of several locations apart. ``moves`` is how often consensus was moved (see `moving`), which
    makes a new ``id`` each time; ``left`` is where it was before, if that is not closed yet;
    ``stamp`` makes each body another.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tidelog.clock import Clock
from tidelog.consensus.kinds import KINDS, STORE, ConsensusPlace, found_location
from tidelog.errors import CorruptionError, ObjectExists, UsageError
from tidelog.store.conditional import create as create_object
from tidelog.store.port import Store
from tidelog.store.probe import probe_store

FORMAT: Final = 1
MARK: Final = "tidelog.json"
WITNESS: Final = "consensus.json"


class Moving(msgspec.Struct, frozen=True):
    """A move of consensus that is under way: its id, and where it goes, without a password."""

    id: str
    to: str


class Left(msgspec.Struct, frozen=True):
    """The place that consensus was moved from, until all that lies there says where it went."""

    consensus: str
    at: str
    id: str


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``tidelog.json`` says."""

    format: int
    created_us: int
    consensus: str
    consensus_at: str = ""
    id: str = ""
    moves: int = 0
    moving: Moving | None = None
    left: Left | None = None
    stamp: str = ""


async def make_mark(store: Store, place: ConsensusPlace, clock: Clock) -> bytes:
    """Make a location's mark, or read the one that somebody else was quicker to make.

    Raises:
        StoreRefused: the store does not keep its promises, or refuses us.
    """
    await probe_store(store, clock=clock)
    is_own = place.kind == STORE
    mark = Mark(
        format=FORMAT,
        created_us=clock.now_us(),
        consensus=place.kind,
        consensus_at=place.told,
        id="" if is_own else clock.unique(),
    )
    # Before the mark says that it is there.
    await found_location(place, location=mark.id, clock=clock)
    # The moment makes bodies differ, so that one's own is known when an answer is lost.
    data = encode_mark(mark)
    try:
        await create_object(store, MARK, data, clock=clock)
    except ObjectExists:
        return (await store.get(MARK)).data
    if not is_own:
        # In the store there may be nothing else for long that shows that this is a location.
        await store.put(WITNESS, data)
    return data


def encode_mark(mark: Mark) -> bytes:
    return msgspec.json.encode(mark)


def read_mark(data: bytes, *, where: str) -> Mark:
    """Read ``tidelog.json``.

    Raises:
        UsageError: a newer tidelog wrote it. CorruptionError: it is not one.
    """
    try:
        found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        if found["format"] > FORMAT:
            raise UsageError(
                f"{where} was made by a newer tidelog (format {found['format']}, this one knows "
                f"{FORMAT}): upgrade tidelog to use it"
            )
        mark = msgspec.convert(found, Mark)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptionError(f"{where}/{MARK} cannot be read") from error
    if mark.consensus not in KINDS:
        raise UsageError(
            "this tidelog does not have the consensus that the location was made with: upgrade it",
            consensus=mark.consensus,
        )
    return mark
