"""Fixtures of the shard tests: each kind of place that can hold a shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.shards import Place, in_memory, on_store
from tidelog.core.clock import SystemClock
from tidelog.store.memory import MemoryStore
from tidelog.store.urls import open_store


@pytest.fixture(params=["memory", "on memory", "on local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        return in_memory()
    if request.param == "on memory":
        return on_store(MemoryStore())
    return on_store(open_store(str(tmp_path / "store"), clock=SystemClock(), create=True))
