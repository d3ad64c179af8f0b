"""Epochs of a slot log: who may write where, and the chain in which they follow each other. Pure.

Only its opener writes data into an epoch's directory. An epoch ends at the first slot, in slot
order, that holds a fence; the next epoch begins at that same slot, so data has one slot after the
other through all epochs. Slot s of an epoch with k lanes lies in lane s % k.
Source: wal3-draft, "Sharding" and "Fencing"; design page 3, "Slot commit".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from tidelog.arguments import check_whole
from tidelog.errors import CorruptionError, UsageError
from tidelog.store.within import BESIDE
from tidelog.wal.format.json import Fields

LANES_MAX: Final = 4_096
ALPHA_MAX: Final = 256
FIRST_SLOT: Final = 1
EPOCHS: Final = "epoch/"
FIRST_EPOCHS: Final = f"{EPOCHS}{0:016x}-"
VOID_MAX: Final = 100_000  # A fence that says more was made to have somebody delete at random.
_ID: Final = re.compile(r"[0-9a-f]{16}")
_PATH: Final = re.compile(
    r"epoch/([0-9a-f]{16})-([0-9a-f]{16})/([0-9a-f]{3})/([0-9a-f]{16})\.parquet"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One writer's turn.

    ``id`` is random, so that two who open at once do not share a directory. ``alpha`` is how many
    puts may be under way; ``opener`` is a name for people. ``reach`` is the first slot past all
    fences by which it was opened. ``log`` is the name of the log whose objects they are, where a
    fork shares them; empty for its own.
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
        """Return the name of its directory."""
        return f"{self.number:016x}-{self.id}"

    def path(self, slot: int) -> str:
        """Return the one place where the object of a slot lies, if the slot is this epoch's."""
        beside = f"{BESIDE}{self.log}/" if self.log else ""
        return f"{beside}{EPOCHS}{self.name}/{slot % self.lanes:03x}/{slot:016x}.parquet"

    def void_paths(self, fence: int, reach: int) -> list[str]:
        """Return where void objects can lie, once the epoch has ended at the slot ``fence``.

        Its writer has at most alpha slots under way from one below the fence on, and the fences of
        whoever ended it lie below ``reach``. Those of others, who came too late, are found by a
        sweep.
        """
        limit = min(max(fence + self.alpha, reach), fence + VOID_MAX)
        return [self.path(slot) for slot in range(fence + 1, limit)]


@dataclass(frozen=True, slots=True)
class Place:
    """What the path of a slot's object says of it."""

    number: int
    id: str
    lane: int
    slot: int

    @property
    def epoch(self) -> str:
        """Return the name of its epoch's directory."""
        return f"{self.number:016x}-{self.id}"


def place_of(path: str) -> Place | None:
    """Return the place that a path names; None if no slot's object can lie there."""
    if (found := _PATH.fullmatch(path)) is None:
        return None
    return Place(int(found[1], 16), found[2], int(found[3], 16), int(found[4], 16))


def first_epoch(*, id: str, opener: str) -> Epoch:
    """Return the epoch that a log is made with; the first to open it ends that."""
    return Epoch(number=0, id=id, first_slot=FIRST_SLOT, opener=opener)


def check_shape(*, lanes: int, alpha: int) -> None:
    """Refuse numbers with which no epoch can be opened.

    Raises:
        UsageError: there is none, or there are too many.
    """
    check_whole(lanes, "the number of lanes")
    check_whole(alpha, "alpha")
    if not 1 <= lanes <= LANES_MAX:
        raise UsageError(f"a log has from 1 to {LANES_MAX} lanes", lanes=lanes)
    if not 1 <= alpha <= ALPHA_MAX:
        raise UsageError(f"a log has from 1 to {ALPHA_MAX} puts under way", alpha=alpha)


def encode_epoch(epoch: Epoch) -> dict[str, Any]:
    """Return plain values, without the first slot: the fence that opens an epoch is at that."""
    return {
        "number": epoch.number,
        "id": epoch.id,
        "lanes": epoch.lanes,
        "alpha": epoch.alpha,
        "opener": epoch.opener,
    }


def decode_epoch(found: Fields, *, first_slot: int, reach: int) -> Epoch:
    """Read what `encode_epoch` gave.

    Raises:
        CorruptionError: it is none.
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
