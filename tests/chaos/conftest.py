"""Places where processes compete for shards: each kind of consensus that they can share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.ingesters import end_all
from kit.places import SHARED, Addresses, open_place
from kit.postgres_server import PostgresServer
from kit.s3_servers import SeaweedServer
from kit.shards import Place


@pytest.fixture(autouse=True)
def no_ingester_left() -> Iterator[None]:
    """End the ingesters of a test that failed."""
    yield
    end_all()


Fight = tuple[Place, Addresses, Callable[[], None] | None]


@pytest.fixture(params=SHARED)
def fought_at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fight]:
    kind = str(request.param)

    def restart() -> None:
        if kind == "store on S3":
            server: SeaweedServer = request.getfixturevalue("seaweed")
            server.stop()
            time.sleep(0.5)
            server.start()
        else:
            database: PostgresServer = request.getfixturevalue("postgres")
            database.kill()
            time.sleep(0.5)
            database.start()

    outage = restart if kind in ("store on S3", "postgres") else None
    for place, where in open_place(kind, request, tmp_path):
        assert where is not None
        yield place, where, outage
