"""Parts of the suite, and servers for all tests, started once a session, on first use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kit import parts
from kit.azurite import Azurite, installed_azurite
from kit.gcs_server import GcsServer
from kit.installs import skipped_without
from kit.kafka_server import KafkaServer
from kit.postgres_server import PostgresServer
from kit.registry_server import RegistryServer
from kit.s3_servers import MotoServer, SeaweedServer

# No deadline: on a shared machine, an example's time means nothing. Examples are the same in each
# run, so that a commit passes or fails everywhere; --hypothesis-profile=search draws new ones.
for name, same in (("tidelog", True), ("search", False)):
    settings.register_profile(
        name, deadline=None, derandomize=same, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("tidelog")


def pytest_addoption(parser: pytest.Parser) -> None:
    parts.add_option(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return parts.is_left_out(collection_path, config) or None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = (each.longrepr[2] for each in skipped)  # A skip has its file, line and reason.
    for line in (*parts.skips(reasons), *parts.summary(config)):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The one loop that tidelog runs on: a test that is an ``async def`` runs on it."""
    return "asyncio"


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """moto, an S3 server in memory."""
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Azurite, Azure's emulator; without it the tests that ask for it are skipped."""
    with skipped_without():
        program = installed_azurite()
    with Azurite(tmp_path_factory.mktemp("azurite"), program) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka broker; without Java and Maven the tests that ask for it are skipped."""
    with skipped_without():
        server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    with server:
        yield server


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A schema registry; without Java and Maven the tests that ask for it are skipped."""
    with skipped_without():
        server = RegistryServer(tmp_path_factory.mktemp("registry"))
    with server:
        yield server


@pytest.fixture(scope="session")
def google() -> Iterator[GcsServer]:
    """A server of ours that speaks as Google Cloud Storage does."""
    with GcsServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """PostgreSQL, with a database of the tests' own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """SeaweedFS, an S3 server on disk."""
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as server:
        yield server
