"""Fixtures of the scenarios: each kind of place, empty at the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.places import KINDS, SHARED, Addresses, open_place
from kit.shards import Place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    for found, _ in open_place(str(request.param), request, tmp_path):
        yield found


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Addresses]]:
    """A place that other processes can reach, with its addresses for them."""
    for found, where in open_place(str(request.param), request, tmp_path):
        assert where is not None
        yield found, where
