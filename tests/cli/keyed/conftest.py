"""The command line on keyed logs, on the model and on the engine."""

from __future__ import annotations

import pytest

from cli.conftest import Cli, cli
from kit.keyed_model import MemoryLake
from tidelog.location import Location

__all__ = ["cli"]

PLACES = ["model", *(["engine"] if hasattr(Location, "create_keyed") else [])]


@pytest.fixture(params=PLACES)
def keyed(cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, with an empty keyed log ``k``."""
    if request.param == "model":
        lake = MemoryLake()

        async def open_location(url: str, *, create: bool = False) -> MemoryLake:
            return lake

        monkeypatch.setattr("tidelog.location.open_location", open_location)
    cli.done("keyed", "create", "k")
    return cli
