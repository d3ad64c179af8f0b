"""Epochs of a slot log: each gives one writer a directory, and they form a chain. Pure.

Only the opener of an epoch writes data into its directory. An epoch ends at the first slot, in slot
order, that holds a fence. The next epoch begins at that same slot, so slot numbers of data have no
gap across epochs. Slot s of an epoch with k lanes is in lane s % k.
Source: wal3-draft, "Sharding" and "Fencing"; design page 3, "Slot commit".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from tidelog.core.arguments import check_whole
from tidelog.errors import CorruptionError, UsageError
from tidelog.store.within import BESIDE
from tidelog.wal.format.json import Fields

LANES_MAX: Final = 4_096
ALPHA_MAX: Final = 256
FIRST_SLOT: Final = 1
EPOCHS: Final = "epoch/"
FIRST_EPOCHS: Final = f"{EPOCHS}{0:016x}-"
# A greater distance is a forgery that would make a collector delete arbitrary paths.
VOID_MAX: Final = 100_000
_ID: Final = re.compile(r"[0-9a-f]{16}")
_PATH: Final = re.compile(
    r"epoch/([0-9a-f]{16})-([0-9a-f]{16})/([0-9a-f]{3})/([0-9a-f]{16})\.parquet"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The slots that one writer may fill.

    ``id`` is random, so two concurrent openers do not share a directory. ``alpha`` bounds the puts
    in flight. ``opener`` is a name for people. ``reach`` is the first slot past all fences that
    opened the epoch. ``log`` is the name of the log that owns the objects if a fork shares them,
    else "".
    """

    number: int
    id: str
    first_slot: int
    lanes: int = 1
    alpha: int = 1
    opener: str = ""
    reach: int = 0
    log: str = ""

    @property
    def name(self) -> str:
        """Return the name of the epoch's directory."""
        return f"{self.number:016x}-{self.id}"

    def path(self, slot: int) -> str:
        """Return the only path for a slot's object, if the slot belongs to this epoch."""
        beside = f"{BESIDE}{self.log}/" if self.log else ""
        return f"{beside}{EPOCHS}{self.name}/{slot % self.lanes:03x}/{slot:016x}.parquet"

    def void_paths(self, fence: int, reach: int) -> list[str]:
        """Return the possible paths of void objects once the epoch has ended at the slot ``fence``.

        The writer has at most alpha slots in flight, counted from the lowest unsettled slot, which
        is at or below the fence. The fences of the process that ended the epoch are below
        ``reach``. A sweep finds the fences of other, later openers.
        """
        limit = min(max(fence + self.alpha, reach), fence + VOID_MAX)
        return [self.path(slot) for slot in range(fence + 1, limit)]


@dataclass(frozen=True, slots=True)
class Place:
    """The facts that a path states about a slot's object."""

    number: int
    id: str
    lane: int
    slot: int

    @property
    def epoch(self) -> str:
        """Return the name of the epoch's directory."""
        return f"{self.number:016x}-{self.id}"


def place_of(path: str) -> Place | None:
    """Return the place that a path names, or None if the path cannot belong to a slot's object."""
    if (found := _PATH.fullmatch(path)) is None:
        return None
    return Place(int(found[1], 16), found[2], int(found[3], 16), int(found[4], 16))


def first_epoch(*, id: str, opener: str) -> Epoch:
    """Return the epoch of a new log. The first opener ends it, so it never holds data."""
    return Epoch(number=0, id=id, first_slot=FIRST_SLOT, opener=opener)


def check_shape(*, lanes: int, alpha: int) -> None:
    """Refuse numbers with which an epoch cannot be opened.

    Raises:
        UsageError: a number is too small or too large.
    """
    check_whole(lanes, "the number of lanes")
    check_whole(alpha, "alpha")
    if not 1 <= lanes <= LANES_MAX:
        raise UsageError(f"lanes must be from 1 to {LANES_MAX}", lanes=lanes)
    if not 1 <= alpha <= ALPHA_MAX:
        raise UsageError(
            f"alpha, the number of concurrent puts, must be from 1 to {ALPHA_MAX}", alpha=alpha
        )


def encode_epoch(epoch: Epoch) -> dict[str, Any]:
    """Return plain values without the first slot, which is the slot of the opening fence."""
    return {
        "number": epoch.number,
        "id": epoch.id,
        "lanes": epoch.lanes,
        "alpha": epoch.alpha,
        "opener": epoch.opener,
    }


def decode_epoch(found: Fields, *, first_slot: int, reach: int) -> Epoch:
    """Decode the values of `encode_epoch`.

    Raises:
        CorruptionError: they are not an epoch.
    """
    if not _ID.fullmatch(found.text("id")):
        raise found.wrong("id", "is not 16 hex digits")
    try:
        check_shape(lanes=found.whole("lanes"), alpha=found.whole("alpha"))
    except UsageError as error:
        raise CorruptionError(f"{error}: restore the object", path=found.where) from error
    return Epoch(
        number=found.whole("number"),
        id=found.text("id"),
        first_slot=first_slot,
        lanes=found.whole("lanes"),
        alpha=found.whole("alpha"),
        opener=found.text("opener"),
        reach=reach,
    )
