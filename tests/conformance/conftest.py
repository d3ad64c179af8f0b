"""The places of the scenarios: logs of both protocols, in memory, in a directory, and on S3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.protocols import KINDS, Kind
from tidelog.core.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.urls import open_store

CLOCK = SystemClock()
STORES = ("memory", "local", "s3")


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """A protocol. A test of one protocol has its own ``parametrize("kind", [WAL3], ids=str)``."""
    found: Kind = request.param
    return found


@pytest.fixture(params=STORES)
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Open an empty place; each call returns another place."""
    if request.param == "memory":
        return MemoryStore
    if request.param == "local":
        return lambda: open_store(str(tmp_path / CLOCK.unique()), clock=CLOCK, create=True)
    server = request.getfixturevalue("seaweed")
    return lambda: open_store(server.url(f"conformance/{CLOCK.unique()}"), clock=CLOCK)


@pytest.fixture
def store(new_store: Callable[[], Store]) -> Store:
    return new_store()
