"""Consensus in a database: lost answers, killed servers, and several locations."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.clocks import SwiftClock
from kit.postgres_server import PostgresServer
from kit.shards import SCHEMA, contents, rows
from tidelog.consensus.kinds import ConsensusPlace, parse_consensus, without_password
from tidelog.consensus.postgres import postgres_database
from tidelog.consensus.sql import INSERT, Database, SqlConsensus
from tidelog.consensus.sqlite import sqlite_database
from tidelog.core.clock import SystemClock
from tidelog.core.ids import SeqNo, ShardId
from tidelog.errors import (
    CorruptionError,
    LocationError,
    Outcome,
    OutcomeUnknown,
    StoreRefused,
    UsageError,
)
from tidelog.location import open_location
from tidelog.persist.handle.shard import Shard
from tidelog.store.memory import MemoryStore

CLOCK = SystemClock()


class ShakyDatabase:
    """A database in which some statements fail, before or after their effect."""

    def __init__(self, inner: Database, dice: random.Random, rate: float) -> None:
        self.inner = inner
        self.dice = dice
        self.rate = rate
        self.lost = Counter[str]()

    async def run(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        fate = self.dice.random() / self.rate
        if fate < 0.5:
            self.lost["before"] += 1
            raise LocationError("lost before", outcome=Outcome.UNKNOWN)
        found = await self.inner.run(statement, values)
        if fate < 1:
            self.lost["after"] += 1
            raise LocationError("lost after", outcome=Outcome.UNKNOWN)
        return found

    async def close(self) -> None:
        await self.inner.close()


def on_file(path: Path) -> Database:
    return sqlite_database(path, clock=CLOCK)


def consensus(database: Database, *, attempts: int = 30) -> SqlConsensus:
    clock = SwiftClock()
    return SqlConsensus(database=database, location="here", clock=clock, attempts=attempts)


@pytest.mark.parametrize("seed", range(12))
async def test_each_record_is_won_once_whatever_is_lost(tmp_path: Path, seed: int) -> None:
    """In spite of faults, exactly the records whose writers got True are stored, each once."""
    dice = random.Random(seed)
    won: list[tuple[int, bytes]] = []
    lost = Counter[str]()

    async def propose(name: int) -> None:
        shaky = ShakyDatabase(on_file(tmp_path / "c.db"), dice, rate=0.3)
        own = consensus(shaky)
        for number in range(8):
            data = f"{name} {number}".encode()
            while True:
                head = await own.head("k")
                seqno = SeqNo((head.seqno if head else 0) + 1)
                if await own.compare_and_set("k", seqno, data):
                    won.append((seqno, data))
                    break
        lost.update(shaky.lost)

    await asyncio.gather(*(propose(name) for name in range(4)))
    found = await consensus(on_file(tmp_path / "c.db")).scan("k", SeqNo(1))
    assert [(r.seqno, r.data) for r in found] == sorted(won)
    assert [r.seqno for r in found] == [*range(1, 33)]
    assert lost["before"]
    assert lost["after"]


async def test_an_answer_that_is_lost_for_good_is_unknown(tmp_path: Path) -> None:
    """If no retry gets an answer, the outcome is UNKNOWN; also after a concurrent truncation."""
    database = on_file(tmp_path / "c.db")
    good = consensus(database)
    bad = consensus(ShakyDatabase(database, random.Random(1), rate=1e9), attempts=3)
    with pytest.raises(LocationError) as caught:
        await bad.compare_and_set("k", SeqNo(1), b"1")
    assert caught.value.outcome is Outcome.UNKNOWN
    assert await good.head("k") is None

    class AfterTruncation:
        tries = 0

        async def run(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
            found = await database.run(statement, values)
            if statement == INSERT and not self.tries:
                self.tries += 1
                await good.compare_and_set("k", SeqNo(2), b"2")
                await good.truncate("k", SeqNo(2))
                raise LocationError("lost after", outcome=Outcome.UNKNOWN)
            return found

        async def close(self) -> None:
            await database.close()

    with pytest.raises(OutcomeUnknown):
        await consensus(AfterTruncation()).compare_and_set("k", SeqNo(1), b"1")


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    """A file that is not a database is CorruptionError; a missing folder is LocationError."""
    (tmp_path / "c.db").write_bytes(b"something else" * 100)
    with pytest.raises(CorruptionError, match="damaged, or is not a SQLite database"):
        await consensus(on_file(tmp_path / "c.db")).head("k")
    with pytest.raises(LocationError, match="folder exists"):
        await consensus(on_file(tmp_path / "none" / "c.db"), attempts=2).head("k")


async def test_a_file_that_another_program_holds_is_waited_for(tmp_path: Path) -> None:
    """A write waits while another program holds the file's lock."""
    database = on_file(tmp_path / "c.db")
    own = consensus(database)
    assert await own.compare_and_set("k", SeqNo(1), b"1")
    other = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    waiting = asyncio.create_task(own.compare_and_set("k", SeqNo(2), b"2"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    other.execute("COMMIT")
    other.close()
    assert await waiting


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """Yield a server that a test may kill."""
    with PostgresServer() as found:
        yield found


async def test_a_server_that_dies_and_comes_back_loses_nothing(server: PostgresServer) -> None:
    """After kill -9 of the server during writes, each acknowledged commit exists once."""
    store = MemoryStore()

    def shard() -> Shard:
        database = postgres_database(server.url(), told="it", clock=CLOCK)
        own = SqlConsensus(database=database, location="here", clock=CLOCK, attempts=60)
        return Shard(id=ShardId("s"), store=store, consensus=own, clock=CLOCK, schema=SCHEMA)

    committed: list[int] = []

    async def write() -> None:
        handle = shard()
        while len(committed) < 60:
            upper = (await handle.upper()).time
            done = await handle.try_compare_and_append(
                rows(("k", upper, upper, 1)), upper, upper + 1
            )
            if done.verdict.value == "committed":
                committed.append(upper)

    async def kill() -> None:
        for mark in (15, 40):
            while len(committed) < mark:
                await CLOCK.sleep(10_000)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

    await asyncio.gather(write(), write(), write(), kill())
    found = await contents(shard(), max(committed))
    assert found == {("k", time): 1 for time in committed}
    assert sorted(committed) == [*range(len(committed))]


async def test_who_is_refused_is_told_what_to_do(server: PostgresServer) -> None:
    """A wrong user or database raises StoreRefused with the remedy, unlike a stopped server."""
    for url in (server.url("nowhere"), server.url(user="nobody")):
        database = postgres_database(url, told="it", clock=CLOCK)
        with pytest.raises(StoreRefused, match="check the user, the database"):
            await consensus(database, attempts=2).head("k")
    server.kill()
    database = postgres_database(server.url(), told="it", clock=CLOCK)
    with pytest.raises(LocationError, match="check that it runs"):
        await consensus(database, attempts=2).head("k")


async def test_two_locations_in_one_database_know_nothing_of_each_other(tmp_path: Path) -> None:
    """Shards of the same name in two locations are independent."""
    place = f"sqlite:{tmp_path / 'c.db'}"
    found = [
        await open_location(str(tmp_path / name), create=True, consensus=place) for name in "ab"
    ]
    await found[0].shard("s", schema=SCHEMA.data).compare_and_append(None, 0, 5)
    assert (await found[1].shard("s", schema=SCHEMA.data).upper()).time == 0
    await found[1].shard("s", schema=SCHEMA.data).compare_and_append(None, 0, 3)
    for name, upper in (("a", 5), ("b", 3)):
        again = await open_location(str(tmp_path / name))
        assert (await again.shard("s").upper()).time == upper


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("store", "store", ""),
        ("sqlite:/a/b.db", "sqlite", "sqlite:/a/b.db"),
        ("sqlite:///a/b.db", "sqlite", "sqlite:/a/b.db"),
        (
            "postgresql://u:p@h:5/d?sslmode=require",
            "postgres",
            "postgresql://u@h:5/d?sslmode=require",
        ),
        ("postgres://h/d?password=p&user=u", "postgres", "postgres://h/d?user=u"),
    ],
)
def test_places_are_told_without_secrets(text: str, kind: str, told: str) -> None:
    """The text of a place for storage and messages contains no password."""
    found = parse_consensus(text)
    assert (found.kind, found.told) == (kind, told)
    assert found == ConsensusPlace(kind, found.url, told)


@pytest.mark.parametrize("text", ["", "sqlite", "sqlite:", "sqlite://", "mysql://h/d", "x"])
def test_what_is_no_place_is_refused(text: str) -> None:
    """An invalid place raises UsageError, and a password is removed from the text."""
    with pytest.raises(UsageError, match="consensus= must be 'store'"):
        parse_consensus(text)
    assert "p4ss" not in without_password("mysql://u:p4ss@h/d")


async def test_truncated_records_are_in_no_byte_of_the_files_of_sqlite(tmp_path: Path) -> None:
    """After a truncation, no file of SQLite contains the records, which may be erased rows."""
    records = consensus(on_file(tmp_path / "c.db"))
    for seqno in range(1, 9):
        await records.compare_and_set("k", SeqNo(seqno), b"xqzv" * 999 if seqno < 8 else b"new")

    def stored() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir())

    assert b"xqzv" in stored()
    assert await records.truncate("k", SeqNo(8)) == 7
    assert b"xqzv" not in stored()
    assert b"new" in stored()
