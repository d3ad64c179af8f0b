"""Consensus in a database: one table of records, and one statement per compare-and-set.

A record is inserted only if the newest record of its key is the one before. The seqno is part of
the primary key, so one of several concurrent inserts wins. Each record has a write id, which
resolves a lost answer. The statement is sent again, and then it lands, finds its own record, or
finds another writer's.

Invariants: the records of a key are dense. The newest record is never deleted, so no seqno is used
    twice. Before a location is used here, after its creation or a move, it has a row of its own: a
    database without that row is another one, or was emptied.
Source: persist, "Consensus".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidelog.consensus.port import ENVIRONMENT, KeyRecord, VersionedRecord, check_truncation
from tidelog.core.clock import Clock, backoff_us
from tidelog.core.ids import SeqNo, check_seqno
from tidelog.errors import ConsensusGone, LocationError, Outcome, OutcomeUnknown

# Parameters have psycopg's form; the SQLite module translates them.
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
# The newest record stays even if ``before`` is past it, because INSERT needs it to find the next
# seqno.
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
    """A database that runs each statement as a durable transaction of its own."""

    async def run(self, statement: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of the statement.

        Raises:
            LocationError: the database failed, or did not answer. UNKNOWN if the statement may have
                landed.
            CorruptionError: the database is damaged.
        """
        ...

    async def close(self) -> None:
        """Close the connection; the next statement opens it again."""
        ...


@dataclass(slots=True, kw_only=True)
class SqlConsensus:
    """Consensus in a table; ``location`` separates the records of several locations.

    If the location was ``founded``, a database without a row of it is refused. It would look like
    an empty location, and processes would write to it or move it.
    """

    database: Database
    location: str
    clock: Clock
    attempts: int = 10
    founded: bool = False

    async def found(self) -> None:
        await self._read(FOUND, data=b"")

    async def head(self, key: str) -> VersionedRecord | None:
        rows = await self._read(HEAD, key=key)
        return _versioned(rows)[0] if rows else None

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        return await self.compare_and_set_all([KeyRecord(key, seqno, data)])

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        for one in records:
            check_seqno(one.seqno)
        key, write_id = records[0].key, self.clock.unique()
        first: dict[str, object] = {"key": key, "seqno": records[0].seqno, "write_id": write_id}
        statement, values = INSERT, {**first, "data": bytes(records[0].data)}
        if len(records) > 1:
            statement, values = _insert_all(records, write_id)
        failed: LocationError | None = None
        for attempt in range(self.attempts):
            try:
                if await self._run(statement, values):
                    return True
                return failed is not None and await self._is_ours(first)
            except OutcomeUnknown:
                raise
            except LocationError as error:
                failed = error
                await self.clock.sleep(backoff_us(attempt, self.clock))
        raise LocationError(
            "the consensus database does not answer, so the write may be stored: read back "
            "before a retry",
            outcome=Outcome.UNKNOWN,
            key=key,
            why=failed,
        )

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        most = NO_LIMIT if limit is None else limit
        return _versioned(await self._read(SCAN, key=key, start=start, limit=most))

    async def truncate(self, key: str, before: SeqNo) -> int:
        check_truncation(before, await self.head(key))
        return len(await self._read(TRUNCATE, key=key, before=before))

    async def sweep(self, key: str) -> int:
        """Return 0: a call leaves nothing but records."""
        return 0

    async def adopt(self, key: str, records: Sequence[VersionedRecord]) -> None:
        # Oldest first: a key that has the last record has all of them.
        last = records[-1].seqno if records else 0
        for record in records:
            write_id = self.clock.unique()
            await self._read(
                ADOPT, key=key, seqno=record.seqno, last=last, write_id=write_id, data=record.data
            )

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        # In byte order, which is not the sort order of every database.
        for key in sorted(key for (key,) in await self._read(KEYS, prefix=prefix)):
            yield key

    async def _is_ours(self, values: dict[str, object]) -> bool:
        """Return True if the stored record is the one that an earlier try of this call sent."""
        wrote = await self._run(WROTE, values)
        if wrote:
            return bool(wrote[0][0] == values["write_id"])
        head = await self._run(HEAD, values)
        if head and head[0][0] > values["seqno"]:
            raise OutcomeUnknown(
                "the record was truncated before its write could be checked, so the write may be "
                "applied: read the data back before a retry",
                key=values["key"],
                seqno=values["seqno"],
            )
        return False

    async def _read(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement that is safe to repeat, until it is answered."""
        for attempt in range(self.attempts):
            try:
                return await self._run(statement, values)
            except LocationError:
                if attempt + 1 == self.attempts:
                    raise
                await self.clock.sleep(backoff_us(attempt, self.clock))
        raise LocationError("no read was tried, because attempts is 0")

    async def _run(self, statement: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        if self.founded:
            if not await self.database.run(KNOWN, {"location": self.location}):
                await self.database.close()
                raise ConsensusGone(
                    "the consensus database has no entry for this location, so it is another "
                    "database or was emptied: restore it from a backup, or pass the right one "
                    f"with consensus= or {ENVIRONMENT}",
                    location=self.location,
                )
            # Checked once: if the rows vanish later, the states' own checks detect it.
            self.founded = False
        return await self.database.run(statement, {"location": self.location, **values})


def _insert_all(records: Sequence[KeyRecord], write_id: str) -> tuple[str, dict[str, object]]:
    """Return the statement that inserts all records or none, and its values.

    A row that another statement has inserted meanwhile makes the whole statement fail. The drivers
    then return no rows.
    """
    values: dict[str, object] = {"write_id": write_id}
    rows, newest = [], []
    for n, one in enumerate(records):
        values |= {f"key{n}": one.key, f"seqno{n}": one.seqno, f"data{n}": bytes(one.data)}
        head = f"SELECT max(seqno) FROM tidelog_records WHERE {_HERE}".replace("(key)", f"(key{n})")
        newest.append(f"coalesce(({head}), 0) = %(seqno{n})s - 1")
        rows.append(
            f"SELECT %(location)s, %(key{n})s, %(seqno{n})s, %(write_id)s, %(data{n})s "
            "WHERE (SELECT fits FROM heads)"
        )
    statement = (
        f"WITH heads AS (SELECT {' AND '.join(newest)} AS fits) "
        "INSERT INTO tidelog_records (location, key, seqno, write_id, data) "
        f"{' UNION ALL '.join(rows)} RETURNING seqno"
    )
    return statement, values


def _versioned(rows: list[tuple[Any, ...]]) -> list[VersionedRecord]:
    return [VersionedRecord(SeqNo(seqno), bytes(data)) for seqno, data in rows]
