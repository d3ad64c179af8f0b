"""The consensus port: for each key, a dense sequence of records, appended by compare-and-set.

Source: persist, "Consensus".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.errors import UsageError
from tidelog.ids import SeqNo

SEQNO_MAX = 2**63 - 1
ENVIRONMENT = "TIDELOG_CONSENSUS"  # What says which consensus, where no argument does.


@dataclass(frozen=True, slots=True)
class Versioned:
    """One record and its place, dense from 1."""

    seqno: SeqNo
    data: bytes


class Consensus(Protocol):
    """Linearizable: a compare-and-set that landed is seen by every call that starts later."""

    async def head(self, key: str) -> Versioned | None:
        """Return the newest record, or None if there never was one."""
        ...

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        """Append record ``seqno``; lands, and gives True, iff the newest is the one before.

        Raises:
            OutcomeUnknown: it can provably not be told whether it landed. UNKNOWN.
            LocationError: the store failed. NOT_APPLIED, or UNKNOWN where it could not be read
            back.
        """
        ...

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[Versioned]:
        """Return the records that are kept, from ``start`` on, in order, at most ``limit``."""
        ...

    async def truncate(self, key: str, before: SeqNo) -> int:
        """Drop the records before ``before``; return how many there were. The newest one stays.

        Raises:
            UsageError: ``before`` lies past the newest record, or there is none.
        """
        ...

    async def sweep(self, key: str) -> int:
        """Delete the objects of ``key`` that a killed or overtaken call left; return their count.

        Raises:
            LocationError: the store failed; call again.
        """
        ...

    def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        """Yield the keys that have records and begin with a text, in order."""
        ...


class Copies(Consensus, Protocol):
    """Consensus that takes over what was elsewhere before."""

    async def found(self) -> None:
        """Leave a sign of the location, by which a place that lost all is told from an empty one.

        Raises:
            LocationError: the store failed.
        """
        ...

    async def adopt(self, key: str, records: Sequence[Versioned]) -> None:
        """Make a key of records that it had elsewhere, unless it has the last of them already.

        It may be sent again; nobody else may write the key before it was answered once.

        Raises:
            LocationError: the store failed; some of the records may be there.
        """
        ...


def check_seqno(seqno: int) -> SeqNo:
    """Return ``seqno`` back if a record may have it.

    Raises:
        UsageError: it is not from 1 to 2^63-1.
    """
    if not 1 <= seqno <= SEQNO_MAX:
        raise UsageError("a seqno is a whole number from 1 to 2^63-1", given=seqno)
    return SeqNo(seqno)


def check_truncation(before: int, head: Versioned | None) -> None:
    """Refuse to drop what is not there, and to drop the newest record.

    Raises:
        UsageError: see `Consensus.truncate`.
    """
    newest = head.seqno if head else 0
    if before > newest:
        raise UsageError("cannot truncate past the newest record", before=before, newest=newest)
