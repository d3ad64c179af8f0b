"""The stores that the contract is asked of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.store.metered import Metered
from tidelog.store.port import Store
from tidelog.store.urls import open_store
from tidelog.store.within import Within

CLOCK = SystemClock()
KINDS = ("memory", "local", "metered", "within", "moto", "seaweed")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_again(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Open the test's own place; each call gives another handle on the same objects."""
    if kind == "memory":
        shared: Store = MemoryStore()
        return lambda: shared
    if kind == "metered":
        within = MemoryStore()
        return lambda: Metered(within, clock=CLOCK)
    if kind == "within":
        around = MemoryStore()
        return lambda: Within(around, "some/folder")
    url = str(tmp_path / "store")
    if kind in ("moto", "seaweed"):
        url = request.getfixturevalue(kind).url(f"contract/{CLOCK.unique()}")
    return lambda: open_store(url, clock=CLOCK)


@pytest.fixture
def store(open_again: Callable[[], Store]) -> Store:
    return open_again()
