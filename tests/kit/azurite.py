"""Azurite, Azure's emulator, for tests: installed by npm once, in memory, on loopback.

It tests only the meaning of requests: it loses acknowledged puts when it is killed. Later runs use
its code again, from the system's folder for temporary files.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import urllib.error
import urllib.request
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Final

from kit.installs import CannotInstall, installed, run
from kit.server_process import ServerProcess

VERSION: Final = "3.35.0"
CONTAINER: Final = "tide"
ACCOUNT: Final = "devstoreaccount1"
# The emulator's public key, from its manual. It gives access to no other account.
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_PROGRAM: Final = "node_modules/azurite/dist/src/blob/main.js"


def installed_azurite() -> Path:
    """Return Azurite's program; npm installs it the first time.

    Raises:
        CannotInstall: node or npm is missing, or npm fails.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise CannotInstall("Azurite is not installed: node or npm is missing")
    return installed(f"azurite-{VERSION}", _install) / _PROGRAM


def _install(folder: Path) -> None:
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
    run(["npm", "install", *options, f"azurite@{VERSION}"], folder, server="Azurite")


class Azurite(ServerProcess):
    """Azurite; clients find it by ``environment``."""

    name = "Azurite"

    def __init__(
        self,
        directory: Path,
        program: Path,
        *,
        port: int | None = None,
        outlives: bool = False,
        in_memory: bool = True,
    ) -> None:
        super().__init__(directory, port=port, outlives=outlives)
        self._program = program
        self._in_memory = in_memory

    def command(self) -> list[str]:
        options = ["--blobPort", str(self.port), "--blobHost", "127.0.0.1", "--silent"]
        options += ["--skipApiVersionCheck", "--disableTelemetry"]
        kept = ["--inMemoryPersistence"] if self._in_memory else ["--location", "data"]
        return ["node", str(self._program), *options, *kept]

    def check(self) -> None:
        """Raise an exception unless the container exists; create it."""
        try:
            urllib.request.urlopen(self._request(), timeout=5).close()
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.CONFLICT:  # It exists.
                    raise

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
        }

    def url(self, prefix: str = "") -> str:
        return f"az://{CONTAINER}/{prefix}"

    def _request(self) -> urllib.request.Request:
        """Return the request that creates the container, signed as Azure requires."""
        version = "2021-08-06"
        told = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": version}
        heads = "".join(f"{name}:{value}\n" for name, value in sorted(told.items()))
        place = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        signed = "PUT" + "\n" * 12 + heads + place
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        told["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"http://127.0.0.1:{self.port}/{ACCOUNT}/{CONTAINER}?restype=container"
        return urllib.request.Request(url, method="PUT", headers=told)
