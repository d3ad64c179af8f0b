"""The consensus port: for each key, a dense sequence of records, appended by compare-and-set.

Source: persist, "Consensus".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.core.ids import SeqNo
from tidelog.errors import UsageError

ENVIRONMENT = "TIDELOG_CONSENSUS"  # Names the place of consensus if no argument does.


@dataclass(frozen=True, slots=True)
class VersionedRecord:
    """One record and its seqno; seqnos are dense and begin at 1."""

    seqno: SeqNo
    data: bytes


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record to append to a key. Records before ``kept_from`` may be deleted with the append."""

    key: str
    seqno: SeqNo
    data: bytes
    kept_from: int = 1


class Consensus(Protocol):
    """Linearizable: each call that starts after a compare-and-set landed sees its record."""

    async def head(self, key: str) -> VersionedRecord | None:
        """Return the newest record, or None if the key has no record."""
        ...

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        """Append record ``seqno`` if the newest record is ``seqno - 1``; return True if it landed.

        Raises:
            OutcomeUnknown: proven: it is impossible to find out whether the record landed. UNKNOWN.
            LocationError: the store failed. NOT_APPLIED, or UNKNOWN if the record could not be read
                back.
        """
        ...

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        """Append records to several keys, all or none; see `compare_and_set`.

        The keys differ. They are of one group (`tidelog.core.ids.group_of`), unless there is one.

        Raises:
            OutcomeUnknown, LocationError: see `compare_and_set`.
        """
        ...

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        """Return the kept records from ``start``, in order, at most ``limit``."""
        ...

    async def truncate(self, key: str, before: SeqNo) -> int:
        """Delete the records before ``before``; return their number. The newest record stays.

        Raises:
            UsageError: ``before`` is past the newest record, or the key has no record.
        """
        ...

    async def sweep(self, key: str) -> int:
        """Delete the objects of ``key`` that a killed or overtaken call left; return their number.

        Raises:
            LocationError: the store failed; call again.
        """
        ...

    def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        """Yield the keys that have records and begin with ``prefix``, in order."""
        ...


class Copies(Consensus, Protocol):
    """Consensus that can take over the records of another place."""

    async def found(self) -> None:
        """Write a sign of the location, so that a lost database differs from an empty one.

        Raises:
            LocationError: the store failed.
        """
        ...

    async def adopt(self, key: str, records: Sequence[VersionedRecord]) -> None:
        """Create a key with the records that it has elsewhere, unless its last record exists here.

        The call may be repeated. Until it has succeeded once, no other process may write the key.

        Raises:
            LocationError: the store failed; some of the records may have been written.
        """
        ...


def check_truncation(before: int, head: VersionedRecord | None) -> None:
    """Refuse a truncation that would delete the newest record, or go past it.

    Raises:
        UsageError: see `Consensus.truncate`.
    """
    newest = head.seqno if head else 0
    if before > newest:
        raise UsageError(
            "truncation must not go past the newest record: pass a before that is at most the "
            "newest seqno",
            before=before,
            newest=newest,
        )
