"""A schema registry of the tests' own: Apicurio, on loopback, its archive from Maven Central.

Clients use Confluent's API, version 7, at `RegistryServer.url`.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kit.installs import installed, require_java, unpack_archive
from kit.server_process import ServerProcess, java

VERSION: Final = "2.6.13.Final"  # The last line that runs on Java 17.
_PROGRAM: Final = f"apicurio-registry-app-{VERSION}-runner.jar"
_ARCHIVE: Final = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


def installed_registry() -> Path:
    """Return the registry's program; Maven copies it the first time (142 MB).

    Raises:
        CannotInstall: Java 17 or Maven is missing, or Maven fails.
    """
    require_java(17, server="the schema registry")
    name = f"apicurio-{VERSION}"
    folder = installed(name, lambda at: unpack_archive(at, _ARCHIVE, server="the schema registry"))
    return folder / "unpacked" / _PROGRAM


class Refused(Exception):
    """The registry's answer is an error, with its HTTP status in ``code``."""

    def __init__(self, code: int, told: str) -> None:
        super().__init__(f"{code}: {told}")
        self.code = code


class RegistryServer(ServerProcess):
    """A registry in a process of its own, which refuses schemas that are not backward compatible.

    Its schemas stay until `wipe`, `close` or the end of ``with``. A wiped registry gives the same
    ids again, to other schemas.
    """

    name = "the schema registry"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        outlives: bool = False,
        heap_mb: int = 384,
    ) -> None:
        """Install the registry if it is not installed yet; `start` starts it.

        Raises:
            CannotInstall: as `installed_registry`.
        """
        super().__init__(directory, port=port, outlives=outlives)
        self._program = installed_registry()
        self._heap_mb = heap_mb

    @property
    def url(self) -> str:
        """The address for clients of Confluent's registry."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def register(self, subject: str, schema: str, *, kind: str = "AVRO") -> int:
        """Register a schema, and return its id.

        Raises:
            Refused: 409 if it is not compatible with the subject's schemas.
        """
        told = {"schema": schema, "schemaType": kind}
        made = self.ask(f"/subjects/{subject}/versions", told, method="POST")
        return int(str(made["id"]))

    def ask(
        self, path: str, body: Mapping[str, object] | None = None, *, method: str = "GET"
    ) -> dict[str, object]:
        """Send a request to the registry, and return its answer.

        Raises:
            Refused: the answer is an error.
            OSError: the registry does not answer.
        """
        data = None if body is None else json.dumps(body).encode()
        heads = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(
            f"{self.url}{path}", data=data, headers=heads, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found: dict[str, object] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode(errors="replace")) from None
        return found

    def wipe(self) -> None:
        """Kill the registry, remove its schemas, and start it again."""
        self.kill()
        self._remove()
        self.start()

    def close(self) -> None:
        """Kill the registry, and remove its schemas."""
        super().close()
        self._remove()

    def command(self) -> list[str]:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self._data}/registry;WRITE_DELAY=0",
            "quarkus.datasource.jdbc.initial-size": 1,
            "quarkus.datasource.jdbc.min-size": 1,
            "quarkus.datasource.jdbc.max-size": 10,
            # As Confluent's registry does, unless a subject has another rule.
            "registry.rules.global.compatibility": "BACKWARD",
            "quarkus.log.level": "WARN",
            'quarkus.log.category."io.apicurio".level': "WARN",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        return [*java(self.directory, heap_mb=self._heap_mb), *options, "-jar", str(self._program)]

    def check(self) -> None:
        """Raise an exception unless the registry answers."""
        self.ask("/config")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _remove(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
