"""The places of the scenarios: each store for shards, with each kind of consensus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.clocks import SwiftClock
from kit.postgres_server import PostgresServer
from kit.s3_servers import SeaweedServer
from kit.shards import Place, in_memory, on_store
from tidelog.consensus.connection import OneConnection
from tidelog.consensus.port import Consensus
from tidelog.consensus.postgres import postgres_database
from tidelog.consensus.sql import SqlConsensus
from tidelog.consensus.sqlite import sqlite_database
from tidelog.core.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.urls import open_store

CLOCK = SystemClock()
KINDS = ("memory", "store on memory", "store on local", "store on S3", "sqlite", "postgres")
SHARED = ("store on local", "store on S3", "sqlite", "postgres")  # For several processes.


class Addresses:
    """The addresses of a kind's store and consensus, which other processes can open."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
        self.kind = kind
        # Consensus in the store itself needs no id of a location.
        self.location = "" if kind.startswith("store") else CLOCK.unique()
        self.store_url = (folder / "store").as_uri()
        self.consensus_url = "store"
        if kind == "store on S3":
            server: SeaweedServer = request.getfixturevalue("seaweed")
            self.store_url = server.url(f"scenarios/{CLOCK.unique()}")
        elif kind == "sqlite":
            self.consensus_url = f"sqlite:{folder / 'consensus.db'}"
        elif kind == "postgres":
            database: PostgresServer = request.getfixturevalue("postgres")
            self.consensus_url = database.url()

    @property
    def arguments(self) -> list[str]:
        """The arguments of a process, in this order: store, consensus, location."""
        return [self.store_url, self.consensus_url, self.location]


def open_place(
    kind: str, request: pytest.FixtureRequest, folder: Path
) -> Iterator[tuple[Place, Addresses | None]]:
    """Yield the test's own place, and close the connections of its handles afterwards."""
    if kind == "memory":
        yield in_memory(), None
        return
    if kind == "store on memory":
        yield on_store(MemoryStore()), None
        return
    where = Addresses(kind, request, folder)
    store = open_store(where.store_url, clock=CLOCK, create=True)
    if where.consensus_url == "store":
        yield on_store(store), where
        return
    opened: list[OneConnection] = []

    def connect(_: Store) -> Consensus:
        """Return a consensus with its own connection, as in a process of its own."""
        if kind == "sqlite":
            path = Path(where.consensus_url.removeprefix("sqlite:"))
            database = sqlite_database(path, clock=CLOCK)
        else:
            database = postgres_database(where.consensus_url, told="it", clock=CLOCK)
        opened.append(database)
        return SqlConsensus(database=database, location=where.location, clock=SwiftClock())

    yield Place(store, connect), where
    for database in opened:
        database._close()
