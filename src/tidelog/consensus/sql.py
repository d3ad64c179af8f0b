"""Consensus in a database: a table of records, and one statement for each compare-and-set.

A record is inserted where the newest of its key is the one before, and its place is a primary key:
so one of several wins. Each has an id of its write, by which a lost answer is found out: the
statement is sent again, and either lands, or meets itself, or meets another.
Invariants: records of a key are dense; the newest one is never deleted, so that seqnos never come
    again. A location that was made, or moved, here has a row of its own from before it counted: a
    database without one is another, or was emptied.
Source: persist, "Consensus".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidelog.clock import Clock, backoff_us
from tidelog.consensus.port import ENVIRONMENT, Versioned, check_seqno, check_truncation
from tidelog.errors import ConsensusGone, LocationError, Outcome, OutcomeUnknown
from tidelog.ids import SeqNo

# Named parameters are written as psycopg has them; SQLite's port writes them its own way.
TABLE: Final = """
CREATE TABLE IF NOT EXISTS tidelog_records (
    location TEXT NOT NULL, key TEXT NOT NULL, seqno BIGINT NOT NULL,
    write_id TEXT NOT NULL, data {bytes} NOT NULL, PRIMARY KEY (location, key, seqno))
"""
_HERE: Final = "location = %(location)s AND key = %(key)s"
_NEWEST: Final = f"(SELECT max(seqno) FROM tidelog_records WHERE {_HERE})"
INSERT: Final = (
    "INSERT INTO tidelog_records (location, key, seqno, write_id, data) "
    "SELECT %(location)s, %(key)s, %(seqno)s, %(write_id)s, %(data)s "
    f"WHERE coalesce({_NEWEST}, 0) = %(seqno)s - 1 ON CONFLICT DO NOTHING RETURNING seqno"
)
ADOPT: Final = (
    "INSERT INTO tidelog_records (location, key, seqno, write_id, data) "
    "SELECT %(location)s, %(key)s, %(seqno)s, %(write_id)s, %(data)s "
    f"WHERE coalesce({_NEWEST}, 0) < %(last)s ON CONFLICT DO NOTHING RETURNING seqno"
)
WROTE: Final = f"SELECT write_id FROM tidelog_records WHERE {_HERE} AND seqno = %(seqno)s"
HEAD: Final = f"SELECT seqno, data FROM tidelog_records WHERE {_HERE} AND seqno = {_NEWEST}"
SCAN: Final = (
    f"SELECT seqno, data FROM tidelog_records WHERE {_HERE} AND seqno >= %(start)s "
    "ORDER BY seqno LIMIT %(limit)s"
)
# The newest stays whatever is asked for: records after it are told from those by it.
TRUNCATE: Final = (
    f"DELETE FROM tidelog_records WHERE {_HERE} AND seqno < %(before)s AND seqno < {_NEWEST} "
    "RETURNING seqno"
)
KEYS: Final = (
    "SELECT DISTINCT key FROM tidelog_records WHERE location = %(location)s AND key <> '' "
    "AND substr(key, 1, length(%(prefix)s)) = %(prefix)s"
)
FOUND: Final = (
    "INSERT INTO tidelog_records (location, key, seqno, write_id, data) "
    "VALUES (%(location)s, '', 0, '', %(data)s) ON CONFLICT DO NOTHING RETURNING seqno"
)
KNOWN: Final = "SELECT seqno FROM tidelog_records WHERE location = %(location)s LIMIT 1"
NO_LIMIT: Final = 2**62


class Database(Protocol):
    """Runs one statement, as a transaction of its own that lasts when it is answered."""

    async def run(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return the statement's rows.

        Raises:
            LocationError: the database failed, or did not answer. UNKNOWN, if it may have landed.
            CorruptionError: what it holds is damaged.
        """
        ...

    async def close(self) -> None:
        """Let go of what a statement opened; the next one opens it again."""
        ...


@dataclass(slots=True, kw_only=True)
class SqlConsensus:
    """Consensus in a table; ``location`` tells the records of several locations apart.

    Where that was ``founded``, a database that has no row of it is refused: it would look like a
    location in which there is nothing, and be written, or moved from, as one.
    """

    database: Database
    location: str
    clock: Clock
    attempts: int = 10
    founded: bool = False

    async def found(self) -> None:
        await self._read(FOUND, data=b"")

    async def head(self, key: str) -> Versioned | None:
        found = await self._read(HEAD, key=key)
        return _versioned(found)[0] if found else None

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        check_seqno(seqno)
        values = {"key": key, "seqno": seqno, "write_id": self.clock.unique(), "data": bytes(data)}
        failed: LocationError | None = None
        for attempt in range(self.attempts):
            try:
                if await self._run(INSERT, values):
                    return True
                return failed is not None and await self._is_ours(values)
            except OutcomeUnknown:
                raise
            except LocationError as error:
                failed = error
                await self.clock.sleep(backoff_us(attempt, self.clock))
        raise LocationError(
            "the consensus database does not answer: whether a write landed is not known",
            outcome=Outcome.UNKNOWN,
            key=key,
            why=failed,
        )

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[Versioned]:
        most = NO_LIMIT if limit is None else limit
        return _versioned(await self._read(SCAN, key=key, start=start, limit=most))

    async def truncate(self, key: str, before: SeqNo) -> int:
        check_truncation(before, await self.head(key))
        return len(await self._read(TRUNCATE, key=key, before=before))

    async def sweep(self, key: str) -> int:
        """Return 0: a call leaves nothing but records."""
        return 0

    async def adopt(self, key: str, records: Sequence[Versioned]) -> None:
        # Oldest first: what has the last one has all.
        last = records[-1].seqno if records else 0
        for one in records:
            write_id = self.clock.unique()
            await self._read(
                ADOPT, key=key, seqno=one.seqno, last=last, write_id=write_id, data=one.data
            )

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        # In the order of bytes, which is not that of every database.
        for key in sorted(key for (key,) in await self._read(KEYS, prefix=prefix)):
            yield key

    async def _is_ours(self, values: dict[str, Any]) -> bool:
        """Say whether the record that stands is the one that an earlier try of ours sent."""
        wrote = await self._run(WROTE, values)
        if wrote:
            return bool(wrote[0][0] == values["write_id"])
        head = await self._run(HEAD, values)
        if head and head[0][0] > values["seqno"]:
            raise OutcomeUnknown(
                "the record was truncated before its write could be read back",
                key=values["key"],
                seqno=values["seqno"],
            )
        return False

    async def _read(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement that may be run again, until it is answered."""
        for attempt in range(self.attempts):
            try:
                return await self._run(statement, values)
            except LocationError:
                if attempt + 1 == self.attempts:
                    raise
                await self.clock.sleep(backoff_us(attempt, self.clock))
        raise LocationError("no try to read was allowed")

    async def _run(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        if self.founded:
            if not await self.database.run(KNOWN, {"location": self.location}):
                await self.database.close()
                raise ConsensusGone(
                    "the database of consensus knows nothing of this location: it is another one, "
                    "or was emptied; put the one back that was used (from a backup), or say with "
                    f"--consensus or {ENVIRONMENT} where it is",
                    location=self.location,
                )
            self.founded = False  # Seen; what vanishes under a process is told by its states.
        return await self.database.run(statement, {"location": self.location, **values})


def _versioned(rows: list[tuple[Any, ...]]) -> list[Versioned]:
    return [Versioned(SeqNo(seqno), bytes(data)) for seqno, data in rows]
