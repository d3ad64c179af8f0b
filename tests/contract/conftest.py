"""The stores and the kinds of consensus that must meet the contracts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.postgres_server import PostgresServer
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.port import Consensus
from tidelog.consensus.postgres import postgres_database
from tidelog.consensus.sql import Database, SqlConsensus
from tidelog.consensus.sqlite import sqlite_database
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.urls import open_store
from tidelog.store.wrappers.cached import CachedStore, CacheSize
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrappers.hedging import Hedging
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.testing import DelayedStore

CLOCK = SystemClock()
KINDS = (
    *("memory", "local", "metered", "within", "hedged", "cached", "moto", "seaweed", "google"),
    # Its first test may have to install the server.
    "azurite",
)
CONSENSUS_KINDS = (
    "memory",
    "on memory",
    "on local",
    "on moto",
    "on seaweed",
    "sqlite",
    "postgres",
)
# Each read that takes a millisecond is sent again.
EAGER = Hedging(least_us=1_000, most_us=1_000, samples_min=1, extra_permille=1_000)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_again(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Store]:
    """Open the test's own place; each call returns another handle to the same objects."""
    if kind == "memory":
        shared: Store = MemoryStore()
        return lambda: shared
    if kind == "metered":
        within = MemoryStore()
        return lambda: MeteringStore(within, clock=CLOCK)
    if kind == "within":
        around = MemoryStore()
        return lambda: Within(around, "some/folder")
    if kind == "hedged":
        slow = DelayedStore(MemoryStore(), clock=CLOCK, delay_us=lambda op, key: _now_and_then_us())
        return lambda: HedgedStore(slow, clock=CLOCK, is_immutable=_is_slot, hedging=EAGER)
    if kind == "cached":
        under = MemoryStore()
        return lambda: CachedStore(
            under,
            clock=CLOCK,
            is_immutable=_is_immutable,
            # Small enough that both caches fill up.
            bounds=CacheSize(memory_bytes=2_000, directory_bytes=200_000),
            directory=tmp_path / "copies",
        )
    url = str(tmp_path / "store")
    if kind in ("moto", "seaweed"):
        url = request.getfixturevalue(kind).url(f"contract/{CLOCK.unique()}")
    if kind in ("google", "azurite"):
        server = request.getfixturevalue(kind)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = server.url(f"contract/{CLOCK.unique()}")
    return lambda: open_store(url, clock=CLOCK, create=True)


def _now_and_then_us() -> int:
    return 3_000 if CLOCK.uniform() < 0.1 else 0


def _is_slot(key: str) -> bool:
    return key.startswith("slot/")


def _is_immutable(key: str) -> bool:
    # The tests replace these two through one handle, and read them through another.
    return key not in ("counter", "head")


@pytest.fixture
def store(open_again: Callable[[], Store]) -> Store:
    return open_again()


@pytest.fixture(params=CONSENSUS_KINDS)
def open_consensus(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Consensus]:
    """Open the test's own place; each call returns a new handle without cached state."""
    kind = str(request.param)
    if kind == "memory":
        shared = MemoryConsensus()
        return lambda: shared
    if kind == "on memory":
        store = MemoryStore()
        return lambda: StoreConsensus(store=store, clock=CLOCK)
    if kind == "sqlite":
        return lambda: sql(sqlite_database(tmp_path / "consensus.db", clock=CLOCK), "here")
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        location = CLOCK.unique()
        return lambda: sql(postgres_database(server.url(), told="it", clock=CLOCK), location)
    url = str(tmp_path / "store")
    if kind != "on local":
        url = request.getfixturevalue(kind.removeprefix("on ")).url(f"consensus/{CLOCK.unique()}")
    return lambda: StoreConsensus(store=open_store(url, clock=CLOCK, create=True), clock=CLOCK)


def sql(database: Database, location: str) -> SqlConsensus:
    return SqlConsensus(database=database, location=location, clock=CLOCK)
